"""Chat over the OpenAI-compatible dialect."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Final, Self

import structlog

from adapters.openai_compatible import frames
from adapters.openai_compatible.answer import Answer
from adapters.openai_compatible.body import AnswerBody
from adapters.openai_compatible.errors import error_in, failure_of
from adapters.openai_compatible.profiles import ProviderProfile
from adapters.openai_compatible.request import request_body
from adapters.transport.names import storable_name
from adapters.transport.sse import EventTooLongError
from adapters.transport.way_out import (
    ClockExpiredError,
    ConnectionBrokenError,
    Exchange,
    InterruptedCallError,
    WayOut,
    fits_a_header,
)
from application.ports.llm_provider import ChatCall, ChatOutcome, ChatStream, LLMProvider
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.step import CalledTool

_log: Final = structlog.get_logger("brabo.provider")

_LONGEST_ERROR_BYTES: Final = 1024 * 1024
_MOST_DROPPED_FRAMES: Final = 10_000
"""Who sends more in one answer is not understood any more."""
_LONGEST_STEP_S: Final = 0.01
"""Frames that came together are taken in for this long before others get their turn."""
_DONE: Final = b"[DONE]"


class _UnreadableAnswerError(Exception):
    """The answer is in an encoding that was not asked for, or too many of its frames could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The longest waits of one call, in seconds; its deadline comes with the call."""

    connect_s: float = 10.0
    first_byte_s: float = 300.0
    """From the connection to the headers of the answer."""
    idle_s: float = 300.0
    """From the connection to the first `data:` frame, and between frames, not counting the time the reader takes;
    headers, comments and halves of frames are no life."""
    after_finish_s: float = 10.0
    """For the usage, once the answer is finished; and for the body of an error status."""


class OpenAICompatibleProvider(LLMProvider):
    """Every provider of the table, over one way out."""

    def __init__(
        self,
        profiles: Mapping[Provider, ProviderProfile],
        way_out: WayOut,
        *,
        now: Callable[[], datetime],
        clocks: Clocks | None = None,
        on_dropped_frame: Callable[[Provider], None] = lambda _provider: None,
    ) -> None:
        """`now` is the wall clock, aware; `on_dropped_frame` is called for each frame that could not be read."""
        self._profiles = profiles
        self._way_out = way_out
        self._now = now
        self._clocks = clocks or Clocks()
        self._on_dropped_frame = on_dropped_frame

    def chat(self, call: ChatCall) -> ChatStream:
        """See the port. The call's provider is one of the table."""
        profile = self._profiles[call.provider]
        return _Stream(call, profile, self._way_out, self._clocks, self._now, self._on_dropped_frame)


