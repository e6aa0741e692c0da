"""Settling what was settled, parked or deleted before: each figure counts once, in whatever order it comes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from application.ports.corrections import Verdict
from application.ports.holds import HoldRequest
from domain.budget import BudgetScope
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome
from domain.usage import Cost, Prices, TokenUsage
from tests.support.ledger_worlds import PostgresWorld, postgres_world, row_of, start_of, usage_of


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database_url) as world:
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**9))
        world.add_area("dev", AreaEntry())
        yield world


def costing(usage: TokenUsage, cost_micros: int, **changes: Any) -> TokenUsage:
    """The same row with another figure."""
    cost = Cost(cost_micros, Prices(150_000, 600_000), is_implicit=False, catalogue_micros=None)
    return replace(usage, cost=cost, **changes)


def spent(world: PostgresWorld) -> int:
    return world.budget(BudgetScope.PROJECT, world.project_id).spent_micros


def deltas(world: PostgresWorld) -> list[int]:
    return [
        row["delta_micros"]
        for row in world.execute("SELECT delta_micros FROM usage_corrections ORDER BY ordinal")
    ]


def truth_state(world: PostgresWorld, usage_id: UUID) -> tuple[str, int | None]:
    (row,) = world.execute("SELECT state, truth_micros FROM usage_truths WHERE usage_id = %s", usage_id)
    return row["state"], row["truth_micros"]


async def test_a_parked_row_with_another_figure_is_corrected(world: PostgresWorld) -> None:
    gone = usage_of(world, 10, session_id=uuid4(), area="dev", is_estimated=True)
    assert await world.recorder.record(row_of(gone))

    assert await world.recorder.record(row_of(costing(gone, 25, is_estimated=False)))

    assert world.parked_ids() == [gone.id]
    assert deltas(world) == [15]
    assert spent(world) == world.area_spent_micros("dev") == 25


async def test_a_row_that_is_there_is_not_parked_beside_itself(world: PostgresWorld) -> None:
    usage = usage_of(world, 10)
    assert await world.recorder.record(row_of(usage))

    assert await world.recorder.record(row_of(replace(usage, latency_ms=2**40)))
    assert await world.recorder.record(row_of(costing(usage, 12, latency_ms=2**40)))

    assert world.parked_ids() == []
    assert deltas(world) == [2]
    assert spent(world) == 12


async def test_a_row_that_is_parked_is_not_entered_beside_itself(world: PostgresWorld) -> None:
    usage = usage_of(world, 10, latency_ms=2**40)
    assert await world.recorder.record(row_of(usage))

    assert await world.recorder.record(row_of(replace(usage, latency_ms=1)))
    assert await world.recorder.record(row_of(costing(usage, 12, latency_ms=1)))

    assert not world.rows()
    assert deltas(world) == [2]
    assert spent(world) == 12


async def test_two_figures_of_one_row_handed_over_at_once_both_count(world: PostgresWorld) -> None:
    usage = usage_of(world, 10)
    both = [row_of(usage), row_of(costing(usage, 30))]

    assert all(await asyncio.gather(*map(world.recorder.record, both)))

    (row,) = world.rows().values()
    assert deltas(world) == [40 - 2 * row["cost_micros"]]
    assert spent(world) == 40 - row["cost_micros"]


async def test_an_estimate_never_replaces_a_figure_that_was_none(world: PostgresWorld) -> None:
    estimate = usage_of(world, 10, is_estimated=True, awaits_truth=True)
    for figure in (estimate, costing(estimate, 30, is_estimated=False), costing(estimate, 12)):
        assert await world.recorder.record(row_of(figure))

    assert deltas(world) == [20]
    assert spent(world) == 30


async def test_a_truth_that_two_bring_stays_a_correction(world: PostgresWorld) -> None:
    estimate = usage_of(world, 10, is_estimated=True, awaits_truth=True)
    assert await world.recorder.record(row_of(estimate))

    booked = [await world.corrections.book_truth(estimate.id, Decimal("0.000025")) for _ in range(2)]

    assert [one.verdict for one in booked if one] == [Verdict.CORRECTED, Verdict.EQUAL]
    assert truth_state(world, estimate.id) == ("corrected", 25)
    assert spent(world) == 25


async def test_a_truth_that_was_known_before_changes_no_state(world: PostgresWorld) -> None:
    estimate = usage_of(world, 10, is_estimated=True, awaits_truth=True)
    assert await world.recorder.record(row_of(estimate))

    for usd in ("0.000025", "0.000035", "0.000025"):
        assert await world.corrections.book_truth(estimate.id, Decimal(usd))

    assert truth_state(world, estimate.id) == ("corrected", 35)
    assert spent(world) == 35


async def test_a_database_that_only_reads_for_a_while_loses_and_parks_nothing(world: PostgresWorld) -> None:
    name = conninfo_to_dict(world.database_url)["dbname"]
    world.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    world.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    usages = [usage_of(world, 10) for _ in range(3)]

    assert all(await asyncio.gather(*map(world.recorder.record, map(row_of, usages))))
    assert not world.rows()
    assert world.recorder.oldest_unflushed_s > 1

    with psycopg.connect(world.database_url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'.encode())
    world.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid()"
    )
    async with asyncio.timeout(10):
        while world.recorder.oldest_unflushed_s:
            await asyncio.sleep(0.02)
    assert set(world.rows()) == {usage.id for usage in usages}
    assert world.parked_ids() == []
    assert spent(world) == 30


async def test_what_a_router_took_unseen_can_be_written_off(world: PostgresWorld) -> None:
    entry = BudgetEntry(BudgetScope.SESSION, world.session_id, 1_000, is_strict=True)
    world.add_budget(entry)
    start = start_of(project_id=world.project_id, session_id=world.session_id)
    request = HoldRequest(start=start, budget_ids=[entry.id], chat_micros=90, router_micros=10)
    assert await world.holds.place(request) is None

    end = TurnEnd(
        start=start, outcome=TurnOutcome.ANSWERED, ended_at=datetime.now(UTC), router=RouterOutcome.UNSEEN
    )
    assert await world.recorder.record(Settlement(turn_id=start.turn_id, usage=None, end=end))

    assert truth_state(world, start.router_usage_id) == ("open", None)
    await world.corrections.write_off(start.router_usage_id, start.turn_id, "nobody saw it")
    assert world.budget(BudgetScope.SESSION, world.session_id).held_micros == 0
    assert truth_state(world, start.router_usage_id) == ("irreconcilable", None)
