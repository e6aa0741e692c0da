"""A budget that is set while turns settle: nothing lost, nothing announced twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg
import pytest

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from adapters.postgres import budgets, usage_recorder
from adapters.postgres.settle import SETTLE
from application.ports.agent_areas import AgentArea
from application.ports.budgets import BudgetOwner, OwnedBudget, UnknownOwner
from domain.budget import BudgetPolicy, BudgetScope
from domain.usage import TokenUsage
from tests.support.ledger_worlds import PostgresWorld, postgres_world, row_of, usage_of

WAITING = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""
TURNS = 600
COST_MICROS = 10


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database_url) as world:
        yield world


def add_budget(world: PostgresWorld, limit_micros: int, spent_micros: int, last: int) -> BudgetOwner:
    world.add_budget(
        BudgetEntry(
            BudgetScope.PROJECT,
            world.project_id,
            limit_micros,
            spent_micros=spent_micros,
            last_threshold_notified=last,
        )
    )
    return BudgetOwner(world.project_id)


async def until_it_waits_for_a_lock(world: PostgresWorld, task: "asyncio.Task[Any]") -> None:
    with psycopg.connect(world.database_url, autocommit=True) as watcher:
        while not watcher.execute(WAITING).fetchall():
            assert not task.done(), task
            await asyncio.sleep(0.01)


def settle(connection: psycopg.Connection, usage: TokenUsage) -> None:
    records = msgspec.json.encode([usage_recorder._row_of(usage)]).decode()
    connection.execute(SETTLE, {"rows": records, "ends": "[]"})


def announced(world: PostgresWorld) -> list[tuple[int, int, int]]:
    payloads = [each["payload"] for each in world.announcements()]
    return [(each["threshold"], each["spentMicros"], each["limitMicros"]) for each in payloads]


async def test_a_change_that_waited_for_a_settlement_starts_from_what_it_left(world: PostgresWorld) -> None:
    owner = add_budget(world, 100, 0, 0)
    with psycopg.connect(world.database_url) as connection:
        settle(connection, usage_of(world, 95))
        change = asyncio.create_task(world.budgets.set(owner, limit_micros=130, policy=None))
        await until_it_waits_for_a_lock(world, change)
        connection.commit()

    assert await change == OwnedBudget(130, 95, BudgetPolicy.BLOCK, 70)
    assert announced(world) == [(70, 95, 100), (90, 95, 100)]
    assert await world.recorder.record(row_of(usage_of(world, 25)))
    assert announced(world) == [(70, 95, 100), (90, 95, 100), (90, 120, 130)]


async def test_a_settlement_that_waited_for_a_change_goes_by_the_new_limit(world: PostgresWorld) -> None:
    add_budget(world, 100, 65, 0)
    with psycopg.connect(world.database_url) as connection:
        connection.execute(
            budgets._SET_PROJECTS,
            {"project_id": world.project_id, "limit_micros": 1_000, "policy": "allow", "is_strict": None},
        )
        settling = asyncio.create_task(world.recorder.record(row_of(usage_of(world, 30))))
        await until_it_waits_for_a_lock(world, settling)
        connection.commit()

    assert await settling is True
    found = await world.budgets.find(BudgetOwner(world.project_id))
    assert found == OwnedBudget(1_000, 95, BudgetPolicy.ALLOW, 0)
    assert announced(world) == []


async def test_a_settlement_that_waited_announces_again_what_was_armed_meanwhile(
    world: PostgresWorld,
) -> None:
    add_budget(world, 100, 95, 90)
    with psycopg.connect(world.database_url) as connection:
        connection.execute(
            budgets._SET_PROJECTS,
            {"project_id": world.project_id, "limit_micros": 200, "policy": None, "is_strict": None},
        )
        settling = asyncio.create_task(world.recorder.record(row_of(usage_of(world, 50))))
        await until_it_waits_for_a_lock(world, settling)
        connection.commit()

    assert await settling is True
    assert announced(world) == [(70, 145, 200)]


async def test_a_session_that_is_being_deleted_is_waited_for_and_then_unknown(world: PostgresWorld) -> None:
    with psycopg.connect(world.database_url) as connection:
        connection.execute("DELETE FROM sessions WHERE id = %s", (world.session_id,))
        change = asyncio.create_task(
            world.budgets.set(BudgetOwner(world.project_id, world.session_id), limit_micros=1, policy=None)
        )
        await until_it_waits_for_a_lock(world, change)
        connection.commit()

    with pytest.raises(UnknownOwner):
        await change


async def test_a_ceiling_that_is_set_while_an_area_settles_loses_nothing(world: PostgresWorld) -> None:
    world.add_area("dev", AreaEntry(None, 5))
    with psycopg.connect(world.database_url) as connection:
        settle(connection, usage_of(world, 30, area="dev"))
        change = asyncio.create_task(world.areas.set_limit(world.project_id, "dev", 100))
        await until_it_waits_for_a_lock(world, change)
        connection.commit()

    assert await change == AgentArea("dev", 100, 35)


async def test_many_changes_among_many_settlements(world: PostgresWorld) -> None:
    """Each limit is set once, so that a threshold of it is announced once at the most."""
    owner = add_budget(world, 1, 0, 0)
    limits = iter(range(100, 10**9, 37))
    is_over = False

    async def change() -> int:
        changes = 0
        while not is_over:
            limit = next(limits)
            await world.budgets.set(owner, limit_micros=limit, policy=None)
            changes += 1
            await asyncio.sleep(0.001)
        return changes

    changing = [asyncio.create_task(change()) for _ in range(2)]
    recorded = []
    for _ in range(TURNS // 20):
        recorded += await asyncio.gather(
            *(world.recorder.record(row_of(usage_of(world, COST_MICROS))) for _ in range(20))
        )
    is_over = True
    changes = sum(await asyncio.gather(*changing))

    assert recorded == [True] * TURNS
    found = await world.budgets.find(owner)
    assert found is not None
    assert found.spent_micros == TURNS * COST_MICROS
    assert changes > 20
    per_limit = Counter((threshold, limit) for threshold, _, limit in announced(world))
    assert len(per_limit) >= 3  # those of the first limit; how many more depends on who is quicker
    assert max(per_limit.values()) == 1
    for threshold, spent, limit in announced(world):
        assert spent * 100 >= limit * threshold
