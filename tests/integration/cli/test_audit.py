"""`brabo audit`: it finds what is damaged, and nothing else."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from adapters.in_memory.ledger import BudgetEntry
from adapters.postgres.audit import PostgresAudit
from adapters.postgres.invariants import INVARIANTS
from domain.agents import area_of
from domain.budget import BudgetScope
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome
from domain.usage import Cost, Prices, TokenCounts
from tests.support.ledger_worlds import PostgresWorld, postgres_world, start_of, usage_of

NOW = datetime.now(UTC)


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    """Books with a bit of everything in them, all in order."""
    async with postgres_world(database_url) as world:
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000, spent_micros=100))
        world.add_budget(BudgetEntry(BudgetScope.SESSION, world.session_id, 10**9))
        await settle_some(world)
        yield world


async def settle_some(world: PostgresWorld) -> None:
    for _ in range(5):
        await world.recorder.record(a_turn(world))
    cut = a_turn(world, awaits_truth=True, is_estimated=True, generation_id="gen-1")
    await world.recorder.record(cut)
    await world.corrections.book_truth(cut.turn_id, Decimal("0.000123"))


def a_turn(world: PostgresWorld, **changes: Any) -> Settlement:
    turn_id = uuid4()
    start = start_of(
        turn_id=turn_id,
        session_id=world.session_id,
        project_id=world.project_id,
        started_at=NOW,
        due_at=NOW + timedelta(minutes=10),
    )
    usage = usage_of(
        world,
        id=turn_id,
        tokens=TokenCounts(1_000, 0),
        cost=Cost(150, Prices(150_000, 0), is_implicit=False, catalogue_micros=None),
        created_at=NOW,
        **changes,
    )
    end = TurnEnd(start=start, outcome=TurnOutcome.ANSWERED, ended_at=NOW, router=RouterOutcome.FREE)
    return Settlement(turn_id=turn_id, usage=usage, end=end)


def audit(database_url: str, *options: str) -> tuple[int, dict[str, list[str]]]:
    """The exit status, and the ids that break each invariant that is broken."""
    done = subprocess.run(
        [sys.executable, "-m", "entrypoints.cli.main", "audit", "--json", *options],
        env={**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["invariants"]
    return done.returncode, {
        one["name"]: [violation["id"] for violation in one["violations"]]
        for one in found
        if one["violations"]
    }


def broken(world: PostgresWorld) -> dict[str, list[str]]:
    findings = PostgresAudit(world.database_url).run(since=None)
    return {one.name: [row.id for row in one.violations] for one in findings if one.violations}


async def test_books_in_order_are_said_to_be(world: PostgresWorld) -> None:
    assert audit(world.database_url) == (0, {})
    run = world.execute("SELECT violations, failed FROM audit_runs")
    assert run == [{"violations": 0, "failed": []}]


def rows_of(world: PostgresWorld) -> list[UUID]:
    return [row["id"] for row in world.execute("SELECT id FROM token_usage ORDER BY id")]


DAMAGES = {
    "project-counters": (
        "UPDATE budgets SET spent_micros = spent_micros + 1 WHERE project_id IS NOT NULL RETURNING id"
    ),
    "session-counters": (
        "UPDATE budgets SET spent_micros = spent_micros - 1 WHERE session_id IS NOT NULL RETURNING id"
    ),
    "area-counters": "UPDATE agent_areas SET spent_micros = spent_micros + 5 WHERE key = 'dev' RETURNING id",
    "holds": "UPDATE budgets SET held_micros = 7 WHERE project_id IS NOT NULL RETURNING id",
    "holds-end": (
        "INSERT INTO budget_holds (turn_id, budget_id, granted_micros, chat_micros, router_micros)"
        " SELECT turn_id, gen_random_uuid(), 0, 0, 0 FROM turn_starts LIMIT 1 RETURNING turn_id"
    ),
    "prices": (
        "UPDATE token_usage SET input_tokens = input_tokens + 100"
        " WHERE id = (SELECT min(id::text)::uuid FROM token_usage) RETURNING id"
    ),
    "charges": (
        "UPDATE token_usage SET charged_usd = 1 WHERE id = (SELECT min(id::text)::uuid FROM token_usage) RETURNING id"
    ),
    "corrections": (
        "UPDATE usage_corrections SET usage_id = gen_random_uuid() WHERE delta_micros <> 0 RETURNING usage_id"
    ),
    "truths": "UPDATE usage_truths SET truth_micros = truth_micros + 1 RETURNING usage_id",
    "thresholds": (
        "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, metadata)"
        " SELECT aggregate_type, aggregate_id, event_type, payload, metadata FROM outbox_events LIMIT 1"
        " RETURNING aggregate_id"
    ),
    "ends": (
        "UPDATE turn_starts SET ended_at = NULL, outcome = NULL, due_at = now() - interval '16 minutes'"
        " WHERE turn_id = (SELECT min(turn_id::text)::uuid FROM turn_starts) RETURNING turn_id"
    ),
    "not-negative": (
        "UPDATE token_usage SET latency_ms = -1 WHERE id = (SELECT min(id::text)::uuid FROM token_usage) RETURNING id"
    ),
}


def test_each_invariant_has_a_damage() -> None:
    assert set(DAMAGES) == {invariant.name for invariant in INVARIANTS}


@pytest.mark.parametrize("invariant", DAMAGES)
async def test_each_damage_is_found_with_its_id(world: PostgresWorld, invariant: str) -> None:
    world.add_area("dev", make_area())
    ((damaged,),) = [tuple(row.values()) for row in world.execute(DAMAGES[invariant])]

    status, found = audit(world.database_url)

    assert status == 1
    assert str(damaged) in found[invariant]
    assert world.execute("SELECT failed FROM audit_runs")[0]["failed"] == list(found)


def make_area() -> Any:
    from adapters.in_memory.ledger import AreaEntry

    return AreaEntry()


async def test_since_leaves_older_rows_out_and_sums_whole(world: PostgresWorld) -> None:
    world.execute("UPDATE token_usage SET latency_ms = -1, created_at = '2026-01-01T00:00Z'")
    world.execute("UPDATE budgets SET spent_micros = spent_micros + 1 WHERE project_id IS NOT NULL")

    assert set(audit(world.database_url)[1]) == {"not-negative", "project-counters"}
    assert set(audit(world.database_url, "--since", "2026-01-02")[1]) == {"project-counters"}


async def test_the_statements_can_be_run_by_anyone(world: PostgresWorld) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "entrypoints.cli.main", "audit", "--sql"],
        env={**os.environ, "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    statements = [part for part in done.stdout.split(";\n") if part.strip()]
    assert len(statements) == len(INVARIANTS)
    with psycopg.connect(world.database_url) as connection:
        for statement in statements:
            assert connection.execute(statement.encode()).fetchall() == []


SLUGS = [
    "dev-lead",
    "dev-",
    "dev",
    "dev-x-y",
    "qa",
    "qa-automacao",
    "qa-x",
    "infra",
    "infra-workflows",
    "escriba",
    "",
]


async def test_areas_are_mapped_as_turns_map_them(world: PostgresWorld) -> None:
    for slug in SLUGS:
        ((mapped,),) = [
            tuple(row.values()) for row in world.execute("SELECT brabo_api_area_of(%s) AS area", slug)
        ]
        assert mapped == area_of(slug), slug


# Openings


def other_programs_turn(
    connection: psycopg.Connection, world: PostgresWorld, session_id: UUID, micros: int
) -> None:
    """A row first, then the counters, as the existing program does it."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO token_usage (session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
            " output_tokens, cost_micros, input_price_per_million_micros, latency_ms)"
            " VALUES (%s, 'agent', 'dev-api', 'openrouter', 'm', 1000000, 0, %s, %s, 5)",
            (session_id, micros, micros),
        )
        connection.execute(
            "UPDATE budgets SET spent_micros = spent_micros + %s WHERE project_id = %s OR session_id = %s",
            (micros, world.project_id, session_id),
        )
        connection.execute(
            "UPDATE agent_areas SET spent_micros = spent_micros + %s WHERE project_id = %s AND key = 'dev'",
            (micros, world.project_id),
        )


