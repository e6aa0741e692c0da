from typing import Any

import pytest

from entrypoints.http.body import MAX_BODY_BYTES, BodyTooLarge, ClientGone, read_body


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
    assert await read_body(Engine(b"a", b"", b"bc").receive) == b"abc"


async def test_a_body_as_large_as_may_be_is_read() -> None:
    assert len(await read_body(Engine(b"x" * (MAX_BODY_BYTES - 1), b"x").receive)) == MAX_BODY_BYTES


async def test_what_still_comes_of_a_body_over_the_limit_is_taken() -> None:
    engine = Engine(b"x" * MAX_BODY_BYTES, b"x", b"y", b"z")

    with pytest.raises(BodyTooLarge):
        await read_body(engine.receive)

    assert not engine.left


async def test_but_not_without_end() -> None:
    engine = Engine(*[b"x" * MAX_BODY_BYTES] * 8, b"the rest")

    with pytest.raises(BodyTooLarge):
        await read_body(engine.receive)

    assert engine.left == [b"the rest"]


@pytest.mark.parametrize("pieces", [[], [b"x" * MAX_BODY_BYTES, b"x"]])
async def test_a_connection_that_closes_in_between_is_no_body(pieces: list[bytes]) -> None:
    engine = Engine(*pieces)

    async def receive() -> Any:
        message = await engine.receive()
        return message | {"more_body": True} if message["type"] == "http.request" else message

    with pytest.raises(ClientGone):
        await read_body(receive)
