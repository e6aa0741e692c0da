"""The chat provider: one call, streamed."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider, RoutingPreference
from domain.secret import Secret
from domain.step import CalledTool, Message, Tool
from domain.usage import Prices, ReportedUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """One call of a model. Message contents stay out of its repr."""

    provider: Provider
    model: str
    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    api_key: Secret | None
    routing_preference: RoutingPreference | None
    deadline_s: float
    """On the event loop's clock: the call ends then, whatever it is doing."""
    traceparent: str | None = None
    max_output_tokens: int | None = None
    """The most the model may make; None: as the provider likes."""
    max_prices: Prices | None = None
    """No upstream that is dearer may answer; None: any."""
    on_generation: Callable[[str], None] = field(default=lambda _generation_id: None, repr=False)
    """Told the call's id at the provider as soon as there is one; it must not raise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOutcome:
    """What is known of a call: everything when it has ended, what came so far when it was left."""

    text: str = field(default="", repr=False)
    """The concatenation of the pieces that were yielded."""
    tool_calls: Sequence[CalledTool] = field(default=(), repr=False)
    is_truncated: bool = False
    failure: TurnFailure | None = None
    usage: ReportedUsage | None = None
    upstream_provider: str | None = None
    resolved_model: str | None = None
    generation_id: str | None = None
    may_be_charged: bool = False
    """It brought content or usage, or its fate is unknown: cut, timed out or cancelled after it was sent."""
    is_complete: bool = False
    """The provider has said all it had to say: its usage, if it named one, is its last word."""
    generated: Sequence[str] = field(default=(), repr=False)
    """Everything the model made, reasoning and raw arguments included: to be counted when the usage is missing."""


class ChatStream(Protocol):
    """A call under way: iterate over its pieces of text, then ask for its outcome.

    Nothing is sent before the first piece is asked for. Iteration ends when the call has ended, well or not, and raises
    nothing but cancellation: failures are in the outcome.
    """

    def __aiter__(self) -> AsyncIterator[Sequence[str]]:
        """Pieces of text as they arrive: those that arrived together, at least one, none of them empty."""
        ...

    def outcome(self) -> ChatOutcome:
        """What is known now. Before the end, for a reader that leaves: no failure, and no tool calls."""
        ...

    def interrupt(self, code: FailureCode) -> None:
        """End the call now: the pending read, or the next one, ends it with this code. Too late, it does nothing."""
        ...

    async def aclose(self) -> None:
        """Close the connection at once, unless the answer was read whole. May be called twice."""
        ...


class LLMProvider(Protocol):
    """A chat model's provider.

    It never sends a call twice, but when a kept connection turns out closed before a byte was written.
    """

    def chat(self, call: ChatCall) -> ChatStream:
        """The call, not yet sent."""
        ...