class _Stream(ChatStream):
    def __init__(
        self,
        call: ChatCall,
        profile: ProviderProfile,
        way_out: WayOut,
        clocks: Clocks,
        now: Callable[[], datetime],
        on_dropped_frame: Callable[[Provider], None],
    ) -> None:
        self._call = call
        self._profile = profile
        self._way_out = way_out
        self._clocks = clocks
        self._now = now
        self._on_dropped_frame = on_dropped_frame
        self._answer = Answer(states_charge=profile.states_charge)
        self._body = AnswerBody()
        self._exchange: Exchange | None = None
        self._pieces: list[str] = []
        self._yielded: list[str] = []
        self._quiet_s = 0.0
        self._interruption: FailureCode | None = None
        self._failure: TurnFailure | None = None
        self._has_unknown_fate = True
        self._dropped_frames = 0
        self._is_over = False
        self._is_left = False
        self._is_complete = False
        self._has_told_generation = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[str]:
        while not self._pieces:
            if self._is_over or self._is_left:
                raise StopAsyncIteration
            await self._advance()
        pieces, self._pieces = self._pieces, []
        self._yielded += pieces
        return pieces

    def outcome(self) -> ChatOutcome:
        answer = self._answer
        calls: Sequence[CalledTool] = ()
        is_truncated = answer.is_cut
        if self._is_over and self._failure is None:
            calls, is_truncated = answer.tool_calls()
        return ChatOutcome(
            text="".join(self._yielded),
            tool_calls=calls,
            is_truncated=is_truncated,
            failure=self._failure,
            usage=answer.usage,
            upstream_provider=answer.upstream_provider,
            resolved_model=answer.resolved_model,
            generation_id=answer.generation_id,
            may_be_charged=self._may_be_charged(),
            is_complete=self._is_complete,
            generated=answer.generated(),
        )

    def interrupt(self, code: FailureCode) -> None:
        if self._is_over or self._is_left or self._interruption is not None:
            return
        self._interruption = code
        if self._exchange is not None:
            self._exchange.interrupt()

    async def aclose(self) -> None:
        if not self._is_over:
            self._leave()

    async def _advance(self) -> None:
        """One step of the call: send it, or read on. Whatever ends the call early closes its connection."""
        is_cancelled = True
        try:
            if self._exchange is None:
                await self._begin()
            else:
                await self._read(self._exchange)
            is_cancelled = False
        except InterruptedCallError:
            is_cancelled = self._interruption is None
            if self._interruption is not None:
                self._fail(self._interruption)
        except ClockExpiredError:
            is_cancelled = False
            self._break_off(FailureCode.TIMEOUT)
        except ConnectionBrokenError as broken:
            is_cancelled = False
            _log.info(
                "provider_connection_broken",
                provider=self._call.provider,
                cause=type(broken.__cause__).__name__,
            )
            self._break_off(FailureCode.CONNECTION)
        except (EventTooLongError, _UnreadableAnswerError):
            is_cancelled = False
            self._fail(FailureCode.BAD_ANSWER)
        finally:
            if is_cancelled:
                self._leave()

    async def _begin(self) -> None:
        profile, key, provider = self._profile, self._call.api_key, self._call.provider
        if key and not fits_a_header(key):
            return self._refuse(TurnFailure(FailureCode.AUTH, provider=provider))
        blocks = await request_body(self._call, profile)
        self._check_interruption()
        self._exchange = Exchange(
            self._way_out,
            profile.chat_url,
            self._headers(profile, length=sum(map(len, blocks))),
            blocks,
            deadline_s=self._call.deadline_s,
            first_byte_s=self._clocks.first_byte_s,
        )
        status, headers = await self._exchange.send(self._clocks.connect_s)
        self._quiet_s = asyncio.get_running_loop().time() - self._exchange.connected_s
        self._answer.generation_id = storable_name(headers.get("X-Generation-Id"))
        self._tell_generation()
        if status < 300:
            if headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
                raise _UnreadableAnswerError
            return None
        self._has_unknown_fate = False
        said = error_in(await self._error_body(self._exchange))
        self._exchange.close()
        if self._is_left:
            return None
        return self._refuse(self._failure_of(said, status, headers))

    def _headers(self, profile: ProviderProfile, *, length: int) -> Mapping[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(length),
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": "brabo-api",
            **profile.headers,
        }
        if self._call.api_key:
            headers["Authorization"] = f"Bearer {self._call.api_key.reveal()}"
        if self._call.traceparent is not None:
            headers["traceparent"] = self._call.traceparent
        return headers

    async def _error_body(self, exchange: Exchange) -> bytes:
        """As much of it as comes soon: the status says enough without."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._clocks.after_finish_s
        body = bytearray()
        try:
            while len(body) < _LONGEST_ERROR_BYTES and (
                received := await exchange.read(max(0, end_s - loop.time()))
            ):
                body += received
        except (ClockExpiredError, ConnectionBrokenError, InterruptedCallError):
            pass
        return bytes(body[:_LONGEST_ERROR_BYTES])

    async def _read(self, exchange: Exchange) -> None:
        """Read what comes next; only a complete frame ends the silence."""
        loop = asyncio.get_running_loop()
        limit_s = self._clocks.after_finish_s if self._answer.is_finished else self._clocks.idle_s
        started_s = loop.time()
        received = await exchange.read(limit_s - self._quiet_s)
        events = self._body.feed(received) if received else self._body.finish()
        if not events:
            self._quiet_s += loop.time() - started_s
        else:
            self._quiet_s = 0.0
            # Most reads bring one frame, and no more.
            if not (len(events) == 1 and self._take(events[0])) and await self._take_all(events):
                exchange.finish()
                return self._end()
        if self._body.is_page:
            exchange.close()
            return self._end()
        return None if received else self._end_of_body(exchange)

    def _take(self, data: bytes) -> bool:
        """Take a frame in; whether it is one."""
        frame = frames.read_frame(data)
        if frame is None:
            return False
        self._pieces += self._answer.add(frame)
        if not self._has_told_generation:
            self._tell_generation()
        return True

    async def _take_large(self, data: bytes) -> bool:
        """As `_take`, for a frame that would hold the event loop."""
        if len(data) <= frames.LARGE_BYTES:
            return False
        frame = await asyncio.to_thread(frames.read_large_frame, data)
        self._check_interruption()
        if frame is None:
            return False
        self._pieces += self._answer.add(frame)
        return True

    def _tell_generation(self) -> None:
        if self._answer.generation_id is not None:
            self._has_told_generation = True
            self._call.on_generation(self._answer.generation_id)

    async def _take_all(self, events: Iterable[bytes]) -> bool:
        """Take frames in; whether the last of the answer is among them. However many, others get their turn."""
        loop = asyncio.get_running_loop()
        step_end_s = loop.time() + _LONGEST_STEP_S
        for event in events:
            data = event.strip()
            if data == _DONE:
                return True
            if self._take(data) or await self._take_large(data):
                pass
            elif b"\n" in data and not self._body.is_document:
                if await self._take_all(BytesIO(data)):  # frames that only a line end parts
                    return True
            elif data:
                self._drop(data)
            if loop.time() >= step_end_s:
                await asyncio.sleep(0)
                self._check_interruption()
                step_end_s = loop.time() + _LONGEST_STEP_S
        return False

    def _drop(self, data: bytes) -> None:
        if not self._dropped_frames:  # one line a call: a provider that sends nothing else would fill the log
            _log.warning("provider_frame_dropped", provider=self._call.provider, frame_bytes=len(data))
        self._dropped_frames += 1
        self._on_dropped_frame(self._call.provider)
        if self._dropped_frames > _MOST_DROPPED_FRAMES:
            raise _UnreadableAnswerError

    def _check_interruption(self) -> None:
        if self._interruption is not None or self._is_left:
            raise InterruptedCallError

    def _end_of_body(self, exchange: Exchange) -> None:
        if self._answer.is_finished or self._body.is_document or not self._body.is_stream:
            exchange.finish()
            self._end()
        else:
            self._fail(FailureCode.CONNECTION)

    def _break_off(self, code: FailureCode) -> None:
        """The connection is silent or gone: after a finish reason that is an end like another."""
        if self._exchange is None or not self._answer.is_finished:
            self._fail(code)
            return
        self._exchange.close()
        self._end()

    def _end(self) -> None:
        """The provider has said all it had to say."""
        self._is_complete = True
        if not self._answer.has_choices:
            self._has_unknown_fate = self._answer.generation_id is not None
        self._conclude(None if self._answer.has_choices else FailureCode.BAD_ANSWER)

    def _fail(self, code: FailureCode) -> None:
        """The call is cut, by them or by us."""
        self._conclude(code)
        if self._exchange is not None:
            self._exchange.close()

    def _conclude(self, code: FailureCode | None) -> None:
        """Nothing more is read. An error that the provider named is the failure, whatever came after it."""
        self._is_over = True
        self._pieces.extend(self._answer.end())
        if self._answer.error:
            self._failure = self._failure_of(self._answer.error, None, {})
        elif code is not None:
            self._failure = TurnFailure(code, provider=self._call.provider)

    def _refuse(self, failure: TurnFailure) -> None:
        self._is_over = True
        self._failure = failure

    def _leave(self) -> None:
        self._is_left = True
        if self._exchange is not None:
            self._exchange.interrupt()
            self._exchange.close()

    def _failure_of(
        self, error: Mapping[str, object] | str | None, status: int | None, headers: Mapping[str, str]
    ) -> TurnFailure:
        return failure_of(
            self._call.provider,
            error,
            http_status=status,
            headers=headers,
            api_key=self._call.api_key,
            now=self._now(),
        )

    def _may_be_charged(self) -> bool:
        if self._exchange is None or not self._exchange.is_sent:
            return False
        if self._answer.has_content or self._answer.usage is not None:
            return True
        return self._has_unknown_fate and not self._answer.has_error
