"""What a process that died had begun is settled by another one, on this host or elsewhere."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg

from adapters.postgres.audit import PostgresAudit
from entrypoints.simulator import Simulator
from tests.support.brabo_data import World
from tests.support.engine import http_client, ledger, parse_frames, request_body, select
from tests.support.live import HEADERS
from tests.support.served import ServedApi, eventually, served_api

TOOLS = [{"name": name, "description": name, "parameters": {"type": "object"}} for name in ("ler", "editar")]


@asynccontextmanager
async def process(
    folder: Path, database_url: str, simulator: Simulator, journal: Path, **over: str
) -> AsyncIterator[ServedApi]:
    variables = {
        "DATABASE_URL": database_url,
        "OPENROUTER_API_BASE": simulator.base_url,
        "BRABO_JOURNAL_DIR": str(journal),
        "BRABO_RECONCILE": "off",
        **over,
    }
    async with served_api(folder, **variables) as api:
        yield api


@asynccontextmanager
async def a_turn_under_way(api: ServedApi, world: World, **over: Any) -> AsyncIterator[AsyncIterator[bytes]]:
    """A streamed turn, its first delta read."""
    body = request_body(world, agentId="dev-api", **over)
    async with (
        http_client(timeout=30) as client,
        client.stream(
            "POST", api.turn_url(world.session_id, stream=True), json=body, headers=HEADERS
        ) as response,
    ):
        pieces = response.aiter_raw()
        async for piece in pieces:
            if b"delta" in piece:
                break
        yield pieces


def starts(database_url: str) -> list[dict[str, Any]]:
    return select(database_url, "SELECT * FROM turn_starts ORDER BY started_at")


def assert_in_order(database_url: str) -> None:
    assert [one for one in PostgresAudit(database_url).run(since=None) if one.violations] == []


SLOW = {"text": ["um ", "dois ", "tres"], "between_ms": 60_000}


async def test_a_killed_process_leaves_its_turn_to_the_next_one(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": SLOW})
    journal = tmp_path / "journal"
    async with (
        process(tmp_path / "first", database_url, simulator, journal) as first,
        a_turn_under_way(first, world),
    ):
        first.send(signal.SIGKILL)
        await first.ended(5)
    assert ledger(database_url, world) == []
    simulator.advance_clock(60_000)

    async with process(tmp_path / "second", database_url, simulator, journal):
        await eventually(lambda: ledger(database_url, world), within_s=20)

    (row,) = ledger(database_url, world)
    (call,) = simulator.bill()["entries"]
    # The provider had it on record by its id, which the journal held.
    assert row["generation_id"] == call["id"]
    assert row["charged_usd"] == Decimal(call["cost"])
    assert row["estimated"] is False
    (start,) = starts(database_url)
    assert (start["turn_id"], start["outcome"]) == (row["id"], "abandoned")
    assert_in_order(database_url)
    assert (next(journal.iterdir()) / "lock").exists()


async def test_a_paused_process_is_not_dead_and_settles_its_turn_itself(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": ["um ", "dois"], "between_ms": 8_000}})
    journal = tmp_path / "journal"
    async with (
        process(tmp_path / "first", database_url, simulator, journal) as first,
        a_turn_under_way(first, world) as rest,
    ):
        first.send(signal.SIGSTOP)
        try:
            async with process(tmp_path / "second", database_url, simulator, journal):
                await asyncio.sleep(7)  # it has looked for the dead by now
                assert ledger(database_url, world) == []
        finally:
            first.send(signal.SIGCONT)
        raw = b"".join([piece async for piece in rest])
    assert b'"type":"final"' in raw
    (row,) = ledger(database_url, world)
    assert row["estimated"] is False
    assert [start["outcome"] for start in starts(database_url)] == ["answered"]
    assert_in_order(database_url)


async def test_another_host_settles_by_the_rows_when_the_heart_beats_no_more(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": SLOW})
    journal = tmp_path / "first-host"
    async with (
        process(tmp_path / "first", database_url, simulator, journal) as first,
        a_turn_under_way(first, world),
    ):
        await eventually(
            lambda: [start for start in starts(database_url) if start["generation_id"]], within_s=5
        )
        first.send(signal.SIGKILL)
        await first.ended(5)
    shutil.rmtree(journal)  # its disk is its own

    ceilings = {
        "BRABO_STREAM_CEILING_MS": "2000",
        "BRABO_TURN_CEILING_MS": "2000",
        "BRABO_DRAIN_GRACE_S": "0",
        "BRABO_DRAIN_S": "1",
    }
    elsewhere = tmp_path / "second-host"
    async with process(tmp_path / "second", database_url, simulator, elsewhere, **ceilings):
        simulator.advance_clock(60_000)
        await eventually(lambda: ledger(database_url, world), within_s=25)

    (row,) = ledger(database_url, world)
    assert row["generation_id"] == simulator.bill()["entries"][0]["id"]
    assert [start["outcome"] for start in starts(database_url)] == ["abandoned"]
    assert_in_order(database_url)


async def test_a_turn_killed_while_the_router_is_asked_has_the_routers_part_only(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE workspaces SET tool_router_enabled = true")
    simulator.script({"path": "decisions", "fault": "delay-headers;ms=20000"})
    journal = tmp_path / "journal"
    async with process(
        tmp_path / "first", database_url, simulator, journal, TOOL_ROUTER_TIMEOUT_MS="20000"
    ) as first:
        body = request_body(world, agentId="dev-api", tools=TOOLS)
        async with http_client(timeout=30) as client:
            asking = asyncio.create_task(
                client.post(first.turn_url(world.session_id), json=body, headers=HEADERS)
            )
            await eventually(lambda: simulator.bill()["entries"], within_s=5)
            first.send(signal.SIGKILL)
            await first.ended(5)
            await asyncio.wait({asking})
            assert asking.exception() is not None

    async with process(tmp_path / "second", database_url, simulator, journal):
        await eventually(lambda: [one for one in starts(database_url) if one["ended_at"]], within_s=20)

    (row,) = ledger(database_url, world)
    assert (row["model_name"], row["estimated"], row["generation_id"]) == ("typesafe/jev-1.13", True, None)
    (start,) = starts(database_url)
    assert (start["outcome"], start["router_outcome"]) == ("abandoned", "charged")
    assert start["router_usage_id"] == row["id"]
    assert_in_order(database_url)


async def test_what_the_database_did_not_take_is_written_by_the_next_process(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script({"reply": {"text": ["um ", "dois"], "between_ms": 500}})
    journal = tmp_path / "journal"
    lock = psycopg.connect(database_url)
    async with process(tmp_path / "first", database_url, simulator, journal) as first:
        async with a_turn_under_way(first, world) as rest:
            lock.execute("LOCK TABLE token_usage IN EXCLUSIVE MODE")
            raw = b"".join([piece async for piece in rest])
        # It is on disk, and the engine has its answer.
        assert parse_frames(b"data: {}\n\n" + raw[raw.index(b"data:") :])[-1]["type"] == "final"
        first.send(signal.SIGKILL)
        await first.ended(5)
    lock.rollback()
    lock.close()
    before = len(ledger(database_url, world))

    async with process(tmp_path / "second", database_url, simulator, journal):
        await eventually(lambda: ledger(database_url, world), within_s=20)
    (row,) = ledger(database_url, world)
    assert before == 0
    assert row["estimated"] is False
    assert [start["outcome"] for start in starts(database_url)] == ["answered"]
    assert_in_order(database_url)
