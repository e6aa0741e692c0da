"""Strict budgets over random interleavings of turns, kills, reconciliations and lowered limits."""

import asyncio
import multiprocessing
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random, randrange
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from adapters.postgres.budgets import PostgresBudgets
from adapters.postgres.corrections import PostgresCorrections
from adapters.postgres.pool import holds_pool, owners_pool, write_pool
from application.ports.budgets import BudgetOwner
from domain.budget import Budget
from domain.settlement import RouterOutcome, Settlement
from tests.support.brabo_data import World, create_session, create_world, insert
from tests.support.held_turns import (
    CHAT_MICROS,
    ROUTER_MICROS,
    WORST_MICROS,
    HeldTurn,
    Kill,
    TurnTaker,
    take_turns,
    turn_taker,
    with_start,
)
from tests.support.ledger_worlds import start_of

SCHEDULES: Final = 320
FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.held_turns"])

BOOKS = """
    SELECT b.id, b.spent_micros AS spent, b.held_micros AS held,
        (SELECT coalesce(sum(chat_micros + router_micros), 0) FROM budget_holds h WHERE h.budget_id = b.id) AS holds,
        (SELECT count(*) FROM budget_holds h WHERE h.budget_id = b.id AND least(chat_micros, router_micros) < 0)
            AS negative,
        (SELECT coalesce(array_agg(t.id), '{}') FROM token_usage t
            WHERE b.id IN (t.moved_project_budget_id, t.moved_session_budget_id)) AS rows,
        (SELECT coalesce(sum(cost_micros), 0) FROM token_usage t
            WHERE b.id IN (t.moved_project_budget_id, t.moved_session_budget_id))
        + (SELECT coalesce(sum(delta_micros), 0) FROM usage_corrections c
            WHERE b.id IN (c.moved_project_budget_id, c.moved_session_budget_id)) AS booked
    FROM budgets b WHERE b.id = ANY (%s)
"""
TRUTHS = "SELECT usage_id FROM usage_truths WHERE state = 'open' AND project_id = %s AND usage_id = turn_id"
LEFT = "SELECT turn_id FROM budget_holds WHERE budget_id = ANY (%s) AND router_micros > 0 AND state = 'unsettled'"


@dataclass(frozen=True)
class Schedule:
    """Limits in worst cases and in micro-USD beyond them; times in ms."""

    fitting: int
    beyond_micros: int
    session_fitting: int | None
    here: Sequence[HeldTurn]
    there: Sequence[HeldTurn]
    """Of the process that may be killed."""
    kill: Kill | None
    lowered_to_micros: int | None
    lowered_after_ms: int
    reconciled_after_ms: Sequence[int]


def drawn_schedule(draw: Random) -> Schedule:
    kill = None
    if draw.random() < 0.7:
        what = draw.choice(["begun", "held", "held", "asked", "sent", "sent", "kept", "flushed"])
        kill = Kill(what, nth=draw.choice([1, 1, 1, 2]), after_ms=draw.randint(0, 6))
    return Schedule(
        fitting=draw.randint(1, 6),
        beyond_micros=draw.randrange(WORST_MICROS),
        session_fitting=draw.choice([None, None, draw.randint(1, 5)]),
        here=[drawn_turn(draw) for _ in range(draw.randint(1, 4))],
        there=[drawn_turn(draw) for _ in range(draw.randint(2, 6))],
        kill=kill,
        lowered_to_micros=draw.choice([None, None, draw.randint(1, 3 * WORST_MICROS)]),
        lowered_after_ms=draw.randint(0, 30),
        reconciled_after_ms=[draw.randint(0, 40) for _ in range(draw.randint(0, 3))],
    )


def drawn_turn(draw: Random) -> HeldTurn:
    router = draw.choice([None, *RouterOutcome])
    room = CHAT_MICROS if router else WORST_MICROS
    above = 70 if draw.random() < 0.05 else 0
    return HeldTurn(
        start=start_of(),
        budget_ids=(),
        router=router,
        router_micros=draw.randint(0, ROUTER_MICROS),
        makes_call=draw.random() < 0.8,
        cost_micros=draw.randint(0, room) + above,
        estimate_micros=draw.choice([None, draw.randint(0, room)]),
        pauses_ms=(draw.randint(0, 15), draw.randint(0, 15), draw.randint(0, 15)),
    )


