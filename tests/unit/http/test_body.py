import asyncio
from typing import Any

import pytest

from entrypoints.http.body import MAX_BODY_BYTES, BodyTooLarge, ClientGone, TooLate, read_body


def never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


class Engine:
    """Sends these pieces, and is asked for them one by one."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = list(pieces)

    async def receive(self) -> Any:
        if not self.left:
            return {"type": "http.disconnect"}
        piece = self.left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left)}


async def test_the_pieces_are_the_body() -> None:
    assert await read_body(Engine(b"a", b"", b"bc").receive, never()) == b"abc"


async def test_a_body_as_large_as_may_be_is_read() -> None:
    assert len(await read_body(Engine(b"x" * (MAX_BODY_BYTES - 1), b"x").receive, never())) == MAX_BODY_BYTES


async def test_what_still_comes_of_a_body_over_the_limit_is_taken() -> None:
    engine = Engine(b"x" * MAX_BODY_BYTES, b"x", b"y", b"z")

    with pytest.raises(BodyTooLarge):
        await read_body(engine.receive, never())

    assert not engine.left


async def test_but_not_without_end() -> None:
    engine = Engine(*[b"x" * MAX_BODY_BYTES] * 8, b"the rest")

    with pytest.raises(BodyTooLarge):
        await read_body(engine.receive, never())

    assert engine.left == [b"the rest"]


@pytest.mark.parametrize("pieces", [[], [b"x" * MAX_BODY_BYTES, b"x"]])
async def test_a_connection_that_closes_in_between_is_no_body(pieces: list[bytes]) -> None:
    engine = Engine(*pieces)

    async def receive() -> Any:
        message = await engine.receive()
        return message | {"more_body": True} if message["type"] == "http.request" else message

    with pytest.raises(ClientGone):
        await read_body(receive, never())


async def test_a_body_of_one_piece_is_not_copied() -> None:
    piece = b"x" * 1000
    assert await read_body(Engine(piece).receive, never()) is piece


@pytest.mark.parametrize("is_large", [False, True])
async def test_the_end_of_the_drain_is_not_waited_over(is_large: bool) -> None:
    ended, asked = never(), asyncio.Event()

    async def receive() -> Any:
        if is_large and not asked.is_set():
            asked.set()
            return {"type": "http.request", "body": b"x" * (MAX_BODY_BYTES + 1), "more_body": True}
        asked.set()
        return await never()

    reading = asyncio.create_task(read_body(receive, ended))
    await asyncio.wait_for(asked.wait(), 5)
    ended.set_result(None)
    with pytest.raises(TooLate):
        await asyncio.wait_for(reading, 5)
    with pytest.raises(TooLate):
        await read_body(Engine(b"x").receive, ended)


async def test_an_end_beside_the_last_piece_disturbs_nobody() -> None:
    """Both come in one step of the loop, and the body first."""
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    ended, came = never(), never()

    async def receive() -> Any:
        await came
        return {"type": "http.request", "body": b"x", "more_body": False}

    reading = asyncio.create_task(read_body(receive, ended))
    await asyncio.sleep(0)
    came.set_result(None)
    ended.set_result(None)
    assert await reading == b"x"
    await asyncio.sleep(0.01)
    assert complaints == []


async def test_who_cancels_the_reading_is_not_told_that_it_is_late() -> None:
    reading = asyncio.create_task(read_body(never, never()))  # type: ignore[arg-type]  # it never gets a message
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
