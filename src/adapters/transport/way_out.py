"""The HTTP client of the hot call: one pool of connections, and requests that are sent once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Final, Self, TypeVar

import aiohttp

from domain.secret import Secret

_Result = TypeVar("_Result")

_FIRST_BLOCK_BYTES: Final = 32 * 1024
"""aiohttp drains after 64 KiB: a first block below that is asked after as soon as it is written, and not later."""
_LONGEST_HEADER_BYTES: Final = 64 * 1024
_DRAIN_S: Final = 1.0
_DRAIN_BYTES: Final = 64 * 1024


class ConnectionBrokenError(Exception):
    """No connection was made, or it was lost, or what came is not HTTP."""


class ClockExpiredError(Exception):
    """A clock ran out."""


class InterruptedCallError(Exception):
    """`Exchange.interrupt` was called."""


def fits_a_header(key: Secret) -> bool:
    """Whether a key can be sent as a bearer at all."""
    return key.reveal().isascii() and key.reveal().isprintable()


class WayOut:
    """The process's connections to its providers, opened in the running loop at the first call."""

    def __init__(self, *, keep_alive_s: float = 15.0) -> None:
        self._keep_alive_s = keep_alive_s
        self._session: aiohttp.ClientSession | None = None
        self._drains: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. For when no call is under way: a pending read would wait on for its clocks."""
        for drain in self._drains:
            drain.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def session(self) -> aiohttp.ClientSession:
        """The one session of this process."""
        if self._session is None or self._session.closed:
            reuse = aiohttp.TraceConfig()
            reuse.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keep_alive_s),
                timeout=aiohttp.ClientTimeout(),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,
                trace_configs=[reuse],
                auto_decompress=False,  # a few bytes could inflate to more than the event loop has time for
                max_line_size=_LONGEST_HEADER_BYTES,
                max_field_size=_LONGEST_HEADER_BYTES,
            )
        return self._session

    def give_back(self, response: aiohttp.ClientResponse) -> None:
        """Let a response whose answer is complete end by itself, briefly, so that its connection can be used again."""
        if response.content.is_eof():
            return
        drain = asyncio.create_task(_drain(response))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)


class Exchange:
    """One POST and its answer, ended by whatever comes first: its end, a clock, an interruption, its owner.

    The request is never repeated, but once when a kept connection turns out closed and not a byte was written to it.
    """

    def __init__(
        self,
        way_out: WayOut,
        url: str,
        headers: Mapping[str, str],
        body: Sequence[bytes],
        *,
        deadline_s: float,
        first_byte_s: float,
    ) -> None:
        """`body` is one block or more, `deadline_s` on the event loop's clock; `first_byte_s` counts once connected."""
        self._way_out = way_out
        self._url = url
        self._headers = headers
        self._body = body
        self._deadline_s = deadline_s
        self._first_byte_s = first_byte_s
        self._loop = asyncio.get_running_loop()
        self._timeout: asyncio.Timeout | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._error: aiohttp.ClientError | None = None
        self._alarm = _Alarm(self._loop, self._ring)
        self._is_interrupted = False
        self._is_connection_reused = False
        self.connected_s = self._loop.time()
        """When there was a connection to write the request to, on the event loop's clock."""
        self.is_sent = False
        """A byte of the request has been written."""

    async def send(self, connect_s: float) -> tuple[int, Mapping[str, str]]:
        """Send the request; status and headers of the answer.

        Raises:
            ConnectionBrokenError: see there.
            ClockExpiredError: no connection within `connect_s`, no headers within the time for the first byte, or the
                deadline.
            InterruptedCallError: see there.
        """
        try:
            self._response = await self._wait(self._post(), connect_s)
        except ConnectionBrokenError:
            if self.is_sent or not self._is_connection_reused:
                raise
            self._response = await self._wait(self._post(), connect_s)
        _wake_when_closed(self._response)
        return self._response.status, self._response.headers

    async def read(self, silence_s: float) -> bytes:
        """What has arrived, or what arrives next; empty at the end of the answer.

        Raises:
            ConnectionBrokenError: the answer was cut; what arrived before was given out first.
            ClockExpiredError: nothing within `silence_s`, or the deadline.
            InterruptedCallError: see there.
        """
        assert self._response is not None, "read() comes after send()"
        if self._is_interrupted:
            raise InterruptedCallError
        now_s = self._loop.time()
        if now_s >= self._deadline_s:
            raise ClockExpiredError
        content, connection = self._response.content, self._response.connection
        try:
            if self._error is not None:
                raise self._error
            if connection is None or connection.transport is None:
                if content.exception() is None and ((received := content.read_nowait()) or content.at_eof()):
                    return received
                raise aiohttp.ServerDisconnectedError
            self._alarm.set(min(self._deadline_s, now_s + silence_s))
            return await content.readany()
        except aiohttp.ClientError as error:
            return self._rest(error)
        finally:
            self._alarm.unset()

    def interrupt(self) -> None:
        """End the pending wait, or the next one, with `InterruptedCallError`."""
        self._is_interrupted = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._loop.time())
        if self._response is not None:
            self._response.content.set_exception(InterruptedCallError())

    def finish(self) -> None:
        """The answer is complete: give the connection back, unless a clock or an interruption has ended it too."""
        self._alarm.stop()
        if self._response is None:
            return
        if self._response.content.exception() is None:
            self._way_out.give_back(self._response)
        else:
            self._response.close()

    def close(self) -> None:
        """Close the connection at once, unless the answer was read to its end."""
        self._alarm.stop()
        if self._response is not None:
            self._response.close()

    async def _post(self) -> aiohttp.ClientResponse:
        self._is_connection_reused = False
        return await self._way_out.session().post(
            self._url,
            data=_Upload(self, self._body),
            headers=self._headers,
            allow_redirects=False,
            trace_request_ctx=self,
        )

    async def _wait(self, awaitable: Awaitable[_Result], limit_s: float) -> _Result:
        timeout = asyncio.timeout_at(self._end(limit_s))
        self._timeout = timeout
        try:
            async with timeout:
                return await awaitable
        except (aiohttp.ClientError, UnicodeError) as error:
            # The second is said of a host that can be no name at all.
            raise ConnectionBrokenError from error
        except TimeoutError as error:
            if not timeout.expired():
                raise ConnectionBrokenError from error
            raise (InterruptedCallError if self._is_interrupted else ClockExpiredError) from None
        finally:
            self._timeout = None

    def _end(self, limit_s: float) -> float:
        now_s = self._loop.time()
        return now_s if self._is_interrupted else min(self._deadline_s, now_s + limit_s)

    def _rest(self, error: aiohttp.ClientError) -> bytes:
        """What had arrived before the connection broke: aiohttp keeps it, and its public methods raise instead."""
        assert self._response is not None
        rest = self._response.content._read_nowait(-1)
        if not rest:
            raise ConnectionBrokenError from error
        self._error = error
        return rest

    def _ring(self) -> None:
        assert self._response is not None, "the alarm is set for reads only"
        self._response.content.set_exception(ClockExpiredError())

    def note_connection(self) -> None:
        """There is a connection: from here on it is the first byte that is waited for."""
        self.connected_s = self._loop.time()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._end(self._first_byte_s))

    def note_reuse(self) -> None:
        """The connection is a kept one."""
        self._is_connection_reused = True


