"""Silence, readers that leave or take nothing, ceilings: whoever leaves pays for what was made."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from application.turn import Turn, TurnFinished
from entrypoints.http.presentations import Patience, present_json, present_stream
from entrypoints.simulator import Simulator
from tests.support.brabo_data import World
from tests.support.engine import http_client, ledger, parse_frames, request_body, take_turn
from tests.support.live import HEADERS, LiveApi, environment, live_api

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


@asynccontextmanager
async def impatient_api(
    database_url: str, simulator: Simulator, tmp_path: Path, patience: Patience, **over: str
) -> AsyncIterator[LiveApi]:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, **over)
    async with live_api(database_url, environ, patience) as api:
        yield api


async def eventually(look: Any, *, within_s: float = 5.0) -> Any:
    """What `look` gives once it gives something true."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)
    return found


async def test_silence_before_the_json_is_broken_by_the_head_and_blanks(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": "oi", "first_token_ms": 1000}})
    async with impatient_api(database_url, simulator, tmp_path, Patience(keep_alive_s=0.2)) as api:
        started = time.monotonic()
        async with (
            http_client() as client,
            client.stream(
                "POST", api.turn_url(world.session_id), json=request_body(world), headers=HEADERS
            ) as response,
        ):
            head_s = time.monotonic() - started
            raw = await response.aread()

    assert head_s < 0.8
    assert 2 <= len(raw) - len(raw.lstrip(b" ")) <= 6
    assert json.loads(raw)["message"]["content"] == "oi"


async def test_silence_on_the_stream_is_broken_by_comments(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": ["um", "dois"], "first_token_ms": 700, "between_ms": 700}})
    async with impatient_api(database_url, simulator, tmp_path, Patience(keep_alive_s=0.2)) as api:
        got = await take_turn(api, world, stream=True)

    assert got.raw.count(b":\n\n") >= 4
    assert got.deltas == ["um", "dois"]


async def test_each_piece_leaves_as_soon_as_it_comes(
    api: LiveApi, simulator: Simulator, world: World
) -> None:
    simulator.script({"reply": {"text": [f"p{at} " for at in range(5)], "between_ms": 200}})
    arrivals = []
    async with (
        http_client() as client,
        client.stream(
            "POST", api.turn_url(world.session_id, stream=True), json=request_body(world), headers=HEADERS
        ) as response,
    ):
        async for piece in response.aiter_raw():
            arrivals += [time.monotonic()] * piece.count(b'"type":"delta"')

    assert len(arrivals) == 5
    assert all(later - earlier > 0.1 for earlier, later in pairwise(arrivals))


@ROUTES
async def test_an_engine_that_leaves_pays_for_what_was_made(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    simulator.script({"reply": {"text": [f"palavra{at} " for at in range(100)], "between_ms": 50}})
    client = http_client()
    sending = asyncio.create_task(
        client.post(api.turn_url(world.session_id, stream=stream), json=request_body(world), headers=HEADERS)
    )
    await eventually(lambda: simulator.bill()["entries"])
    await asyncio.sleep(0.4)

    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await client.aclose()

    entry = await eventually(
        lambda: [one for one in simulator.bill()["entries"] if one["status"] == "cancelled"]
    )
    (row,) = await eventually(lambda: ledger(database_url, world))
    assert row["estimated"] is True
    assert row["generation_id"] == entry[0]["id"]
    assert 0 < row["output_tokens"] < 100
    assert row["input_tokens"] > 0


async def test_a_reader_that_takes_nothing_counts_as_gone_and_the_provider_is_not_read_on(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    piece = "x" * 20_000
    simulator.script({"reply": {"text": [piece] * 1500}})
    content = json.dumps(request_body(world)).encode()
    async with impatient_api(database_url, simulator, tmp_path, Patience(stuck_reader_s=1.0)) as api:
        host, port = api.url.removeprefix("http://").split(":")
        reader = socket.create_connection((host, int(port)))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = (
            f"POST /internal/sessions/{world.session_id}/llm-turn-stream HTTP/1.1\r\nhost: x\r\n"
            f"x-brabo-service-token: {HEADERS['X-Brabo-Service-Token']}\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        await asyncio.to_thread(reader.sendall, head.encode() + content)

        rows = await eventually(lambda: ledger(database_url, world), within_s=10)
        entries = await eventually(
            lambda: [one for one in simulator.bill()["entries"] if one["status"] == "cancelled"], within_s=10
        )
        reader.close()

    assert rows[0]["estimated"] is True
    assert len(entries) == 1


async def test_a_reader_that_is_slow_gets_everything(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": ["y" * 20_000] * 300}})
    async with impatient_api(database_url, simulator, tmp_path, Patience(stuck_reader_s=2.0)) as api:
        url = api.turn_url(world.session_id, stream=True)
        raw = b""
        async with (
            http_client(timeout=30) as client,
            client.stream("POST", url, json=request_body(world), headers=HEADERS) as response,
        ):
            async for piece in response.aiter_raw():
                raw += piece
                if len(raw) < 1_000_000:
                    await asyncio.sleep(0.05)

    assert len(parse_frames(raw)[-1]["message"]["content"]) == 6_000_000


@ROUTES
async def test_a_turn_ends_at_its_ceiling_and_is_recorded(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path, stream: bool
) -> None:
    ceilings = {"BRABO_TURN_CEILING_MS": "600", "BRABO_STREAM_CEILING_MS": "600"}
    simulator.script({"reply": {"text": [f"p{at} " for at in range(100)], "between_ms": 50}})
    async with impatient_api(database_url, simulator, tmp_path, Patience(), **ceilings) as api:
        started = time.monotonic()
        got = await take_turn(api, world, stream=stream)
        took_s = time.monotonic() - started

    assert 0.5 < took_s < 2
    assert got.answer["errorCode"] == "timeout"
    assert got.answer["message"]["content"].startswith("p0 ")
    (row,) = ledger(database_url, world)
    assert row["estimated"] is True


@ROUTES
async def test_comments_are_no_life(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path, stream: bool
) -> None:
    simulator.script({"fault": "comments-only;ms=50"})
    async with impatient_api(
        database_url, simulator, tmp_path, Patience(), LLM_REQUEST_TIMEOUT_MS="500"
    ) as api:
        started = time.monotonic()
        got = await take_turn(api, world, stream=stream)
        took_s = time.monotonic() - started

    assert got.answer["errorCode"] == "timeout"
    assert 0.4 < took_s < 6
    (row,) = ledger(database_url, world)
    assert (row["estimated"], row["output_tokens"]) == (True, 0)


async def test_nothing_is_put_between_the_parts_of_a_long_answer() -> None:
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        await asyncio.sleep(0.02)  # longer than the silence that may be

    async def receive() -> Any:
        await asyncio.Event().wait()

    text = "é" * (6 * 2**20)
    turn = FinishedTurn(TurnFinished(turn_id=UUID(int=1), text=text))
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    for present in (present_json, present_stream):
        sent.clear()
        await present(cast(Turn, turn), ended, Patience(keep_alive_s=0.01), receive, send)
        assert len(sent) > 6
        answer = json.loads(b"".join(sent).strip().removeprefix(b"data: "))
        assert answer["message"]["content"] == text


class FinishedTurn:
    def __init__(self, answer: TurnFinished) -> None:
        self._answer = answer

    async def events(self) -> AsyncIterator[TurnFinished]:
        yield self._answer