@dataclass
class Stage:
    """What all schedules share."""

    database_url: str
    connection: psycopg.Connection[Any]
    world: World
    run: Callable[[Any], Any]
    takers: Callable[[Callable[..., None]], TurnTaker]
    corrections: PostgresCorrections
    budgets: PostgresBudgets
    counted: Counter[str] = field(default_factory=Counter)


@pytest.fixture
def stage(database_url: str) -> Iterator[Stage]:
    with asyncio.Runner() as runner, closing(psycopg.connect(database_url, autocommit=True)) as connection:
        pools = [holds_pool(database_url), write_pool(database_url), owners_pool(database_url)]
        for pool in pools:
            runner.run(pool.open(wait=True))
        holding, writing, owning = pools
        yield Stage(
            database_url,
            connection,
            create_world(database_url, project_limit_micros=None, area_ceilings_micros={}),
            runner.run,
            lambda note: turn_taker(holding, writing, note),
            PostgresCorrections(writing),
            PostgresBudgets(owning),
        )
        for pool in pools:
            runner.run(pool.close())


def test_no_interleaving_spends_or_holds_beyond_the_limit(
    stage: Stage, summarise: Callable[[str], None]
) -> None:
    first_seed = randrange(10**9)
    for seed in range(first_seed, first_seed + SCHEDULES):
        try:
            stage.run(Play(stage, drawn_schedule(Random(seed))).run())
        except Exception as error:
            error.add_note(f"the schedule of seed {seed}")
            raise

    counted = stage.counted
    summarise(
        f"strict budgets, from seed {first_seed}: {counted['schedules']} schedules, {counted['killed between']} with a "
        f"kill between hold and settlement (of {counted['killed']} killed), {counted['lowered']} with a lowered limit, "
        f"{counted['reconciled']} truths booked, {counted['granted']} holds granted, {counted['refused']} refused, "
        f"{counted['excess']} schedules with an excess, {counted['strays']} strays released"
    )
    assert counted["schedules"] >= 300
    assert counted["killed between"] >= 50
    assert min(counted[what] for what in ("lowered", "reconciled", "granted", "refused", "excess")) > 0


