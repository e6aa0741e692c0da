"""What a turn enters in the books: its start, and how it ended."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from domain.provider import Provider, RoutingPreference
from domain.usage import Prices, TokenUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """Entered before the first of a turn's calls: enough for somebody else to settle it. Holds no message, no key."""

    turn_id: UUID
    """Of the chat's row too."""
    router_usage_id: UUID
    """Of the row that asking the router makes, if it makes one."""
    workspace_id: UUID
    project_id: UUID
    session_id: UUID
    agent: str | None
    provider: Provider
    model_id: UUID
    model_name: str
    prices: Prices
    binding_origin: str
    """The scope of the binding that won."""
    routing_preference: RoutingPreference | None
    prompt_bytes: int
    """Of the request as received: no less than its messages and tools have in UTF-8."""
    started_at: datetime
    due_at: datetime
    """When a turn that lives is over at the latest: its ceiling and the drain."""
    traceparent: str | None = None


class TurnOutcome(StrEnum):
    """How a turn ended."""

    ANSWERED = "answered"
    """With a final answer, a failure among them."""
    LEFT = "left"
    """Its engine went away."""
    REFUSED = "refused"
    """A strict budget had no room for its worst case, and nothing was sent."""
    ABANDONED = "abandoned"
    """Its process died; somebody else settled it."""


class RouterOutcome(StrEnum):
    """What became of asking the router, as far as money is concerned."""

    CHARGED = "charged"
    """There is a row."""
    FREE = "free"
    """It answered that nothing was charged, or the request was never taken."""
    UNSEEN = "unseen"
    """It may have been charged, and nobody saw what: timed out, cut, or an answer without its cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """The one end of a start. It releases what a strict budget held and is not awaiting the truth."""

    start: TurnStart
    outcome: TurnOutcome
    ended_at: datetime
    router: RouterOutcome | None = None
    """None: it was not asked."""
    error_code: str | None = None
    """`errorCode` of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What is written at once: a row of a turn, its end, or both. Written twice, it changes nothing."""

    turn_id: UUID
    usage: TokenUsage | None
    end: TurnEnd | None

    def __post_init__(self) -> None:
        assert self.usage is not None or self.end is not None, "a settlement settles something"

    @property
    def id(self) -> UUID:
        """Tells the settlements of a turn apart: its row's id, or without one the turn's."""
        return self.turn_id if self.usage is None else self.usage.id

    @property
    def project_id(self) -> UUID:
        """Whose counters it may move."""
        if self.usage is not None:
            return self.usage.project_id
        assert self.end is not None
        return self.end.start.project_id
