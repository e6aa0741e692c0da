"""Leaving without losing a turn: a process of its own, real signals, a turn in each of its phases."""

import asyncio
import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest

from adapters.journal.other_journals import FileJournals
from entrypoints.container import Container
from entrypoints.http.server import make_server
from entrypoints.settings import read_settings
from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.database_proxy import database_proxy
from tests.support.embedded import servers_below
from tests.support.engine import http_client, ledger, parse_frames, post, request_body, select
from tests.support.live import HEADERS, environment, free_port
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

    def close(self) -> None:
        self._connection.close()

    def read(self) -> Got:
        response = self._connection.getresponse()
        raw = response.read()
        self.close()
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

    def waits_for_locks(self, kind: str) -> int:
        """How many statements wait for a lock on a table (`relation`) or on a row (`transactionid`)."""
        found = select(
            self.database_url,
            "SELECT count(*) AS waits FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE datname = current_database() AND NOT granted AND locktype = %s",
            kind,
        )
        waits = found[0]["waits"]
        assert isinstance(waits, int)
        return waits


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

    scene.together.will(act)
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: scene.finished_upstream == len(PRESENTATIONS))
    return turn


async def waiting_for_its_budget(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    scene.lock("SELECT 1 FROM budgets WHERE id = %s FOR UPDATE", world.project_budget_id)
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: (entry := scene.entry(mark)) is not None and entry["status"] == "finished")
    await eventually(lambda: scene.waits_for_locks("transactionid") > 0)
    return turn


async def reading_its_context(scene: Scene, world: World, stream: bool, mark: str) -> "asyncio.Task[Got]":
    scene.context_lock = scene.context_lock or scene.lock("LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE")
    turn = asyncio.create_task(take(scene.api, world, stream=stream, mark=mark))
    await eventually(lambda: scene.waits_for_locks("relation") > 0)  # one read, or one for each
    await asyncio.sleep(0.1)
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
    worlds = {
        phase: [scene_world(scene.database_url, PHASES[phase].provider) for _ in PRESENTATIONS]
        for phase in PHASES
    }
    begun = {}
    for name, phase in PHASES.items():
        turns = await asyncio.gather(
            *(
                phase.begin(scene, world, presentation == "stream", mark_of(name, presentation))
                for world, presentation in zip(worlds[name], PRESENTATIONS, strict=True)
            )
        )
        for world, presentation, turn in zip(worlds[name], PRESENTATIONS, turns, strict=True):
            begun[f"{name}, {presentation}"] = (world, turn)
    return begun


def mark_of(phase: str, presentation: str) -> str:
    return f"{phase} {presentation}".replace(" ", "-")


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
                BRABO_DRAIN_GRACE_S="0.1",
                BRABO_DRAIN_S="10" if ends_within_the_drain else "0.2",
            )
        )
        wait_ms = 2_500 if ends_within_the_drain else ENDLESS_MS
        scene = Scene(api, simulator, together, database_url, wait_ms, locks)
        turns = await begin_all(scene)

        api.send(signal.SIGTERM)
        if ends_within_the_drain:
            await asyncio.sleep(0.3)  # the grace is over
            for half in scene.half_sent:
                half.send_rest()
            locks.close()
        else:
            # The drain is over; the lock on the budgets outlasts what a row may take.
            await asyncio.sleep(0.5)
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
    # What is on disk may still be written in the last moment, or is left for the next process.
    for presentation in PRESENTATIONS:
        name = f"waiting for its budget, {presentation}"
        expected[name] = (expected[name][0], seen[name][1])
    assert seen == expected
    assert status == 0
    if not ends_within_the_drain:
        assert took_s < 0.3 + 3
        for presentation in PRESENTATIONS:
            assert got[f"between tokens, {presentation}"].answer["message"]["content"] == "um "
            refused = got[f"sending its body, {presentation}"]
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) > 0
        unsent = {mark_of("reading its context", presentation) for presentation in PRESENTATIONS}
        assert not unsent & {entry["mark"] for entry in simulator.bill()["entries"]}
        kept = {line["id"] for line in api.lines() if line["event"] == "usage_kept_for_later"}
        locked = [got[f"waiting for its budget, {presentation}"] for presentation in PRESENTATIONS]
        assert {one.answer["turnId"] for one in locked} <= kept


