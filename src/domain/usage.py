"""What a call used and what it cost: tokens, prices, and money in integer micro-USD."""

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Final
from uuid import UUID

from domain.provider import Provider, RoutingPreference

_MICROS: Final = 1_000_000
_MICRO_USD: Final = Decimal("0.000001")
_EXACT_DECIMALS: Final = 100
"""More than any price is written with, and fewer than a database refuses."""


class ActorKind(StrEnum):
    """Values of the enum `actor_kind`."""

    USER = "user"
    AGENT = "agent"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Prices:
    """Micro-USD per million tokens."""

    input_per_million_micros: int
    output_per_million_micros: int


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one call. The cached and reasoning counts are parts of the other two, never added to them."""

    input: int
    output: int
    cached_input: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """The provider's own account of a call. `charged_usd` is what it took from the key; None: it did not say."""

    tokens: TokenCounts
    charged_usd: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """A decided cost, with the prices that make it: tokens × prices, rounded half up, is `micros`."""

    micros: int
    prices: Prices
    is_implicit: bool
    """The prices were derived from the cost, and not the cost from the prices."""
    catalogue_micros: int | None
    """What the catalogue's prices would have made it; None where the cost is the catalogue's anyway."""
    charged_usd: Decimal | None = None
    """The provider's own figure, unrounded; None where it named none, or one with over a hundred decimals."""


def to_micros(usd: Decimal) -> int:
    """USD in micro-USD, rounded half up, once and whatever its digits. Up to 10^20 USD."""
    return int(usd.quantize(_MICRO_USD, rounding=ROUND_HALF_UP) * _MICROS)


def catalogue_cost_micros(tokens: TokenCounts, prices: Prices) -> int:
    """Tokens × prices, rounded half up for input and output apart."""
    return _priced(tokens.input, prices.input_per_million_micros) + _priced(
        tokens.output, prices.output_per_million_micros
    )


def decide_cost(tokens: TokenCounts, prices: Prices, charged_usd: Decimal | None) -> Cost:
    """What the provider says it charged; without its word, the catalogue's price."""
    catalogue_micros = catalogue_cost_micros(tokens, prices)
    if charged_usd is None:
        return Cost(catalogue_micros, prices, is_implicit=False, catalogue_micros=None)
    return replace(implicit_cost(tokens, charged_usd), catalogue_micros=catalogue_micros)


def implicit_cost(tokens: TokenCounts, charged_usd: Decimal) -> Cost:
    """What the provider says it charged, with the price that makes it of these tokens."""
    micros = to_micros(charged_usd)
    price = _implicit_price(micros, tokens.input + tokens.output)
    return Cost(
        micros,
        Prices(price, price),
        is_implicit=True,
        catalogue_micros=None,
        charged_usd=charged_usd if _decimals(charged_usd) <= _EXACT_DECIMALS else None,
    )


def _decimals(usd: Decimal) -> int:
    exponent = usd.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _priced(tokens: int, per_million_micros: int) -> int:
    return (tokens * per_million_micros + _MICROS // 2) // _MICROS


def _implicit_price(cost_micros: int, tokens: int) -> int:
    """The integer price nearest to cost ÷ tokens; 0 where there are no tokens and the cost stands alone."""
    return (2 * cost_micros * _MICROS + tokens) // (2 * tokens) if tokens > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """One row of the ledger, complete before it is written: its id makes a second write change nothing."""

    id: UUID
    turn_id: UUID
    """The turn it is part of; the chat's row has the same id."""
    session_id: UUID
    project_id: UUID
    actor_kind: ActorKind
    actor_id: str
    area: str | None
    """The key of the area whose spend this is too."""
    provider: Provider
    model_id: UUID | None
    model_name: str
    tokens: TokenCounts
    is_estimated: bool
    awaits_truth: bool
    """The provider may know better: estimated, or cut before its last word. Reconciliation asks."""
    cost: Cost
    latency_ms: int
    binding_origin: str | None
    routing_preference: RoutingPreference | None
    upstream_provider: str | None
    resolved_model_name: str | None
    generation_id: str | None
    created_at: datetime
    """When the call ended."""
    traceparent: str | None = None
