"""Placing holds on a real database: whom a lock keeps waiting, and what a grant that came too late leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from adapters.in_memory.ledger import BudgetEntry, HoldEntry
from application.ports.holds import HoldRequest
from application.ports.turn_context import ContextUnavailable
from domain.budget import BudgetScope
from domain.settlement import Settlement, TurnEnd, TurnOutcome, TurnStart
from tests.support.ledger_worlds import PostgresWorld, postgres_world, row_of, start_of, usage_of


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database_url) as world:
        yield world


def add_budget(world: PostgresWorld, project_id: UUID, limit_micros: int = 1_000) -> UUID:
    entry = BudgetEntry(BudgetScope.PROJECT, project_id, limit_micros, is_strict=True)
    world.add_budget(entry)
    return entry.id


def request(project_id: UUID, budget_id: UUID, *, start: TurnStart | None = None) -> HoldRequest:
    start = start or start_of(project_id=project_id)
    return HoldRequest(start=start, budget_ids=[budget_id], chat_micros=90, router_micros=10)


async def test_a_budget_that_is_locked_keeps_turns_of_its_own_project_waiting_and_no_others(
    world: PostgresWorld,
) -> None:
    locked = add_budget(world, world.project_id)
    others = [(project_id := world.add_project(), add_budget(world, project_id)) for _ in range(8)]
    starts = [start_of(project_id=world.project_id) for _ in range(50)]
    with psycopg.connect(world.database_url) as connection:
        connection.execute("SELECT id FROM budgets WHERE id = %s FOR UPDATE", (locked,))
        waiting = [
            asyncio.create_task(world.holds.place(request(world.project_id, locked, start=start)))
            for start in starts
        ]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(1):
            granted = await asyncio.gather(*(world.holds.place(request(*other)) for other in others))
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        for start in starts:
            end = TurnEnd(start=start, outcome=TurnOutcome.LEFT, ended_at=start.started_at)
            assert await world.recorder.record(Settlement(turn_id=start.turn_id, usage=None, end=end))
    await asyncio.sleep(1)  # longer than the server waits for a lock on behalf of one who has hung up

    assert granted == [None] * 8
    assert {type(each) for each in refused} == {ContextUnavailable}
    assert world.budget(BudgetScope.PROJECT, world.project_id).held_micros == 0


async def test_a_grant_that_came_after_the_turns_end_is_released_and_no_other(world: PostgresWorld) -> None:
    budget_id = add_budget(world, world.project_id)
    ended, unseen, running, called, just_ended = (start_of(project_id=world.project_id) for _ in range(5))
    for start in (ended, unseen, running, called, just_ended):
        assert await world.holds.place(request(world.project_id, budget_id, start=start)) is None
    for start, router, ago_s in (
        (ended, None, 60),
        (unseen, "unseen", 60),
        (called, None, 60),
        (just_ended, None, 0),
    ):
        world.execute(
            "UPDATE turn_starts SET ended_at = now() - make_interval(secs => %s), router_outcome = %s"
            " WHERE turn_id = %s",
            ago_s,
            router,
            start.turn_id,
        )
    row = usage_of(world, 30, id=called.turn_id, turn_id=called.turn_id, awaits_truth=True, is_estimated=True)
    assert await world.recorder.record(row_of(row))

    released = await world.holds.release_strays(), await world.holds.release_strays()

    assert released == (2, 0)
    assert world.hold(ended.turn_id, budget_id) == HoldEntry(100, 0, 0, has_ended=True)
    assert world.hold(unseen.turn_id, budget_id) == HoldEntry(100, 0, 10, has_ended=True)
    assert world.hold(called.turn_id, budget_id) == HoldEntry(100, 60, 10, 30)
    for start in (running, just_ended):
        assert world.hold(start.turn_id, budget_id) == HoldEntry(100, 90, 10)
    assert world.budget(BudgetScope.PROJECT, world.project_id).held_micros == 10 + 70 + 2 * 100