class Play:
    """One schedule, played on budgets of its own."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self.stage = stage
        self.schedule = schedule
        self.limit_micros = schedule.fitting * WORST_MICROS + schedule.beyond_micros + 1
        self.is_other_ready = asyncio.Event()
        self.happened: dict[UUID, set[str]] = defaultdict(set)
        self.kept: dict[UUID, list[Settlement]] = defaultdict(list)
        with psycopg.connect(stage.database_url) as connection:
            world = stage.world
            project_id = insert(
                connection,
                "projects",
                workspace_id=world.workspace_id,
                name="p",
                slug=start_of().turn_id.hex,
                workspace_dir_name=start_of().turn_id.hex,
                created_by=world.user_id,
            )
            self.owner = BudgetOwner(project_id)
            session_id = create_session(connection, project_id, world.user_id)
            limits = {"project_id": (project_id, self.limit_micros)}
            if schedule.session_fitting is not None:
                limits["session_id"] = (session_id, schedule.session_fitting * WORST_MICROS + 1)
            self.limits = {
                insert(connection, "budgets", **{owner: owner_id}, limit_micros=limit, strict=True): limit
                for owner, (owner_id, limit) in limits.items()
            }
        ids = sorted(self.limits)
        self.here, self.there = (
            [with_start(turn, start_of(project_id=project_id, session_id=session_id), ids) for turn in turns]
            for turns in (schedule.here, schedule.there)
        )
        self.truths = {turn.start.turn_id: turn.cost_micros for turn in (*self.here, *self.there)}

    async def run(self) -> None:
        stage, counted = self.stage, self.stage.counted
        taker = stage.takers(self.note)
        await asyncio.gather(
            *(self._take(taker, turn) for turn in self.here),
            self._process(taker),
            self._lower(),
            *(self._reconcile(after_ms) for after_ms in self.schedule.reconciled_after_ms),
        )
        await self._reconcile(0)
        await self._write_off()
        strays = await taker.holds.release_strays()
        books = self.check()

        assert {book["held"] for book in books} == {0}
        charged = sum(self._charged(turn) for turn in (*self.here, *self.there))
        assert {book["spent"] for book in books} == {charged}
        counted["schedules"] += 1
        counted["strays"] += strays
        counted["excess"] += any(map(self._excess, books))
        for what, name in (("held", "granted"), ("refused", "refused")):
            counted[name] += sum(what in happened for happened in self.happened.values())

    def note(self, what: str, turn_id: UUID, kept: Any) -> None:
        self.happened[turn_id].add(what)
        if what == "kept":
            self.kept[turn_id].append(kept)
        if what == "refused":
            short: Budget = kept
            assert short.spent_micros + short.held_micros + WORST_MICROS > short.limit_micros
        self.check()

    def check(self) -> list[dict[str, Any]]:
        with self.stage.connection.cursor(row_factory=dict_row) as cursor:
            books = cursor.execute(BOOKS, [list(self.limits)]).fetchall()
        for book in books:
            assert book["held"] == book["holds"], book
            assert book["spent"] == book["booked"], book
            assert book["spent"] + book["held"] <= self.limits[book["id"]] + self._excess(book), book
            assert not book["negative"], book
        return books

    async def _take(self, taker: TurnTaker, turn: HeldTurn) -> None:
        await self.is_other_ready.wait()
        await taker.take(turn)

    async def _process(self, taker: TurnTaker) -> None:
        """Another process takes its turns, and may be killed; what it leaves behind is settled here."""
        read, write = FORKS.Pipe(duplex=False)
        kill = self.schedule.kill
        process = FORKS.Process(target=take_turns, args=(self.stage.database_url, self.there, kill, write))
        process.start()
        write.close()
        try:
            while True:
                try:
                    note = await asyncio.to_thread(read.recv)
                except EOFError:
                    break
                if note is None:
                    self.is_other_ready.set()
                else:
                    self.note(*note)
            await asyncio.to_thread(process.join)
        finally:
            self.is_other_ready.set()
            process.kill()
            read.close()
        left = [turn for turn in self.there if "ended" not in self.happened[turn.start.turn_id]]
        if process.exitcode != 0:
            assert process.exitcode == -signal.SIGKILL, "the process failed"
            self.stage.counted["killed"] += 1
            self.stage.counted["killed between"] += any(
                "held" in self.happened[turn.start.turn_id] for turn in left
            )
        for turn in left:
            happened = self.happened[turn.start.turn_id]
            if happened:
                await taker.recover(turn, self.kept[turn.start.turn_id], happened)
                self.check()

    async def _lower(self) -> None:
        limit_micros = self.schedule.lowered_to_micros
        if limit_micros is None or limit_micros >= self.limit_micros:
            return
        await self.is_other_ready.wait()
        await asyncio.sleep(self.schedule.lowered_after_ms / 1000)
        await self.stage.budgets.set(self.owner, limit_micros=limit_micros, policy=None)
        self.stage.counted["lowered"] += 1

    async def _reconcile(self, after_ms: int) -> None:
        await self.is_other_ready.wait()
        await asyncio.sleep(after_ms / 1000)
        for usage_id in self._ids(TRUTHS, self.owner.project_id):
            truth_usd = Decimal(self.truths[usage_id]).scaleb(-6)
            assert await self.stage.corrections.book_truth(usage_id, truth_usd) is not None
            self.stage.counted["reconciled"] += 1
            self.check()

    async def _write_off(self) -> None:
        """What the router took unseen."""
        routers = {turn.start.turn_id: turn.start.router_usage_id for turn in (*self.here, *self.there)}
        for turn_id in set(self._ids(LEFT, list(self.limits))):
            await self.stage.corrections.write_off(routers[turn_id], turn_id, "nobody saw it")

    def _ids(self, query: str, parameter: object) -> list[UUID]:
        return [found for (found,) in self.stage.connection.execute(query.encode(), [parameter]).fetchall()]

    def _excess(self, book: dict[str, Any]) -> int:
        """What calls whose rows are written take beyond their part of the hold."""
        called = (turn for turn in (*self.here, *self.there) if turn.start.turn_id in book["rows"])
        return sum(max(0, turn.cost_micros - turn.request().chat_micros) for turn in called)

    def _charged(self, turn: HeldTurn) -> int:
        """What the provider takes for it, as far as anyone has seen."""
        happened, kept = self.happened[turn.start.turn_id], self.kept[turn.start.turn_id]
        has_router_row = any(
            settlement.usage is not None and settlement.usage.id == turn.start.router_usage_id
            for settlement in kept
        )
        return (turn.cost_micros if "sent" in happened else 0) + (turn.router_micros if has_router_row else 0)
