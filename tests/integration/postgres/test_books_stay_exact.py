"""Two processes settle turns in any order, while truths are booked and sessions deleted: every sum is exact."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from random import Random, randrange
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg

from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from adapters.postgres.audit import PostgresAudit
from adapters.postgres.pool import write_pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from application.ports.holds import HoldRequest
from domain.agents import area_of
from domain.budget import THRESHOLDS_PERCENT, BudgetPolicy, BudgetScope
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome, TurnStart
from domain.usage import Cost, Prices, TokenCounts, TokenUsage
from tests.support.ledger_worlds import PostgresWorld, postgres_world, start_of, usage_of

SCHEDULES: Final = 12
TURNS: Final = 40
SESSIONS: Final = 6
DOOMED: Final = 2
"""Of the sessions: deleted while their turns are settled."""
CHAT_MICROS: Final = 90
ROUTER_MICROS: Final = 10

ENTERED = """
    SELECT id, cost_micros, estimated, false AS is_parked FROM token_usage
    UNION ALL SELECT id, cost_micros, estimated, true FROM parked_usage
"""


@dataclass
class Plan:
    """A turn, and whatever anybody says of it. An estimate is below 30 micro-USD, a certain figure below 60, the truth
    above: what a row came to tells whose word it was."""

    start: TurnStart
    area: str | None
    is_held: bool
    router: RouterOutcome | None
    router_micros: int
    estimates: list[int]
    certain: list[int]
    truth: int | None
    booked: bool = False
    """The truth has been."""

    @property
    def makes_call(self) -> bool:
        return bool(self.estimates or self.certain)

    def row(self, usage_id: UUID, micros: int, *, is_estimate: bool) -> TokenUsage:
        world: Any = self.start  # names the session and the project
        return usage_of(
            world,
            id=usage_id,
            turn_id=self.start.turn_id,
            actor_id=self.start.agent,
            area=self.area,
            tokens=TokenCounts(0, 0),
            cost=Cost(micros, Prices(0, 0), is_implicit=True, catalogue_micros=None),
            is_estimated=is_estimate,
            awaits_truth=is_estimate,
            created_at=datetime.now(UTC),
        )

    def settlements(self) -> list[Settlement]:
        """One for each figure; each has the end."""
        turn_id = self.start.turn_id
        end = TurnEnd(
            start=self.start, outcome=TurnOutcome.ANSWERED, ended_at=datetime.now(UTC), router=self.router
        )
        rows = [self.row(turn_id, micros, is_estimate=True) for micros in self.estimates]
        rows += [self.row(turn_id, micros, is_estimate=False) for micros in self.certain]
        settlements = [Settlement(turn_id=turn_id, usage=row, end=end) for row in rows]
        if not rows:
            settlements.append(Settlement(turn_id=turn_id, usage=None, end=end))
        if self.router is RouterOutcome.CHARGED:
            router_row = self.row(self.start.router_usage_id, self.router_micros, is_estimate=False)
            settlements.append(Settlement(turn_id=turn_id, usage=router_row, end=None))
        return settlements


def drawn_plan(draw: Random, project_id: UUID, session_id: UUID, *, is_doomed: bool) -> Plan:
    calls = draw.random() < 0.9
    certain = draw.sample(range(30, 60), draw.choice([0, 1, 1, 2])) if calls else []
    estimates = draw.sample(range(30), draw.choice([0, 1, 2])) if calls else []
    if calls and not certain and not estimates:
        certain = [30]
    if is_doomed:
        certain, estimates = certain[:1], estimates[: 1 - len(certain[:1])]
    agent = draw.choice(["escriba", "dev-api"])
    return Plan(
        start=start_of(project_id=project_id, session_id=session_id, agent=agent),
        area=area_of(agent),
        is_held=draw.random() < 0.6,
        router=draw.choice([None, *RouterOutcome]),
        router_micros=draw.randint(0, ROUTER_MICROS),
        estimates=estimates,
        certain=certain,
        truth=draw.randint(60, 90) if estimates and draw.random() < 0.6 else None,
    )


@dataclass
class Stage:
    """A world with budgets and an area, another recorder beside its own, and what was deleted from it."""

    world: PostgresWorld
    other: PostgresUsageRecorder
    draw: Random
    gone: dict[UUID, int] = field(default_factory=dict)
    """Costs of the rows that went with their session, by id."""

    def delete(self, session_id: UUID) -> None:
        with psycopg.connect(self.world.database_url) as connection:
            connection.execute("SELECT 1 FROM sessions WHERE id = %s FOR UPDATE", (session_id,))
            rows = connection.execute(
                "SELECT id, cost_micros FROM token_usage WHERE session_id = %s", (session_id,)
            ).fetchall()
            connection.execute("DELETE FROM sessions WHERE id = %s", (session_id,))
        self.gone.update(rows)


async def test_every_sum_is_exact_in_whatever_order_the_figures_come(
    database_url: str, summarise: Callable[[str], None]
) -> None:
    first_seed = randrange(10**9)
    counted: Counter[str] = Counter()
    async with postgres_world(database_url) as world, write_pool(database_url) as pool:
        other = PostgresUsageRecorder(pool, InMemoryJournal(), process_id=uuid4(), host="there")
        for seed in range(first_seed, first_seed + SCHEDULES):
            with noted(f"the schedule of seed {seed}"):
                await play(Stage(world, other, Random(seed)), counted)
        await other.close()
    kinds = ("rows", "parked", "corrections", "gone", "truths")
    told = ", ".join(f"{counted[kind]} {kind}" for kind in kinds)
    summarise(f"exact sums, from seed {first_seed}: {SCHEDULES} schedules, {told}")
    assert all(counted[kind] for kind in kinds)


@contextmanager
def noted(note: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


async def play(stage: Stage, counted: Counter[str]) -> None:
    world, draw = stage.world, stage.draw
    world.project_id = world.add_project()
    world.add_area("dev", AreaEntry())
    world.add_budget(
        BudgetEntry(BudgetScope.PROJECT, world.project_id, 30 * TURNS, policy=BudgetPolicy.ALLOW)
    )
    sessions = [world.add_session(world.project_id) for _ in range(SESSIONS)]
    strict = [BudgetEntry(BudgetScope.SESSION, session, 10**6, is_strict=True) for session in sessions]
    for entry in strict:
        world.add_budget(entry)
    budget_ids = {entry.owner_id: entry.id for entry in strict}
    plans = [
        drawn_plan(draw, world.project_id, session, is_doomed=session in sessions[:DOOMED])
        for session in draw.choices(sessions, k=TURNS)
    ]

    async def hold(plan: Plan) -> None:
        router_micros = 0 if plan.router is None else ROUTER_MICROS
        request = HoldRequest(
            start=plan.start,
            budget_ids=[budget_ids[plan.start.session_id]],
            chat_micros=CHAT_MICROS,
            router_micros=router_micros,
        )
        assert await world.holds.place(request) is None

    await asyncio.gather(*(hold(plan) for plan in plans if plan.is_held))
    await asyncio.gather(*work(stage, plans, sessions[:DOOMED]))
    async with asyncio.timeout(20):
        while world.recorder.oldest_unflushed_s or stage.other.oldest_unflushed_s:
            await asyncio.sleep(0.02)

    corrections = world.execute("SELECT usage_id, source, delta_micros FROM usage_corrections")
    check(stage, plans, sessions, corrections)
    entered = {row["id"]: row for row in world.execute(ENTERED)}
    mine = {one for plan in plans for one in (plan.start.turn_id, plan.start.router_usage_id)}
    counted["rows"] += sum(not row["is_parked"] for row in entered.values() if row["id"] in mine)
    counted["parked"] += sum(row["is_parked"] for row in entered.values() if row["id"] in mine)
    counted["corrections"] += sum(one["usage_id"] in mine for one in corrections)
    counted["gone"] += len(stage.gone)
    counted["truths"] += sum(plan.booked for plan in plans)


def work(stage: Stage, plans: list[Plan], doomed: list[UUID]) -> list[Awaitable[None]]:
    """All that happens at once, each after a while."""
    draw = stage.draw
    recorders = (stage.world.recorder, stage.other)

    async def settle(settlement: Settlement, recorder: Any, after_s: float) -> None:
        await asyncio.sleep(after_s)
        assert await recorder.record(settlement, at_leisure=settlement.end is None)

    async def book(plan: Plan, micros: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        booked = await stage.world.corrections.book_truth(plan.start.turn_id, Decimal(micros).scaleb(-6))
        plan.booked |= booked is not None

    async def delete(session_id: UUID, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(stage.delete, session_id)

    steps: list[Awaitable[None]] = [delete(session, draw.uniform(0.02, 0.12)) for session in doomed]
    for plan in plans:
        again = 1 if plan.start.session_id in doomed else draw.choice([1, 2, 3])
        for settlement in plan.settlements():
            steps += [settle(settlement, draw.choice(recorders), draw.uniform(0, 0.15)) for _ in range(again)]
        if plan.truth is not None:
            steps += [book(plan, plan.truth, draw.uniform(0, 0.2)) for _ in range(draw.choice([1, 2]))]
    draw.shuffle(steps)
    return steps


def check(stage: Stage, plans: list[Plan], sessions: list[UUID], corrections: list[dict[str, Any]]) -> None:
    world = stage.world
    for finding in PostgresAudit(world.database_url).run(since=None):
        assert not finding.violations, finding
    entered = world.execute(ENTERED)
    costs: dict[UUID, int] = {row["id"]: row["cost_micros"] for row in entered}
    assert len(costs) == len(entered), "a row is parked beside itself"
    moved: dict[UUID, int] = {}
    for one in corrections:
        moved[one["usage_id"]] = moved.get(one["usage_id"], 0) + one["delta_micros"]

    def comes_to(usage_id: UUID) -> int:
        return costs.get(usage_id, stage.gone.get(usage_id, 0)) + moved.get(usage_id, 0)

    spent: dict[Any, int] = {}
    for plan in plans:
        turn_id, router_id = plan.start.turn_id, plan.start.router_usage_id
        assert (turn_id in costs or turn_id in stage.gone) == plan.makes_call
        assert (router_id in costs or router_id in stage.gone) == (plan.router is RouterOutcome.CHARGED)
        if plan.booked:
            assert comes_to(turn_id) == plan.truth
        elif plan.makes_call and turn_id not in stage.gone:
            assert comes_to(turn_id) in (plan.certain or plan.estimates)
        for owner in (plan.start.session_id, plan.start.project_id, plan.area):
            spent[owner] = spent.get(owner, 0) + comes_to(turn_id) + comes_to(router_id)
        if plan.is_held and turn_id not in stage.gone:
            check_hold(world, plan, costs.get(turn_id), comes_to(turn_id) + comes_to(router_id))

    project = world.budget(BudgetScope.PROJECT, world.project_id)
    assert project.spent_micros == spent[world.project_id]
    assert world.area_spent_micros("dev") == spent.get("dev", 0)
    for session in sessions[DOOMED:]:
        assert world.budget(BudgetScope.SESSION, session).spent_micros == spent.get(session, 0)
    announced = [
        each["payload"]["threshold"] for each in world.announcements() if each["aggregate_id"] == project.id
    ]
    reached = {
        percent
        for percent in THRESHOLDS_PERCENT
        if project.spent_micros * 100 >= project.limit_micros * percent
    }
    assert reached <= set(announced)
    assert len(announced) == len(set(announced))


def check_hold(world: PostgresWorld, plan: Plan, cost_micros: int | None, settled_micros: int) -> None:
    (held,) = world.execute(
        "SELECT chat_micros, router_micros, settled_micros, state FROM budget_holds WHERE turn_id = %s",
        plan.start.turn_id,
    )
    is_certain = not plan.makes_call or bool(plan.certain) or plan.booked
    assert held["settled_micros"] == settled_micros
    assert held["chat_micros"] == (0 if is_certain else max(0, CHAT_MICROS - (cost_micros or 0)))
    assert held["router_micros"] == (ROUTER_MICROS if plan.router is RouterOutcome.UNSEEN else 0)
    is_free = held["chat_micros"] + held["router_micros"] == 0
    assert held["state"] == ("settled" if is_free else "unsettled")
