"""What was estimated or cut becomes what the provider billed, once, whatever that is."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adapters.in_memory.clock import ManualClock
from adapters.postgres.audit import PostgresAudit
from application.reconcile import Reconcile
from entrypoints.simulator import Simulator
from tests.support import brabo_data
from tests.support.brabo_data import World
from tests.support.engine import ledger, select, spent_micros, take_turn
from tests.support.live import LiveApi, environment, live_api

CUT = "usage-missing"
"""The answer comes whole, and its usage does not come at all."""


@pytest.fixture
async def api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, BRABO_RECONCILE="off")
    async with live_api(database_url, environ) as running:
        yield running


class Desk:
    """Reconciles what one turn left open, on a clock of its own."""

    def __init__(self, api: LiveApi, world: World, database_url: str) -> None:
        self.api, self.world, self.url = api, world, database_url
        self.clock = ManualClock(datetime.now(UTC))
        part = api.container
        self.reconcile = Reconcile(
            truths=part.open_truths(),
            records=part.generation_records(),
            corrections=part.corrections(),
            keys=part.owner_keys(),
            vault=part.vault(),
            clock=self.clock,
        )

    async def ask(self) -> Counter[str]:
        return await self.reconcile(limit=10, even_if_early=True)

    def row(self) -> dict[str, Any]:
        (row,) = ledger(self.url, self.world)
        return row

    def truth(self) -> dict[str, Any]:
        (truth,) = select(self.url, "SELECT * FROM usage_truths")
        return truth

    def corrections(self) -> list[dict[str, Any]]:
        return select(self.url, "SELECT * FROM usage_corrections")

    def assert_in_order(self) -> None:
        assert [one for one in PostgresAudit(self.url).run(since=None) if one.violations] == []


@pytest.fixture
def desk(api: LiveApi, world: World, database_url: str) -> Desk:
    return Desk(api, world, database_url)


async def an_estimate(desk: Desk, simulator: Simulator, **reply: Any) -> int:
    """Take a turn whose usage does not come; what it was booked with."""
    simulator.script({"reply": {"text": "duas palavras", **reply}, "fault": CUT})
    got = await take_turn(desk.api, desk.world, stream=True)
    assert got.answer["usage"]["estimated"] is True
    return int(desk.row()["cost_micros"])


async def test_what_is_not_known_yet_is_asked_again_and_then_corrected(
    desk: Desk, simulator: Simulator
) -> None:
    booked = await an_estimate(desk, simulator, billed_cost="0.000123")

    assert await desk.ask() == Counter(later=1)
    assert desk.truth()["state"] == "open"
    simulator.advance_clock(30_000)
    assert await desk.ask() == Counter(corrected=1)
    assert await desk.ask() == Counter()

    (correction,) = desk.corrections()
    assert correction["delta_micros"] == 123 - booked
    assert correction["source"] == "provider"
    assert correction["usage_created_at"] == desk.row()["created_at"]
    assert desk.row()["cost_micros"] == booked  # the row is never rewritten
    assert spent_micros(desk.url, desk.world) == 123
    assert (desk.truth()["state"], desk.truth()["truth_micros"]) == ("corrected", 123)
    desk.assert_in_order()


@pytest.mark.parametrize(
    ("billed", "state"),
    [(None, "equal"), ("0.9", "corrected"), ("0.0000004", "corrected"), ("0", "corrected")],
    ids=["equal", "higher", "lower", "zero"],
)
async def test_each_truth_ends_in_its_state(
    desk: Desk, simulator: Simulator, billed: str | None, state: str
) -> None:
    booked = await an_estimate(desk, simulator)
    billed = billed if billed is not None else str(Decimal(booked).scaleb(-6))
    simulator.reset()
    with psycopg.connect(desk.url) as connection:  # the same turn again, billed as wanted
        connection.execute("TRUNCATE token_usage, usage_truths, turn_starts")
        connection.execute("UPDATE budgets SET spent_micros = 0")
    assert await an_estimate(desk, simulator, billed_cost=billed) == booked
    simulator.advance_clock(30_000)

    assert await desk.ask() == Counter({state: 1})
    assert await desk.ask() == Counter()

    micros = int((Decimal(billed) * 1_000_000).to_integral_value(rounding="ROUND_HALF_UP"))
    assert desk.truth()["state"] == state
    assert spent_micros(desk.url, desk.world) == micros
    assert len(desk.corrections()) == (state == "corrected")
    desk.assert_in_order()


async def test_two_workers_at_once_book_once(desk: Desk, simulator: Simulator) -> None:
    await an_estimate(desk, simulator, billed_cost="0.5")
    simulator.advance_clock(30_000)

    desk.clock.advance(60)
    outcomes = await asyncio.gather(*(desk.reconcile(limit=10) for _ in range(4)))

    assert sum(outcomes, Counter()) == Counter(corrected=1)
    first, second = await asyncio.gather(
        *(desk.api.container.corrections().book_truth(desk.row()["id"], Decimal("0.75")) for _ in range(2))
    )
    assert first is not None
    assert second is not None
    assert sorted([first.verdict, second.verdict]) == ["corrected", "equal"]
    assert spent_micros(desk.url, desk.world) == 750_000
    desk.assert_in_order()


async def test_the_key_of_another_account_is_told_nothing_and_the_row_is_closed_after_a_day(
    desk: Desk, simulator: Simulator
) -> None:
    booked = await an_estimate(desk, simulator, billed_cost="0.5")
    simulator.advance_clock(30_000)
    with psycopg.connect(desk.url) as connection:
        sealed = brabo_data.seal("sk-or-v1-somebody-elses-key", brabo_data.MASTER_KEY)
        sets = ", ".join(f"{column} = %s" for column in sealed)
        connection.execute(f"UPDATE user_credentials SET {sets}".encode(), list(sealed.values()))

    assert await desk.ask() == Counter(later=1)
    desk.clock.advance(timedelta(hours=23, minutes=58).total_seconds())
    assert await desk.ask() == Counter(later=1)
    desk.clock.advance(240)
    assert await desk.ask() == Counter(irreconcilable=1)
    desk.clock.advance(86_400)
    assert await desk.ask() == Counter()

    truth = desk.truth()
    assert (truth["state"], truth["truth_micros"]) == ("irreconcilable", None)
    assert truth["reason"] == "after 24 h, the provider does not know it"
    assert spent_micros(desk.url, desk.world) == booked
    desk.assert_in_order()


async def test_a_call_whose_id_never_came_is_closed_after_a_day(desk: Desk, simulator: Simulator) -> None:
    simulator.script({"reply": {"text": "oi"}, "fault": "reset-headers"})
    await take_turn(desk.api, desk.world)
    assert desk.row()["generation_id"] is None

    assert await desk.ask() == Counter(later=1)
    desk.clock.advance(timedelta(hours=24, seconds=5).total_seconds())
    assert await desk.ask() == Counter(irreconcilable=1)
    assert desk.truth()["reason"] == "after 24 h, the provider never named an id for it"
    desk.assert_in_order()


async def test_a_provider_that_does_not_answer_closes_nothing(desk: Desk, simulator: Simulator) -> None:
    await an_estimate(desk, simulator, billed_cost="0.5")
    desk.clock.advance(timedelta(hours=25).total_seconds())
    simulator.script({"path": "lookup", "fault": "reset-accept", "times": 1})
    simulator.advance_clock(30_000)

    assert await desk.ask() == Counter(later=1)
    assert await desk.ask() == Counter(corrected=1)
    desk.assert_in_order()


async def test_it_happens_by_itself(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url)
    async with live_api(database_url, environ) as api:
        desk = Desk(api, world, database_url)
        await an_estimate(desk, simulator, billed_cost="0.25")
        simulator.advance_clock(30_000)
        async with asyncio.timeout(20):
            while desk.truth()["state"] == "open":
                await asyncio.sleep(0.1)
    assert spent_micros(database_url, world) == 250_000
    desk.assert_in_order()