async def test_the_grace_takes_turns_and_what_follows_refuses_them_with_the_listener_open(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"mark": "[mark:long]", "reply": {"text": ["um ", "dois"], "between_ms": 3_000}})
    async with (
        served_api(
            tmp_path,
            DATABASE_URL=database_url,
            OPENROUTER_API_BASE=simulator.base_url,
            BRABO_DRAIN_GRACE_S="1.5",
        ) as api,
        http_client(base_url=api.url, headers=HEADERS) as kept,
    ):
        url = api.turn_url(world.session_id)
        before = await kept.post(url, content=body_of(world))
        assert before.status_code == 200
        assert "connection" not in before.headers
        long = asyncio.create_task(take(api, world, stream=True, mark="long"))
        await eventually(lambda: len(simulator.requests()) == 2)

        api.send(signal.SIGTERM)
        not_ready = await api.until_ready(503)
        noticed_s = time.monotonic() - api.signalled_s
        taken = [await kept.post(url, content=body_of(world)), await kept.post(url, content=body_of(world))]
        streamed = await take(api, world, stream=True)
        others = [
            await kept.get("/healthz"),
            await kept.get("/nowhere"),
            await kept.post(url, content=b"{", headers=HEADERS),
            await kept.post(url, content=body_of(world), headers={"X-Brabo-Service-Token": "wrong"}),
        ]
        taken_s = time.monotonic() - api.signalled_s
        await asyncio.sleep(max(0.0, 1.7 - taken_s))
        sent_before = len(simulator.requests())
        refused = [await kept.post(url, content=body_of(world)) for _ in range(2)]
        refused.append(await kept.post(api.turn_url(world.session_id, stream=True), content=body_of(world)))
        last = await long
        status, _ = await api.ended(within_s=5)

    assert noticed_s < 0.5
    assert not_ready.json()["reason"] == "draining"
    assert taken_s < 1.5, "too slow to say anything of the grace"
    assert [answer.status_code for answer in taken] == [200, 200]
    assert (streamed.status, streamed.answer["error"]) == (200, None)
    assert [answer.status_code for answer in others] == [200, 404, 400, 403]
    assert [answer.status_code for answer in refused] == [503] * 3
    for answer in refused:
        assert answer.headers["content-type"] == "application/problem+json"
        assert int(answer.headers["retry-after"]) > 0
    assert all(
        headers["connection"] == "close"
        for headers in (
            streamed.headers,
            *(answer.headers for answer in (not_ready, *taken, *others, *refused)),
        )
    )
    assert len(simulator.requests()) == sent_before
    assert (last.answer["error"], last.answer["message"]["content"]) == (None, "um dois")
    assert status == 0


async def test_the_defaults_are_gone_in_time_whoever_runs_or_takes_nothing(
    database_url: str, simulator: Simulator, tmp_path: Path
) -> None:
    """With the defaults: idle, after the grace alone; with turns that never end, before it would be killed."""
    worlds = [scene_world(database_url) for _ in range(3)]
    endless = {"reply": {"text": ["um ", "dois"], "between_ms": ENDLESS_MS}}
    simulator.script({"mark": "[mark:endless]", "times": 2, **endless})
    simulator.script({"mark": "[mark:unread]", "reply": {"text": ["x" * 20_000] * 2_000}})
    variables = {"DATABASE_URL": database_url, "OPENROUTER_API_BASE": simulator.base_url}
    async with (
        served_api(tmp_path / "idle", **variables) as idle,
        served_api(tmp_path / "busy", **variables) as busy,
    ):
        turns = [
            asyncio.create_task(take(busy, world, stream=stream, mark="endless"))
            for world, stream in zip(worlds, (False, True), strict=False)
        ]
        unread = HalfSent(busy.turn_url(worlds[2].session_id, stream=True), body_of(worlds[2], "unread"))
        unread.send_rest()
        await eventually(lambda: len(simulator.requests()) == 3)
        await asyncio.sleep(0.5)

        idle.send(signal.SIGTERM)
        busy.send(signal.SIGTERM)
        idle_status, idle_s = await idle.ended(within_s=15)
        got = [await turn for turn in turns]
        busy_status, busy_s = await busy.ended(within_s=15)
        unread.close()

    print(f"\nwith the defaults: idle gone after {idle_s:.2f} s, busy after {busy_s:.2f} s")
    assert (idle_status, busy_status) == (0, 0)
    assert 5 <= idle_s < 7
    assert 25 <= busy_s < MUST_BE_GONE_S
    assert [outcome(one) for one in got] == ["draining", "draining"]
    assert [len(ledger(database_url, world)) for world in worlds] == [1, 1, 1]


