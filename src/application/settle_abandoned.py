"""Settling the turns of processes that have died."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from application.ports.clock import Clock
from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.database import DatabaseFailed
from application.ports.generation_records import GenerationRecord, GenerationRecords, RecordsUnavailable
from application.ports.journal import DeadJournal, JournaledTurn, Journals
from application.ports.owner_keys import OwnerKeys
from application.ports.turn_starts import OrphanedStarts
from application.ports.usage_recorder import UsageRecorder
from domain.agents import area_of
from domain.routing import ROUTER_PRICES
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome, TurnStart
from domain.usage import ActorKind, Prices, TokenCounts, TokenUsage, decide_cost

_RECORD_LAG: Final = timedelta(seconds=30)
"""A provider may take this long to have a call on record."""
_ASK_AGAIN_S: Final = 3.0
_AT_ONCE: Final = 8
_ORPHANS_AT_ONCE: Final = 50
_MOST_QUESTION_TOKENS: Final = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleAbandoned:
    """Writes what the dead had not written, and ends what they had begun: by the provider's record where the call has
    an id, and otherwise by an estimate that says so.
    """

    journals: Journals
    orphans: OrphanedStarts
    recorder: UsageRecorder
    records: GenerationRecords
    keys: OwnerKeys
    vault: CredentialVault
    clock: Clock
    router_model: str
    silent_s: float
    """How long a process of another host may be silent before it counts as dead."""

    async def __call__(self) -> int:
        """How many turns were settled. Raises DatabaseFailed, with the rest left for the next time."""
        settled = 0
        for dead in self.journals.dead():
            settled += await self._settle_journal(dead)
        while orphans := await self.orphans.take(
            silent_s=self.silent_s, limit=_ORPHANS_AT_ONCE, here=self.journals.processes()
        ):
            # Their rows may lag behind: what was not sent is settled as if it had been, and never the other way.
            turns = [
                JournaledTurn(
                    start=orphan.start,
                    was_asked=False,
                    was_sent=True,
                    generation_id=orphan.generation_id,
                    settlements=(),
                    flushed=frozenset(),
                )
                for orphan in orphans
            ]
            ends = [min(orphan.last_heard_at, orphan.start.due_at) for orphan in orphans]
            await self._settle_all(turns, ends)
            settled += len(turns)
        return settled

    async def _settle_journal(self, dead: DeadJournal) -> int:
        is_settled = False
        try:
            turns = list(dead.turns())
            done = await self._settle_all(turns, [dead.died_at] * len(turns))
            dead.flushed([settlement for settlement, is_recorded in done if is_recorded])
            is_settled = all(is_recorded for _, is_recorded in done)
            return len(turns)
        finally:
            dead.close(is_settled=is_settled)

    async def _settle_all(
        self, turns: Sequence[JournaledTurn], died_at: Sequence[datetime]
    ) -> list[tuple[Settlement, bool]]:
        """Each settlement, and whether it is recorded."""
        places = asyncio.Semaphore(_AT_ONCE)

        async def settle(turn: JournaledTurn, at: datetime) -> list[tuple[Settlement, bool]]:
            async with places:
                settlements = await self._settlements_of(turn, at)
            return [(settlement, await self.recorder.record(settlement)) for settlement in settlements]

        done = await asyncio.gather(*(settle(turn, at) for turn, at in zip(turns, died_at, strict=True)))
        return [one for of_turn in done for one in of_turn]

    async def _settlements_of(self, turn: JournaledTurn, died_at: datetime) -> list[Settlement]:
        """What is still to be written of it, the end last."""
        unwritten = [one for one in turn.settlements if one.id not in turn.flushed]
        start = turn.start
        if turn.has_ended or start is None:
            return unwritten
        router = None
        if turn.was_asked:
            router = RouterOutcome.CHARGED
            if not any(one.id == start.router_usage_id for one in turn.settlements):
                usage = self._router_estimate(start, died_at)
                unwritten.append(Settlement(turn_id=start.turn_id, usage=usage, end=None))
        chat = await self._chat_row(turn, start, died_at) if turn.was_sent else None
        end = TurnEnd(start=start, outcome=TurnOutcome.ABANDONED, ended_at=died_at, router=router)
        return [*unwritten, Settlement(turn_id=start.turn_id, usage=chat, end=end)]

    async def _chat_row(self, turn: JournaledTurn, start: TurnStart, died_at: datetime) -> TokenUsage:
        record = None
        if turn.generation_id is not None and start.provider.keeps_records:
            record = await self._record_of(start, turn.generation_id, died_at)
        tokens = _prompt_estimate(start) if record is None or record.tokens is None else record.tokens
        return _row(
            start,
            usage_id=start.turn_id,
            actor_id=start.agent or start.model_name,
            model_id=start.model_id,
            model_name=start.model_name,
            tokens=tokens,
            prices=start.prices,
            record=record,
            generation_id=turn.generation_id,
            awaits_truth=record is None and start.provider.keeps_records,
            died_at=died_at,
        )

    def _router_estimate(self, start: TurnStart, died_at: datetime) -> TokenUsage:
        tokens = min(_prompt_estimate(start).input, _MOST_QUESTION_TOKENS)
        return _row(
            start,
            usage_id=start.router_usage_id,
            actor_id=start.agent or start.model_name,
            model_id=None,
            model_name=self.router_model,
            tokens=TokenCounts(tokens, 0),
            prices=ROUTER_PRICES,
            record=None,
            generation_id=None,
            awaits_truth=True,
            died_at=died_at,
        )

    async def _record_of(
        self, start: TurnStart, generation_id: str, died_at: datetime
    ) -> GenerationRecord | None:
        """The provider's record, waited for while it may lag; None: reconciliation goes on asking."""
        try:
            sealed = await self.keys.of_project(start.project_id, start.provider)
            key = None if sealed is None else self.vault.open(sealed)
        except (DatabaseFailed, CannotOpenCredential):
            return None
        while key is not None:
            try:
                record = await self.records.find(start.provider, generation_id, key)
            except RecordsUnavailable:
                return None
            if record is not None or self.clock.now() > died_at + _RECORD_LAG:
                return record
            await asyncio.sleep(_ASK_AGAIN_S)
        return None


