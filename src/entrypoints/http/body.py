"""Reading a request's body, within bounds."""

import asyncio
from typing import Final

from litestar.types import Receive

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
_MAX_DROPPED_BYTES: Final = 256 * 1024 * 1024
_MAX_DROPPING_S: Final = 30.0


class BodyTooLarge(Exception):  # noqa: N818 - it names what happened
    """The body is over the limit; what was still coming has been dropped."""


class TooLate(Exception):  # noqa: N818 - it names what happened
    """The drain ended before the body was complete."""


class ClientGone(Exception):  # noqa: N818 - it names what happened
    """The connection was closed before the body was complete."""


async def read_body(receive: Receive, ended: asyncio.Future[None]) -> bytes | bytearray:
    """The whole body. Raises BodyTooLarge, ClientGone, or TooLate when `ended` is done first.

    A body over the limit is read on and dropped, within bounds, since an engine that is still sending would
    see a broken connection instead of the answer.
    """
    if ended.done():
        raise TooLate
    is_reading = True

    def give_up(_: asyncio.Future[None]) -> None:
        if is_reading:
            patience.reschedule(0)

    # A task to wait for beside `ended` would cost more than all of an ordinary body's reading.
    try:
        async with asyncio.timeout(None) as patience:
            ended.add_done_callback(give_up)
            try:
                return await _whole_body(receive)
            finally:
                is_reading = False
                ended.remove_done_callback(give_up)
    except TimeoutError:
        raise TooLate from None


async def _whole_body(receive: Receive) -> bytes | bytearray:
    body: bytes | bytearray
    body, more = await _next_piece(receive)
    while more and len(body) <= MAX_BODY_BYTES:
        if isinstance(body, bytes):  # most bodies have one piece: only a second one needs room to grow
            body = bytearray(body)
        piece, more = await _next_piece(receive)
        body += piece
    if len(body) > MAX_BODY_BYTES:
        dropped = len(body)
        del body
        if more:
            await _drop_the_rest(receive, dropped)
        raise BodyTooLarge
    return body


async def _next_piece(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    return message["body"], message["more_body"]


async def _drop_the_rest(receive: Receive, dropped: int) -> None:
    try:
        async with asyncio.timeout(_MAX_DROPPING_S):
            more = True
            while more and dropped < _MAX_DROPPED_BYTES:
                piece, more = await _next_piece(receive)
                dropped += len(piece)
    except TimeoutError:
        return