async def test_a_reader_that_takes_nothing_is_recorded_before_the_end_however_late_its_row(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": ["x" * 20_000] * 2_000}})
    variables = {"BRABO_DRAIN_GRACE_S": "0", "BRABO_DRAIN_S": "0.2"}
    with ExitStack() as locks:
        async with served_api(
            tmp_path, DATABASE_URL=database_url, OPENROUTER_API_BASE=simulator.base_url, **variables
        ) as api:
            unread = HalfSent(api.turn_url(world.session_id, stream=True), body_of(world))
            unread.send_rest()
            await eventually(lambda: simulator.requests() != [])
            await asyncio.sleep(0.5)
            lock = locks.enter_context(psycopg.connect(database_url))
            lock.execute("SELECT 1 FROM budgets FOR UPDATE")

            api.send(signal.SIGTERM)
            await asyncio.sleep(1.7)
            lock.rollback()
            status, took_s = await api.ended(within_s=15)
            unread.close()

    assert status == 0
    assert took_s < 0.2 + 3
    assert len(ledger(database_url, world)) == 1


async def test_sigint_has_no_grace(database_url: str, simulator: Simulator, tmp_path: Path) -> None:
    variables = {"DATABASE_URL": database_url, "OPENROUTER_API_BASE": simulator.base_url}
    async with served_api(tmp_path, BRABO_DRAIN_GRACE_S="60", **variables) as api:
        api.send(signal.SIGINT)
        status, took_s = await api.ended(within_s=10)

    assert status == 0
    assert took_s < 2


@pytest.mark.parametrize("held_up_by", ["the provider", "a silent database", "a locked budget"])
async def test_a_second_signal_ends_at_once_and_no_spend_without_a_row_or_an_entry(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path, held_up_by: str
) -> None:
    simulator.script(
        {"mark": "[mark:endless]", "times": 9, "reply": {"text": ["um ", "dois"], "between_ms": ENDLESS_MS}}
    )
    with ExitStack() as locks:
        async with (
            database_proxy(database_url) as proxy,
            served_api(tmp_path, DATABASE_URL=proxy.url, OPENROUTER_API_BASE=simulator.base_url) as api,
        ):
            turns = [
                asyncio.create_task(take(api, world, stream=stream, mark="endless"))
                for stream in (True, False)
            ]
            await eventually(lambda: len(simulator.bill()["entries"]) == len(turns))
            if held_up_by == "a silent database":
                proxy.fall_silent()
                turns.append(asyncio.create_task(take(api, world, stream=False)))
            if held_up_by == "a locked budget":
                holder = locks.enter_context(psycopg.connect(database_url))
                holder.execute("SELECT 1 FROM budgets FOR UPDATE")
                turns += [asyncio.create_task(take(api, world, stream=stream)) for stream in (False, True)]
                await eventually(lambda: len(simulator.bill()["entries"]) == len(turns))
            await asyncio.sleep(0.3)

            api.send(signal.SIGTERM)
            await asyncio.sleep(0.3)
            api.send(signal.SIGTERM if held_up_by == "the provider" else signal.SIGINT)
            late = []
            if held_up_by != "a silent database":  # the listener is open for a moment
                mark = f"endless] {'palavra ' * 25_000}"  # takes a while to be counted
                late = [asyncio.create_task(take(api, world, stream=True, mark=mark)) for _ in range(3)]
            _, took_s = await api.ended(within_s=15)
            streamed, *others = await asyncio.gather(*turns, return_exceptions=True)
            await asyncio.gather(*late, return_exceptions=True)
            charged = {entry["id"] for entry in simulator.bill()["entries"]}

    assert took_s < 2
    json_turns = [one for one in others if isinstance(one, Got)]
    assert len(json_turns) >= 1
    if held_up_by == "the provider":
        assert [outcome(one) for one in json_turns] == ["draining"]
        assert isinstance(streamed, Got)
        assert outcome(streamed) == "draining"
    else:
        assert isinstance(streamed, httpx.RemoteProtocolError)
        assert {(one.status, one.answer["status"]) for one in json_turns} == {(503, 503)}
        assert {one.headers["content-type"] for one in json_turns} == {"application/problem+json"}
    assert {one.headers["connection"] for one in json_turns} == {"close"}
    written = {row["generation_id"] for row in ledger(database_url, world)}
    kept = {turn.generation_id for turn in FileJournals(tmp_path / "data" / "journal").all_turns()}
    print(
        f"\n{len(charged)} calls: {len(written)} rows, {len(kept)} in the journal; gone after {took_s:.2f} s"
    )
    assert charged <= written | kept


async def test_a_storm_of_signals_loses_no_spend_and_no_answer(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"times": 6, "reply": {"text": ["um ", "dois"], "between_ms": ENDLESS_MS}})
    async with served_api(
        tmp_path, DATABASE_URL=database_url, OPENROUTER_API_BASE=simulator.base_url, BRABO_DRAIN_GRACE_S="0"
    ) as api:
        turns = [asyncio.create_task(take(api, world, stream=stream)) for stream in (False, True) * 3]
        await eventually(lambda: len(simulator.bill()["entries"]) == len(turns))
        await asyncio.sleep(0.3)
        sent = await storm(api.process)
        status, _ = await api.ended(within_s=0.1)
        got = await asyncio.gather(*turns)

    assert sent >= 10, "too few to say anything"
    assert status == 0
    assert [outcome(one) for one in got] == ["draining"] * len(turns)
    assert len(ledger(database_url, world)) == len(turns)