def _prompt_estimate(start: TurnStart) -> TokenCounts:
    """By bytes ÷ 3, as everywhere where nothing better is known; what it made is not known at all."""
    return TokenCounts(-(-start.prompt_bytes // 3), 0)


def _row(
    start: TurnStart,
    *,
    usage_id: UUID,
    actor_id: str,
    model_id: UUID | None,
    model_name: str,
    tokens: TokenCounts,
    prices: Prices,
    record: GenerationRecord | None,
    generation_id: str | None,
    awaits_truth: bool,
    died_at: datetime,
) -> TokenUsage:
    is_chat = usage_id == start.turn_id
    return TokenUsage(
        id=usage_id,
        turn_id=start.turn_id,
        session_id=start.session_id,
        project_id=start.project_id,
        actor_kind=ActorKind.AGENT,
        actor_id=actor_id,
        area=area_of(start.agent),
        provider=start.provider,
        model_id=model_id,
        model_name=model_name,
        tokens=tokens,
        is_estimated=record is None,
        awaits_truth=awaits_truth,
        cost=decide_cost(tokens, prices, None if record is None else record.charged_usd),
        latency_ms=max(0, round((died_at - start.started_at).total_seconds() * 1000)),
        binding_origin=start.binding_origin if is_chat else None,
        routing_preference=start.routing_preference if is_chat else None,
        upstream_provider=None if record is None else record.upstream_provider,
        resolved_model_name=None if record is None else record.resolved_model,
        generation_id=generation_id,
        created_at=died_at,
        traceparent=start.traceparent,
    )