class _Alarm:
    """Rings when a wait has lasted too long. One timer serves all the waits of a call: each only moves its end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._end_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def set(self, end_s: float) -> None:
        """Ring at that time on the loop's clock."""
        self._end_s = end_s
        if self._timer is None or end_s < self._timer_s:
            self._start_timer(end_s)

    def unset(self) -> None:
        """The wait is over."""
        self._end_s = None

    def stop(self) -> None:
        """No wait follows."""
        self._end_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._end_s is None:
            return
        if self._loop.time() < self._end_s:
            self._start_timer(self._end_s)
        else:
            self._ring()


class _Upload:
    """The body as aiohttp asks for it. Being asked for a second block says that the first was written."""

    def __init__(self, exchange: Exchange, body: Sequence[bytes]) -> None:
        first, *others = body
        self._exchange = exchange
        self._blocks = [
            block for block in (first[:_FIRST_BLOCK_BYTES], first[_FIRST_BLOCK_BYTES:], *others) if block
        ]
        self._written = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._written == 0:
            self._exchange.note_connection()
        else:
            self._exchange.is_sent = True
        if self._written == len(self._blocks):
            raise StopAsyncIteration
        self._written += 1
        return self._blocks[self._written - 1]


def _wake_when_closed(response: aiohttp.ClientResponse) -> None:
    """Let whoever reads the answer know that its connection is gone.

    aiohttp forgets its reader when the framing of an answer breaks in the middle, and only closes the connection.
    """
    protocol = response.connection.protocol if response.connection is not None else None
    closed = protocol.closed if protocol is not None else None
    if closed is None:
        return

    def wake(done: asyncio.Future[None]) -> None:
        done.exception()  # asked for, so that nobody is told that it was not
        if not response.content.is_eof() and response.content.exception() is None:
            response.content.set_exception(aiohttp.ServerDisconnectedError())

    closed.add_done_callback(wake)


async def _note_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: object) -> None:
    exchange = context.trace_request_ctx
    assert isinstance(exchange, Exchange)
    exchange.note_reuse()


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the little that follows a complete answer; a connection that brings more, or is slow to end, is closed."""
    left_bytes = _DRAIN_BYTES
    try:
        async with asyncio.timeout(_DRAIN_S):
            while left_bytes > 0 and (received := await response.content.readany()):
                left_bytes -= len(received)
    except (TimeoutError, aiohttp.ClientError):
        pass
    finally:
        response.close()
