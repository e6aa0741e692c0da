"""Reading a request's body, within bounds."""

import asyncio
from typing import Final

from litestar.types import Receive

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
_MAX_DROPPED_BYTES: Final = 256 * 1024 * 1024
_MAX_DROPPING_S: Final = 30.0


class BodyTooLarge(Exception):  # noqa: N818 - it names what happened
    """The body is over the limit; what was still coming has been dropped."""


class ClientGone(Exception):  # noqa: N818 - it names what happened
    """The connection was closed before the body was complete."""


async def read_body(receive: Receive) -> bytearray:
    """The whole body. Raises BodyTooLarge or ClientGone.

    A body over the limit is read on and dropped, within bounds, since an engine that is still sending would
    see a broken connection instead of the answer.
    """
    body = bytearray()
    more = True
    while more:
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
