"""The two presentations of one turn: its answer as JSON, or its events as SSE."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Final

from litestar.types import HTTPSendMessage, Receive, Send

from application.turn import RoutingStarted, TextDeltas, Turn, TurnFinished
from entrypoints.http.wire import ROUTING_STARTED, encode_answer, encode_deltas, encode_final

_JSON_HEAD: Final = [(b"content-type", b"application/json")]
_STREAM_HEAD: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the frames back
]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long silence may last, in seconds: the contract's constants, which tests lower."""

    keep_alive_s: float = 15.0
    """Engines and proxies hang up on silence: something is sent at least this often."""
    stuck_reader_s: float = 30.0
    """A reader that takes nothing for this long counts as gone."""
    stuck_at_the_end_s: float = 0.5
    """The same once the drain has ended the turn: its row has to be written before the process ends."""


async def present_json(
    turn: Turn, ended: asyncio.Future[None], patience: Patience, receive: Receive, send: Send
) -> None:
    """The answer as one JSON object, with blanks before it when it takes long."""

    async def answer() -> None:
        async with aclosing(turn.events()) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    await outlet.write_last(_JSON_HEAD, encode_answer(event))

    async def blank() -> None:
        await outlet.head(_JSON_HEAD)
        await outlet.fill(b" ")

    outlet = _Outlet(send)
    await _while_read(receive, outlet, ended, patience, answer, blank)


async def present_stream(
    turn: Turn, ended: asyncio.Future[None], patience: Patience, receive: Receive, send: Send
) -> None:
    """The events as SSE frames: each delta at once, the answer last, comments where nothing else goes out."""

    async def relay() -> None:
        await outlet.head(_STREAM_HEAD)
        async with aclosing(turn.events()) as events:
            async for event in events:
                if isinstance(event, TextDeltas):
                    frames = encode_deltas(event.pieces)
                    await (outlet.write(frames) if isinstance(frames, bytes) else outlet.write_all(frames))
                elif isinstance(event, RoutingStarted):
                    await outlet.write(ROUTING_STARTED)
                else:
                    # The row is written by now; the body ends with this frame, since engines wait for its end.
                    await outlet.write_last(_STREAM_HEAD, encode_final(event))

    async def comment() -> None:
        await outlet.fill(b":\n\n")

    outlet = _Outlet(send)
    await _while_read(receive, outlet, ended, patience, relay, comment)


class _Outlet:
    """The way to the engine. It knows since when nothing has gone out, and since when a send has been stuck."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._now = asyncio.get_running_loop().time
        self._has_head = False
        self._has_ended = False
        self._sends_under_way = 0
        self._is_within_frame = False
        self._since_s = self._now()

    async def head(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head, once."""
        if not self._has_head:
            self._has_head = True
            await self._deliver({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, piece: bytes) -> None:
        """Send a piece of the body, unless the body has ended."""
        if not self._has_ended:
            await self._deliver({"type": "http.response.body", "body": piece, "more_body": True})

    async def write_all(self, parts: Iterator[bytes]) -> None:
        """Send the parts one by one: encoding a long text takes a while, and others get their turn in between."""
        self._is_within_frame = True
        await self.write(next(parts))
        for part in parts:
            await asyncio.sleep(0)
            await self.write(part)
        self._is_within_frame = False

    async def write_last(self, headers: list[tuple[bytes, bytes]], parts: Iterator[bytes]) -> None:
        """Send the head if it is still due, the parts, and the end of the body."""
        first = next(parts)
        second = next(parts, None)
        if second is None and not self._has_head:
            headers = [*headers, (b"content-length", b"%d" % len(first))]
        await self.head(headers)
        if second is not None:
            await self.write_all(chain([first, second], parts))
            first = b""
        self._has_ended = True
        await self._deliver({"type": "http.response.body", "body": first, "more_body": False})

    async def fill(self, filler: bytes) -> None:
        """Send what breaks a silence: never between the parts of what is being sent."""
        if self._is_within_frame:
            self._since_s = self._now()
        else:
            await self.write(filler)

    def silence(self) -> tuple[bool, float]:
        """Whether a send is stuck, and for how many seconds nothing has gone out."""
        return self._sends_under_way > 0, self._now() - self._since_s

    async def _deliver(self, message: HTTPSendMessage) -> None:
        if not self._sends_under_way:
            self._since_s = self._now()
        self._sends_under_way += 1
        try:
            await self._send(message)
        finally:
            self._sends_under_way -= 1
            self._since_s = self._now()


async def _while_read(
    receive: Receive,
    outlet: _Outlet,
    ended: asyncio.Future[None],
    patience: Patience,
    work: Callable[[], Awaitable[None]],
    break_silence: Callable[[], Awaitable[None]],
) -> None:
    """Run `work` until it ends or the engine is gone, and let no silence grow too long.

    Gone: the connection was closed, or a send has been stuck for too long. `work` is then cancelled, which closes its
    upstream call.
    """
    leaving = asyncio.ensure_future(_until_gone(receive))
    await asyncio.sleep(0)
    if leaving.done():  # it left while its context was read: nothing is sent to a provider
        return
    working = asyncio.ensure_future(work())
    sounds: set[asyncio.Future[None]] = set()
    try:
        while not working.done() and not leaving.done():
            is_stuck, silent_s = outlet.silence()
            stuck_s = patience.stuck_at_the_end_s if ended.done() else patience.stuck_reader_s
            limit_s = stuck_s if is_stuck else patience.keep_alive_s
            if silent_s < limit_s:
                # Which limit holds may change while waiting: look again after the shorter of the two.
                wait_s = min(limit_s - silent_s, patience.keep_alive_s, stuck_s)
                awaited = {working, leaving} if ended.done() else {working, leaving, ended}
                await asyncio.wait(awaited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            elif is_stuck:
                break
            else:
                sound = asyncio.ensure_future(break_silence())
                sounds.add(sound)
                sound.add_done_callback(sounds.discard)
                await asyncio.sleep(0)
    finally:
        for task in (working, leaving, *sounds):
            task.cancel()
        await asyncio.wait({working, leaving})
    if not working.cancelled():
        working.result()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
