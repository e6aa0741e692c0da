"""Model bindings: which model answers a turn (contract, section 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from domain.provider import Provider, RoutingPreference
from domain.usage import Prices


class BindingScope(StrEnum):
    """Values of the enum `model_binding_scope`, most specific first."""

    SESSION = "session"
    AGENT = "agent"
    AREA = "area"
    PROJECT = "project"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A binding and its model."""

    scope: BindingScope
    model_id: UUID
    provider: Provider
    name: str
    prices: Prices
    is_available: bool
    supports_tool_calling: bool
    routing_preference: RoutingPreference | None = None
    is_priced: bool = True
    """False: no price was ever given, and the zeros mean nothing."""
    max_output_tokens: int | None = None
    """The model's own maximum; None: not known."""

    def serves(self, *, with_tools: bool) -> bool:
        """Whether the cascade may stop here."""
        return self.is_available and (self.supports_tool_calling or not with_tools)


@dataclass(frozen=True, slots=True)
class Bindings:
    """The bindings that a turn could use: at most one a scope, and the one of the project's agent `criativo`.

    `creative` is None when that agent has no binding, or is the one that asks.
    """

    by_scope: Sequence[BoundModel]
    creative: BoundModel | None = None

    def resolve(self, *, with_tools: bool) -> BoundModel | None:
        """The model of the most specific scope that serves; None when none does.

        A turn that would land on the workspace takes the model of `criativo` instead, if that one serves.
        """
        for bound in self._most_specific_first():
            if bound.serves(with_tools=with_tools):
                if bound.scope is BindingScope.WORKSPACE and self.creative is not None:
                    return self.creative if self.creative.serves(with_tools=with_tools) else bound
                return bound
        return None

    def most_specific_gone(self) -> BoundModel | None:
        """The first bound model that is no longer available, for saying why none serves."""
        return next((bound for bound in self._most_specific_first() if not bound.is_available), None)

    def _most_specific_first(self) -> list[BoundModel]:
        order = list(BindingScope)
        return sorted(self.by_scope, key=lambda bound: order.index(bound.scope))
