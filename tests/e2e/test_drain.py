"""Leaving without losing a turn: a process of its own, real signals, a turn in each of its phases."""

import asyncio
import http.client
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import ledger, parse_frames, post, request_body, select
from tests.support.live import HEADERS
from tests.support.raw_upstream import RawUpstream, Wire, chunked, head
from tests.support.served import ServedApi, eventually, served_api

MODEL = "openai/gpt-4.1-mini"
ENDLESS_MS = 120_000
MUST_BE_GONE_S = 28.0


@dataclass(frozen=True)
class Got:
    """What an engine got in the end: a turn's answer, or the status of what is no turn."""

    status: int
    answer: dict[str, Any]
    headers: httpx.Headers = field(repr=False)


async def take(api: ServedApi, world: World, *, stream: bool, mark: str = "") -> Got:
    got = await post(api.turn_url(world.session_id, stream=stream), body_of(world, mark))
    return Got(got.status, got.answer, got.headers)


def body_of(world: World, mark: str = "") -> bytes:
    messages = [{"role": "user", "content": f"Leia a.ts [mark:{mark}]"}]
    return json.dumps(request_body(world, messages=messages)).encode()


class HalfSent:
    """A turn whose body is still on its way."""

    def __init__(self, url: str, content: bytes) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self._connection.putrequest("POST", parts.path)
        for name, value in HEADERS.items():
            self._connection.putheader(name, value)
        self._connection.putheader("content-length", str(len(content)))
        self._connection.endheaders()
        self._rest = content[len(content) // 2 :]
        self._connection.send(content[: len(content) // 2])

    def send_rest(self) -> None:
        self._connection.send(self._rest)

    def read(self) -> Got:
        response = self._connection.getresponse()
        raw = response.read()
        self._connection.close()
        is_stream = response.headers["content-type"] == "text/event-stream"
        answer = parse_frames(raw)[-1] if is_stream else json.loads(raw)
        return Got(response.status, answer, httpx.Headers(dict(response.headers)))


@dataclass
class Scene:
    """One process, and everything a turn in it can be held up by."""

    api: ServedApi
    simulator: Simulator
    together: RawUpstream
    database_url: str
    wait_ms: int
    """How long a turn stays in its phase if nothing ends it."""
    locks: ExitStack
    half_sent: list[HalfSent] = field(default_factory=list)
    finished_upstream: int = 0
    context_lock: "psycopg.Connection[Any] | None" = None

    def entry(self, mark: str) -> dict[str, Any] | None:
        return next((one for one in self.simulator.bill()["entries"] if one["mark"] == mark), None)

    def lock(self, statement: str, *parameters: object) -> psycopg.Connection[Any]:
        """A transaction that holds what the statement locks until the scene lets go."""
        connection = self.locks.enter_context(psycopg.connect(self.database_url))
        connection.execute(statement.encode(), parameters)
        return connection

    def waiting_for_locks(self, statement_part: str) -> int:
        found = select(
            self.database_url,
            "SELECT count(*) AS waiting FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database() AND query LIKE %s",
            f"%{statement_part}%",
        )
        waiting = found[0]["waiting"]
        assert isinstance(waiting, int)
        return waiting


Begin = Callable[[Scene, World, bool, str], Awaitable["asyncio.Task[Got]"]]


def held_by_the_provider(
    script: Callable[[int], dict[str, Any]], is_reached: Callable[[dict[str, Any]], bool]
) -> Begin:
    async def begin(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
        scene.simulator.script({"mark": f"[mark:{mark}]", **script(scene.wait_ms)})
        turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
        await eventually(lambda: (entry := scene.entry(mark)) is not None and is_reached(entry))
        return turn

    return begin


async def sending_its_body(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    half = HalfSent(scene.api.turn_url(world.session_id, stream=stream), body_of(world, mark))
    scene.half_sent.append(half)
    await asyncio.sleep(0.1)
    return asyncio.create_task(asyncio.to_thread(half.read))


async def waiting_for_usage(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    async def act(wire: Wire) -> None:
        def frame(document: dict[str, Any]) -> bytes:
            return f"data: {json.dumps({'id': 'gen-1', 'model': MODEL, **document})}\n\n".encode()

        said = frame({"choices": [{"index": 0, "delta": {"content": "oi"}}]})
        finish = frame({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        usage = frame({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
        await wire.send(head(), chunked(said, finish, is_ended=False))
        scene.finished_upstream += 1
        await asyncio.sleep(scene.wait_ms / 1000)
        await wire.send(chunked(usage, b"data: [DONE]\n\n"))

    before = scene.finished_upstream
    scene.together.will(act)
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: scene.finished_upstream > before)
    return turn


async def waiting_for_its_budget(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    before = scene.waiting_for_locks("token_usage")
    scene.lock("SELECT 1 FROM budgets WHERE id = %s FOR UPDATE", world.project_budget_id)
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: scene.waiting_for_locks("token_usage") > before)
    return turn


async def reading_its_context(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    scene.context_lock = scene.context_lock or scene.lock("LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE")
    before = scene.waiting_for_locks("FROM sessions")
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: scene.waiting_for_locks("FROM sessions") > before)
    return turn


@dataclass(frozen=True)
class Phase:
    begin: Begin
    left_over: str = "draining"
    """How it ends when the drain ends it: an error code, a status, or nothing where it is too far to be ended."""
    row: bool = True
    """Whether that leaves a row."""
    provider: str = "openrouter"


PHASES = {
    "sending its body": Phase(sending_its_body, left_over="503", row=False),
    "before the headers": Phase(
        held_by_the_provider(lambda ms: {"fault": f"delay-headers;ms={ms}"}, lambda _: True)
    ),
    "before the first token": Phase(
        held_by_the_provider(
            lambda ms: {"fault": f"delay-first-token;ms={ms}"}, lambda entry: entry["headers_sent"]
        )
    ),
    "between tokens": Phase(
        held_by_the_provider(
            lambda ms: {"reply": {"text": ["um ", "dois"], "between_ms": ms}},
            lambda entry: entry["completion_tokens"] > 0,
        )
    ),
    "waiting for usage": Phase(waiting_for_usage, provider="together"),
    "waiting for its budget": Phase(waiting_for_its_budget, left_over="", row=False),
    # Last, since the lock that holds it up holds up every turn that begins later.
    "reading its context": Phase(reading_its_context, row=False),
}
PRESENTATIONS = ("json", "stream")


async def begin_all(scene: Scene) -> dict[str, tuple[World, "asyncio.Task[Got]"]]:
    """A turn in each phase and presentation, by names."""
    names = {f"{phase}, {presentation}": phase for phase in PHASES for presentation in PRESENTATIONS}
    worlds = {name: scene_world(scene.database_url, PHASES[phase].provider) for name, phase in names.items()}
    return {
        name: (
            worlds[name],
            await PHASES[phase].begin(
                scene, worlds[name], name.endswith("stream"), name.replace(" ", "-").replace(",", "")
            ),
        )
        for name, phase in names.items()
    }


def scene_world(database_url: str, provider: str = "openrouter") -> World:
    return create_world(
        database_url,
        provider=provider,
        model_name=MODEL,
        input_price_per_million_micros=400_000,
        output_price_per_million_micros=1_600_000,
    )


def outcome(got: Got) -> str:
    return got.answer.get("errorCode", "") if got.status == 200 else str(got.status)


@pytest.mark.parametrize("ends_within_the_drain", [True, False], ids=["within the drain", "left over"])
async def test_a_turn_in_each_phase_gets_its_answer_and_its_row(
    database_url: str, simulator: Simulator, tmp_path: Path, ends_within_the_drain: bool
) -> None:
    async with AsyncExitStack() as stack:
        together = await stack.enter_async_context(RawUpstream())
        locks = stack.enter_context(ExitStack())
        api = await stack.enter_async_context(
            served_api(
                tmp_path,
                DATABASE_URL=database_url,
                OPENROUTER_API_BASE=simulator.base_url,
                TOGETHER_BASE_URL=together.url,
                BRABO_DRAIN_GRACE_S="0.2",
                BRABO_DRAIN_S="10" if ends_within_the_drain else "0.3",
            )
        )
        wait_ms = 2_500 if ends_within_the_drain else ENDLESS_MS
        scene = Scene(api, simulator, together, database_url, wait_ms, locks)
        turns = await begin_all(scene)

        api.send(signal.SIGTERM)
        if ends_within_the_drain:
            await asyncio.sleep(0.5)  # the grace is over
            for half in scene.half_sent:
                half.send_rest()
            locks.close()
        else:
            await asyncio.sleep(0.8)  # the drain is over; the lock on the budgets outlasts what a row may take
            assert scene.context_lock is not None
            scene.context_lock.rollback()
        got = {name: await turn for name, (_, turn) in turns.items()}
        status, took_s = await api.ended(within_s=10)
        locks.close()

    expected = {}
    for name in got:
        phase = PHASES[name.rpartition(",")[0]]
        expected[name] = ("", True) if ends_within_the_drain else (phase.left_over, phase.row)
    seen = {
        name: (outcome(got[name]), len(ledger(database_url, world)) == 1)
        for name, (world, _) in turns.items()
    }
    print(f"\nturns in {len(PHASES)} phases x {len(PRESENTATIONS)}; gone {took_s:.2f} s after SIGTERM")
    assert seen == expected
    assert status == 0
    if not ends_within_the_drain:
        assert took_s < 0.5 + 3
        for presentation in PRESENTATIONS:
            assert got[f"between tokens, {presentation}"].answer["message"]["content"] == "um "
            refused = got[f"sending its body, {presentation}"]
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) > 0
        unsent = {f"reading-its-context-{presentation}" for presentation in PRESENTATIONS}
        assert not unsent & {entry["mark"] for entry in simulator.bill()["entries"]}
        unrecorded = [line["id"] for line in api.lines() if line["event"] == "usage_unrecorded"]
        locked = [got[f"waiting for its budget, {presentation}"] for presentation in PRESENTATIONS]
        assert sorted(unrecorded) == sorted(one.answer["turnId"] for one in locked)
