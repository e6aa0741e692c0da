"""Turns on strict budgets, by what each is to do, in a process that may be killed: the whole way from hold to end."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID, uuid4

from adapters.in_memory.journal import InMemoryJournal
from adapters.postgres.holds import PostgresHolds
from adapters.postgres.pool import holds_pool, write_pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from application.ports.holds import HoldRequest
from domain.provider import Provider
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome, TurnStart
from domain.usage import ActorKind, Cost, Prices, TokenCounts, TokenUsage

CHAT_MICROS = 90
ROUTER_MICROS = 10
WORST_MICROS = CHAT_MICROS + ROUTER_MICROS


@dataclass(frozen=True)
class HeldTurn:
    """What a turn does once its hold is granted. Costs in micro-USD, pauses in ms."""

    start: TurnStart
    budget_ids: Sequence[UUID]
    router: RouterOutcome | None
    router_micros: int
    makes_call: bool
    cost_micros: int
    """What the provider takes for the chat."""
    estimate_micros: int | None
    """Our own guess of it, for a chat that is cut; None: it ends well, and its cost is named."""
    pauses_ms: tuple[int, int, int]

    def request(self) -> HoldRequest:
        router_micros = 0 if self.router is None else ROUTER_MICROS
        return HoldRequest(
            start=self.start,
            budget_ids=self.budget_ids,
            chat_micros=WORST_MICROS - router_micros,
            router_micros=router_micros,
        )

    def router_row(self) -> TokenUsage:
        return self._row(self.start.router_usage_id, self.router_micros, is_estimate=False)

    def chat_row(self, *, estimate_micros: int | None) -> TokenUsage:
        if estimate_micros is None:
            return self._row(self.start.turn_id, self.cost_micros, is_estimate=False)
        return self._row(self.start.turn_id, estimate_micros, is_estimate=True)

    def ended(self, outcome: TurnOutcome, router: RouterOutcome | None) -> TurnEnd:
        return TurnEnd(start=self.start, outcome=outcome, ended_at=self.start.started_at, router=router)

    def _row(self, usage_id: UUID, cost_micros: int, *, is_estimate: bool) -> TokenUsage:
        return TokenUsage(
            id=usage_id,
            turn_id=self.start.turn_id,
            session_id=self.start.session_id,
            project_id=self.start.project_id,
            actor_kind=ActorKind.AGENT,
            actor_id="escriba",
            area=None,
            provider=Provider.OPENROUTER,
            model_id=None,
            model_name="maker/model",
            tokens=TokenCounts(0, 0),
            is_estimated=is_estimate,
            awaits_truth=is_estimate,
            cost=Cost(cost_micros, Prices(0, 0), is_implicit=True, catalogue_micros=None),
            latency_ms=1,
            binding_origin=None,
            routing_preference=None,
            upstream_provider=None,
            resolved_model_name=None,
            generation_id=None,
            created_at=self.start.started_at,
        )


Note = Callable[[str, UUID, Any], None]
"""What happened, to which turn, and what of it is to be kept: told before it is done."""


@dataclass
class TurnTaker:
    """One process's adapters."""

    holds: PostgresHolds
    recorder: PostgresUsageRecorder
    note: Note

    async def take(self, turn: HeldTurn) -> None:
        turn_id = turn.start.turn_id
        self.note("begun", turn_id, None)
        short = await self.holds.place(turn.request())
        if short is not None:
            self.note("refused", turn_id, short)
            await self._settle(turn, None, turn.ended(TurnOutcome.REFUSED, None))
            return
        self.note("held", turn_id, None)
        await asyncio.sleep(turn.pauses_ms[0] / 1000)
        if turn.router is not None:
            self.note("asked", turn_id, None)
            await asyncio.sleep(turn.pauses_ms[1] / 1000)
            if turn.router is RouterOutcome.CHARGED:
                await self._settle(turn, turn.router_row(), None)
        row: TokenUsage | None = None
        if turn.makes_call:
            self.note("sent", turn_id, None)
            await asyncio.sleep(turn.pauses_ms[2] / 1000)
            row = turn.chat_row(estimate_micros=turn.estimate_micros)
        await self._settle(turn, row, turn.ended(TurnOutcome.ANSWERED, turn.router))

    async def _settle(self, turn: HeldTurn, usage: TokenUsage | None, end: TurnEnd | None) -> None:
        settlement = Settlement(turn_id=turn.start.turn_id, usage=usage, end=end)
        self.note("kept", turn.start.turn_id, settlement)
        assert await self.recorder.record(settlement)
        self.note("flushed" if end is None else "ended", turn.start.turn_id, None)

    async def recover(self, turn: HeldTurn, kept: Sequence[Settlement], happened: set[str]) -> None:
        """Settle a turn of a process that is gone, from what it had kept: twice, as two who recover at once would."""
        settlements = list(kept)
        if not any(settlement.end for settlement in kept):
            router: RouterOutcome | None = None
            if "asked" in happened:
                has_row = any(settlement.usage for settlement in kept)
                router = RouterOutcome.CHARGED if has_row else RouterOutcome.UNSEEN
            row = turn.chat_row(estimate_micros=turn.estimate_micros or 1) if "sent" in happened else None
            end = turn.ended(TurnOutcome.ABANDONED, router)
            settlements.append(Settlement(turn_id=turn.start.turn_id, usage=row, end=end))
        for settlement in [*settlements, *settlements]:
            assert await self.recorder.record(settlement)


@dataclass(frozen=True)
class Kill:
    """Of a process, `after_ms` after it has noted `what` for the `nth` time."""

    what: str
    nth: int
    after_ms: int


def take_turns(database_url: str, turns: Sequence[HeldTurn], kill: Kill | None, notes: Connection) -> None:
    """The main function of a process: all turns at once. What it notes is in the pipe, whatever becomes of it;
    before all of it None, once it is about to begin."""
    seen = 0

    def note(what: str, turn_id: UUID, kept: Any) -> None:
        nonlocal seen
        notes.send((what, turn_id, kept))
        if kill is not None and what == kill.what:
            seen += 1
            if seen == kill.nth:
                delay_s = kill.after_ms / 1000
                asyncio.get_running_loop().call_later(delay_s, os.kill, os.getpid(), signal.SIGKILL)

    async def run() -> None:
        async with holds_pool(database_url, size=2) as holding, write_pool(database_url, size=2) as writing:
            taker = turn_taker(holding, writing, note)
            await asyncio.gather(holding.wait(), writing.wait())
            notes.send(None)
            await asyncio.gather(*(taker.take(turn) for turn in turns))

    asyncio.run(run())


def turn_taker(holding: Any, writing: Any, note: Note) -> TurnTaker:
    process_id = uuid4()
    return TurnTaker(
        PostgresHolds(holding, process_id=process_id, host="here"),
        PostgresUsageRecorder(
            writing, InMemoryJournal(), process_id=process_id, host="here", on_unrecorded=lambda _usage: None
        ),
        note,
    )


def with_start(turn: HeldTurn, start: TurnStart, budget_ids: Sequence[UUID]) -> HeldTurn:
    """The same turn, of a session and its budgets."""
    return replace(turn, start=start, budget_ids=budget_ids)
