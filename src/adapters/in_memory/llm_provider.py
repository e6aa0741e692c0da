"""A provider that says what it was told to say."""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from application.ports.llm_provider import ChatCall, ChatOutcome, ChatStream, LLMProvider
from domain.failure import FailureCode, TurnFailure
from domain.step import CalledTool
from domain.usage import ReportedUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """What one call brings. A failure comes after the pieces; tool calls then do not."""

    pieces: Sequence[str] = ()
    reasoning: str = ""
    tool_calls: Sequence[CalledTool] = ()
    is_truncated: bool = False
    usage: ReportedUsage | None = None
    failure: TurnFailure | None = None
    is_sent: bool = True
    """False for a `connection` failure that comes before a byte of the request is written."""
    upstream_provider: str | None = None
    resolved_model: str | None = None
    generation_id: str | None = None
    pause_s: float = 0.0
    """Before each piece, and before the end."""
    hangs: bool = False
    """Nothing comes after the pieces, until the call is interrupted, left or late."""


@dataclass(slots=True)
class ScriptedProvider(LLMProvider):
    """Answers calls from a script, in the order in which they begin, and remembers them.

    A call beyond the script is answered with the text `ok`.
    """

    calls: list[ChatCall] = field(default_factory=list)
    """Every call that was sent."""
    closed: int = 0
    """Calls that were left before their end."""
    _script: deque[ScriptedReply] = field(default_factory=deque)

    def will_reply(self, *replies: ScriptedReply) -> None:
        """Add to the script."""
        self._script.extend(replies)

    def will_say(self, *pieces: str, usage: ReportedUsage | None = None) -> None:
        """Add an answer of these pieces of text to the script."""
        self.will_reply(ScriptedReply(pieces=pieces, usage=usage))

    def will_fail(self, failure: TurnFailure) -> None:
        """Add a call that fails before any content to the script."""
        self.will_reply(ScriptedReply(failure=failure))

    def chat(self, call: ChatCall) -> ChatStream:
        return _ScriptedStream(self, call)

    def begin(self, call: ChatCall) -> ScriptedReply:
        """Take a call as sent, and the next reply from the script."""
        self.calls.append(call)
        return self._script.popleft() if self._script else ScriptedReply(pieces=("ok",))


class _ScriptedStream(ChatStream):
    def __init__(self, provider: ScriptedProvider, call: ChatCall) -> None:
        self._provider = provider
        self._call = call
        self._reply: ScriptedReply | None = None
        self._yielded: list[str] = []
        self._timeout: asyncio.Timeout | None = None
        self._interruption: FailureCode | None = None
        self._failure: TurnFailure | None = None
        self._is_over = False
        self._is_left = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[str]:
        if self._is_over or self._is_left:
            raise StopAsyncIteration
        try:
            piece = await self._next_piece()
        except asyncio.CancelledError:
            self._leave()
            raise
        if piece is None:
            raise StopAsyncIteration
        self._yielded.append(piece)
        return [piece]

    def outcome(self) -> ChatOutcome:
        reply = self._reply
        if reply is None:
            return ChatOutcome(failure=self._failure)
        is_whole = self._is_over and self._failure is None
        is_told = self._is_over and self._interruption is None
        made = (*self._yielded, *filter(None, [reply.reasoning]), *(call.name for call in reply.tool_calls))
        usage = reply.usage if is_told else None
        is_refused = self._failure is not None and self._interruption is None and not self._is_cut()
        has_unknown_fate = reply.is_sent and not is_refused
        return ChatOutcome(
            text="".join(self._yielded),
            tool_calls=reply.tool_calls if is_whole else (),
            is_truncated=reply.is_truncated and is_told,
            failure=self._failure,
            usage=usage,
            upstream_provider=reply.upstream_provider,
            resolved_model=reply.resolved_model,
            generation_id=reply.generation_id,
            may_be_charged=bool(made) or usage is not None or has_unknown_fate,
            generated=made,
        )

    def interrupt(self, code: FailureCode) -> None:
        if self._is_over or self._is_left or self._interruption is not None:
            return
        self._interruption = code
        self._wake()

    async def aclose(self) -> None:
        if not self._is_over:
            self._leave()

    async def _next_piece(self) -> str | None:
        if self._interruption is not None:
            self._end(self._interruption)
            return None
        reply = self._reply = self._reply or self._provider.begin(self._call)
        is_last = len(self._yielded) == len(reply.pieces)
        self._timeout = asyncio.timeout_at(self._call.deadline_s)
        try:
            async with self._timeout:
                await (asyncio.Event().wait() if is_last and reply.hangs else asyncio.sleep(reply.pause_s))
        except TimeoutError:
            if not self._is_left:
                self._interruption = self._interruption or FailureCode.TIMEOUT
                self._end(self._interruption)
            return None
        finally:
            self._timeout = None
        if not is_last:
            return reply.pieces[len(self._yielded)]
        self._is_over = True
        self._failure = reply.failure
        return None

    def _end(self, code: FailureCode) -> None:
        self._is_over = True
        self._failure = TurnFailure(code, provider=self._call.provider)

    def _is_cut(self) -> bool:
        return self._failure is not None and self._failure.code is FailureCode.CONNECTION

    def _leave(self) -> None:
        if not self._is_left:
            self._provider.closed += 1
        self._is_left = True
        self._wake()

    def _wake(self) -> None:
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())
