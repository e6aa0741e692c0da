"""What the router said of a step, and what became of its menu."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Final

from domain.usage import Prices, TokenCounts


class FallbackOrigin(StrEnum):
    """Whose fault a fallback is; the wire's `origemDaQueda`."""

    INFRASTRUCTURE = "infra"
    MODEL = "modelo"
    CODE = "codigo"


class FallbackReason(StrEnum):
    """Why a step has its whole catalogue although the router was to be asked; the wire's `motivoDaQueda`."""

    HTTP_ERROR = "erro_http"
    TIMEOUT = "timeout"
    NETWORK_ERROR = "erro_de_rede"
    INVALID_ANSWER = "resposta_invalida"
    CHOICE_NOT_OFFERED = "escolha_fora_das_opcoes"
    STATE_TOO_LARGE = "estado_grande"
    NAME_COLLISION = "colisao_de_nome"

    @property
    def origin(self) -> FallbackOrigin:
        """Whose fault it is, unless the fallback says otherwise."""
        return _ORIGIN[self]


_ORIGIN: Final = {
    FallbackReason.HTTP_ERROR: FallbackOrigin.INFRASTRUCTURE,
    FallbackReason.TIMEOUT: FallbackOrigin.INFRASTRUCTURE,
    FallbackReason.NETWORK_ERROR: FallbackOrigin.INFRASTRUCTURE,
    FallbackReason.INVALID_ANSWER: FallbackOrigin.MODEL,
    FallbackReason.CHOICE_NOT_OFFERED: FallbackOrigin.MODEL,
    FallbackReason.STATE_TOO_LARGE: FallbackOrigin.CODE,
    FallbackReason.NAME_COLLISION: FallbackOrigin.CODE,
}

ROUTER_PRICES: Final = Prices(42_000, 0)
"""Of the pinned model: 0.042 USD per million tokens of input, its output free, in every recording."""
_QUESTION_TOKENS: Final = 64_000
WORST_CASE_MICROS: Final = _QUESTION_TOKENS * ROUTER_PRICES.input_per_million_micros // 1_000_000
"""The most that asking once may cost: 0.002688 USD.

What counts over 8,000 tokens of o200k, or has over 64,000 characters, is not sent, and the decision model takes 32,000
of its own (64,000 where its maker serves it directly), whatever its vocabulary.
"""

DETAIL_CHARACTERS: Final = 200
"""A fallback's detail has no more."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The router had no say in this step. `detail` is short and names neither a key nor a URL nor a message."""

    reason: FallbackReason
    detail: str | None = None
    is_ours: bool = False
    """A fault of our code, whatever the reason usually means."""

    @property
    def origin(self) -> FallbackOrigin:
        """Whose fault it is."""
        return FallbackOrigin.CODE if self.is_ours else self.reason.origin


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The likeliest option but the choice."""

    option: str
    probability: float


@dataclass(frozen=True, slots=True)
class Choice:
    """An option that was offered: a tool's name, or the reserved option. Unknown figures are None."""

    option: str
    confidence: float | None = None
    runner_up: RunnerUp | None = None


@dataclass(frozen=True, slots=True)
class RouterSpend:
    """What a decision cost, by the provider's word; without its counts, the input was counted here."""

    charged_usd: Decimal
    tokens: TokenCounts
    is_estimated: bool
    generation_id: str | None
    resolved_model: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of asking. `spend` is there whenever the answer named a cost, in a fallback too."""

    outcome: Choice | Fallback
    latency_ms: int = 0
    """Of the exchange; 0 when nothing was sent."""
    spend: RouterSpend | None = None
    may_be_charged: bool = False
    """It was sent, and neither a refusal nor a readable answer came: what it cost, if anything, nobody saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """What a step's answer says of its menu; the wire's `toolRouting`."""

    model: str
    catalogue: Sequence[str] = field(repr=False)
    """The names of the tools that were offered."""
    menu: Sequence[str] = field(repr=False)
    """The names of those that the chat model was given."""
    previous_tool: str | None
    outcome: Choice | Fallback
    latency_ms: int
    cost_micros: int
    is_spend_unrecorded: bool
    """The decision cost something, and its row is neither committed nor kept for later."""

    @property
    def is_applied(self) -> bool:
        """The menu came out smaller than the catalogue."""
        return len(self.menu) < len(self.catalogue)