async def storm(process: "subprocess.Popen[bytes]") -> int:
    """Ask a process to leave in every way, again and again until it is gone; how often."""
    sent = 0
    deadline_s = time.monotonic() + 20
    while process.poll() is None:
        assert time.monotonic() < deadline_s, "it does not end"
        process.send_signal((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[sent % 3])
        sent += 1
        await asyncio.sleep(0.01)
    return sent


async def test_after_a_kill_the_next_start_serves_and_its_embedded_database_hangs_nothing(
    simulator: Simulator, tmp_path: Path
) -> None:
    variables = {"OPENROUTER_API_BASE": simulator.base_url, "BRABO_PORT": str(free_port())}
    async with served_api(tmp_path, **variables) as killed:
        killed.send(signal.SIGKILL)
        await killed.ended(within_s=5)
    async with served_api(tmp_path, **variables) as api:
        signalled_s = time.monotonic()
        await storm(api.process)
        took_s = time.monotonic() - signalled_s
        status, _ = await api.ended(within_s=0.1)

    assert took_s < 5
    assert status == 0
    assert "Stopping PostgreSQL" in api.log.read_text(encoding="utf-8")
    assert servers_below(tmp_path) == []


def test_the_event_loop_ends_with_nothing_left_in_it(tmp_path: Path) -> None:
    """A turn begins its settlement as it is cut off, and that may begin something too: each is told of its end."""
    settings = read_settings(environment(tmp_path))
    container = Container(settings=settings, database_url="postgresql://nobody@127.0.0.1:1/nowhere")
    cut: list[str] = []

    async def work(*names: str) -> None:
        name, *later = names
        try:
            await asyncio.Event().wait()
        finally:
            cut.append(name)
            if later:
                begun.append(asyncio.ensure_future(work(*later)))

    begun: list[asyncio.Task[None]] = []

    async def process() -> None:
        server = make_server(container)
        begun.append(asyncio.ensure_future(server.serve([socket.create_server(("127.0.0.1", 0))])))
        while not server.started:
            await asyncio.sleep(0.01)
        server.server_state.tasks.add(asyncio.ensure_future(work("turn", "settlement", "write")))
        await asyncio.sleep(0)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(30)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(process())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    assert cut == ["turn", "settlement", "write"]


def test_idle_connections_are_kept_for_ten_minutes_at_least(tmp_path: Path) -> None:
    """An engine that reuses one as it closes loses a turn."""
    settings = read_settings(environment(tmp_path))

    server = make_server(Container(settings=settings, database_url="postgresql://nobody@127.0.0.1/nowhere"))

    assert server.config.timeout_keep_alive >= 600