async def test_another_programs_rows_budgets_and_deletions_keep_the_sums(world: PostgresWorld) -> None:
    with psycopg.connect(world.database_url, autocommit=True) as other:
        other_programs_turn(other, world, world.session_id, 11)
        second = world.add_session(world.project_id)
        other_programs_turn(other, world, second, 13)
        other.execute("INSERT INTO budgets (session_id, limit_micros) VALUES (%s, 500)", (second,))
        world.add_area("dev", make_area())
        other_programs_turn(other, world, second, 17)
        await world.recorder.record(a_turn(world, session_id=second, actor_id="dev-api", area="dev"))
        assert broken(world) == {}
        other.execute("DELETE FROM sessions WHERE id = %s", (second,))
        assert broken(world) == {}
        await world.recorder.record(a_turn(world, session_id=second, actor_id="dev-api", area="dev"))
        assert world.execute("SELECT count(*) AS parked FROM parked_usage") == [{"parked": 1}]
        assert broken(world) == {}
        other.execute("DELETE FROM sessions WHERE id = %s", (world.session_id,))
    assert broken(world) == {}


async def test_budgets_made_under_load_keep_the_sums(world: PostgresWorld) -> None:
    """Row locks would let a row in between each time."""
    stop = asyncio.Event()
    sessions = [world.add_session(world.project_id) for _ in range(12)]
    world.execute("DELETE FROM budgets")

    def as_the_existing_program(at: int) -> int:
        done = 0
        with psycopg.connect(world.database_url, autocommit=True) as other:
            while not stop.is_set():
                try:
                    other_programs_turn(other, world, sessions[(at + done) % len(sessions)], 1)
                except psycopg.errors.DeadlockDetected:
                    continue
                done += 1
        return done

    async def as_ours() -> int:
        done = 0
        while not stop.is_set():
            assert await world.recorder.record(a_turn(world, session_id=sessions[done % len(sessions)]))
            done += 1
        return done

    async def budgets() -> Iterator[None]:
        with psycopg.connect(world.database_url, autocommit=True) as maker:
            for session_id in sessions:
                await asyncio.sleep(0.1)
                await asyncio.to_thread(
                    maker.execute,
                    "INSERT INTO budgets (session_id, limit_micros) VALUES (%s, 10)",
                    (session_id,),
                )
                assert await asyncio.to_thread(broken, world) == {}
            await asyncio.to_thread(
                maker.execute,
                "INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 10)",
                (world.project_id,),
            )
            await asyncio.sleep(0.1)
        stop.set()
        return iter(())

    done = await asyncio.gather(
        *(asyncio.to_thread(as_the_existing_program, at) for at in range(4)),
        *(as_ours() for _ in range(4)),
        budgets(),
    )

    assert broken(world) == {}
    assert all(isinstance(count, int) and count > 5 for count in done[:8]), done
