"""The queue of what is to be settled: written together, in order, for as long as it takes."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg
from structlog import get_logger

from adapters.postgres.corrections import correct_settled
from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row, is_connection_failure
from adapters.postgres.settle import PARK, SETTLE
from application.ports.journal import Journal
from application.ports.usage_recorder import UsageRecorder
from domain.settlement import Settlement, TurnEnd
from domain.usage import TokenUsage

_log = get_logger(__name__)
_encode: Final = msgspec.json.Encoder().encode

_BATCH_MAX: Final = 500
_LEISURE_S: Final = 0.02
"""What nobody waits for yet may wait for others, so that they are written together."""
_PAUSE_S: Final = 0.05
"""Between two attempts at what a moment may mend; doubled up to the longest while the database is away."""
_LONGEST_PAUSE_S: Final = 1.0
_LAST_S: Final = 0.25
"""At the end, for what the next process can write as well."""

_TRY_AGAIN_WHOLE: Final = frozenset({"40001", "40P01"})
"""Serialization failure, deadlock: PostgreSQL chose this one of two to give way."""

_TOO_SLOW: Final = "57014"
"""The server took longer than it is given; half of a batch may take half as long."""

_HELD_UP: Final = "55P03"
"""Somebody else has held a lock for longer than we wait for one."""

_POINTS_NOWHERE: Final = "23503"
"""A foreign key: what the record belongs to is gone."""

_OF_THE_RECORD: Final = ("44", "54", "P0", "XX")
"""Classes of refusals that are about what was handed over, beside bad data and constraints: views, limits of the
program, triggers, damage. All others are about the server, its disk or its schema, and pass."""


class _Row(msgspec.Struct):
    """A record as the statement takes it: columns of `token_usage` by their names, and what its counters need."""

    id: UUID
    turn_id: UUID
    session_id: UUID
    actor_kind: str
    actor_id: str
    provider: str
    model_id: UUID | None
    model_name: str
    input_tokens: int
    output_tokens: int
    estimated: bool
    cost_micros: int
    input_price_per_million_micros: int
    output_price_per_million_micros: int
    latency_ms: int
    binding_origin: str | None
    upstream_provider: str | None
    routing_preference: str | None
    created_at: datetime
    price_implicit: bool
    catalog_cost_micros: int | None
    resolved_model_name: str | None
    generation_id: str | None
    cached_input_tokens: int | None
    reasoning_tokens: int | None
    charged_usd: Decimal | None
    """Travels as text: a JSON number would be as exact, but not to every reader."""
    project_id: UUID
    area: str | None
    traceparent: str | None
    awaits_truth: bool


def _row_of(usage: TokenUsage) -> _Row:
    return _Row(
        id=usage.id,
        turn_id=usage.turn_id,
        session_id=usage.session_id,
        actor_kind=usage.actor_kind,
        actor_id=_storable(usage.actor_id),
        provider=usage.provider,
        model_id=usage.model_id,
        model_name=_storable(usage.model_name),
        input_tokens=usage.tokens.input,
        output_tokens=usage.tokens.output,
        estimated=usage.is_estimated,
        cost_micros=usage.cost.micros,
        input_price_per_million_micros=usage.cost.prices.input_per_million_micros,
        output_price_per_million_micros=usage.cost.prices.output_per_million_micros,
        latency_ms=usage.latency_ms,
        binding_origin=usage.binding_origin,
        upstream_provider=_storable_or_none(usage.upstream_provider),
        routing_preference=usage.routing_preference,
        created_at=usage.created_at,
        price_implicit=usage.cost.is_implicit,
        catalog_cost_micros=usage.cost.catalogue_micros,
        resolved_model_name=_storable_or_none(usage.resolved_model_name),
        generation_id=_storable_or_none(usage.generation_id),
        cached_input_tokens=usage.tokens.cached_input,
        reasoning_tokens=usage.tokens.reasoning,
        charged_usd=usage.cost.charged_usd,
        project_id=usage.project_id,
        area=usage.area,
        traceparent=usage.traceparent,
        awaits_truth=usage.awaits_truth,
    )


def _storable(text: str) -> str:
    """The text without what PostgreSQL's text cannot hold, which a provider's JSON can: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _storable_or_none(text: str | None) -> str | None:
    return None if text is None else _storable(text)


class _End(msgspec.Struct):
    """The end of a turn as the statement takes it: columns of `turn_starts` by their names."""

    turn_id: UUID
    router_usage_id: UUID
    workspace_id: UUID
    project_id: UUID
    session_id: UUID
    agent: str | None
    provider: str
    model_id: UUID
    model_name: str
    input_price_per_million_micros: int
    output_price_per_million_micros: int
    binding_origin: str
    routing_preference: str | None
    prompt_bytes: int
    process_id: UUID
    host: str
    started_at: datetime
    due_at: datetime
    traceparent: str | None
    generation_id: str | None
    ended_at: datetime
    outcome: str
    router_outcome: str | None
    error_code: str | None
    settled_by: UUID
    has_chat_row: bool


@dataclass(slots=True, eq=False)
class _Handed:
    """A settlement on its way: `answer` is what `record` answers."""

    settlement: Settlement
    row: bytes | None
    end: bytes | None
    kept: asyncio.Future[bool]
    answer: asyncio.Future[bool]
    handed_s: float
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Of the turn that handed it over, for what is logged of it: writers write for many turns."""
    patience: asyncio.TimerHandle | None = None
    names_model: bool = True

    @property
    def is_kept(self) -> bool:
        """The disk has it."""
        return self.kept.done() and self.kept.result()

    def leave_out_model(self) -> None:
        """Write null as its model, as the database does in the rows of a model that is deleted."""
        assert self.settlement.usage is not None
        self.row = _encode(msgspec.structs.replace(_row_of(self.settlement.usage), model_id=None))
        self.names_model = False


@dataclass(slots=True, eq=False)
class _Batch:
    """Settlements that are written together."""

    records: list[_Handed]
    quarantined: UUID | None = None
    """The one project that all of them belong to, if it is in quarantine."""


class PostgresUsageRecorder(UsageRecorder):
    """Writes together what is handed over while earlier writes are under way, on a pool that somebody else opens.

    Whoever hands something over waits `patience_s` at most; it is written all the same, whenever the database takes
    it. A project whose budget or area somebody else has locked is in quarantine until one of its writes succeeds: they
    are its alone, one at a time, and never take all the writers, so that they hold up no other. `on_unrecorded` is
    told of each row that neither the database nor the disk had when the patience ended; `on_parked`, of each that the
    ledger refused. Neither may raise.
    """

    def __init__(
        self,
        pool: Pool,
        journal: Journal,
        *,
        process_id: UUID,
        host: str,
        on_unrecorded: Callable[[TokenUsage], None] = lambda _usage: None,
        on_parked: Callable[[], None] = lambda: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._pool = pool
        self._journal = journal
        self._process_id = process_id
        self._host = host
        self._on_unrecorded = on_unrecorded
        self._on_parked = on_parked
        self._patience_s = patience_s
        self._unflushed: dict[_Handed, None] = {}
        """All that the database has not taken, the oldest first."""
        self._handed: deque[_Handed] = deque()
        self._again: deque[_Batch] = deque()
        """Batches, or halves of them, that failed and are to be tried again."""
        self._quarantine: dict[UUID, deque[_Handed]] = {}
        """By project, the longest untried first."""
        self._quarantined_under_way: set[UUID] = set()
        self._writers: set[asyncio.Task[None]] = set()
        self._gatherer: asyncio.Task[None] | None = None
        """The one writer that has not begun to write."""
        self._pause_s = _PAUSE_S
        self._is_closed = False

    @property
    def oldest_unflushed_s(self) -> float:
        oldest = next(iter(self._unflushed), None)
        return 0.0 if oldest is None else asyncio.get_running_loop().time() - oldest.handed_s

    @property
    def unkept(self) -> int:
        return sum(handed.kept.done() and not handed.kept.result() for handed in self._unflushed)

    async def record(self, settlement: Settlement, *, at_leisure: bool = False) -> bool:
        loop = asyncio.get_running_loop()
        usage, end = settlement.usage, settlement.end
        kept = self._journal.keep(settlement)
        if self._is_closed:
            if not (is_kept := await kept):
                self._report(settlement, "the recorder is closed")
            return is_kept
        try:
            row = None if usage is None else _encode(_row_of(usage))
            ending = None if end is None else _encode(self._end_of(settlement, end))
        except OverflowError:
            self._report(settlement, "a number is beyond 64 bits")
            return False
        handed = _Handed(settlement, row, ending, kept, loop.create_future(), loop.time())
        handed.patience = loop.call_later(self._patience_s, self._run_out_of_patience, handed)
        self._unflushed[handed] = None
        self._handed.append(handed)
        if not at_leisure:
            self._start_writer()
        elif self._gatherer is None:
            self._gatherer = self._start(self._gather())
        # Shielded: a caller that is cancelled leaves its record in good hands.
        return await asyncio.shield(handed.answer)

    async def close(self) -> None:
        """Take no more settlements, and wait until those handed over are written: for what is on disk a quarter of a
        second at the most, and as long as it takes for what exists nowhere else.
        """
        self._is_closed = True
        deadline_s = asyncio.get_running_loop().time() + min(self._patience_s, _LAST_S)
        while self._writers:
            left_s = deadline_s - asyncio.get_running_loop().time()
            if left_s <= 0 and not self.unkept:
                break
            await asyncio.wait(self._writers, timeout=left_s if left_s > 0 else _LONGEST_PAUSE_S)
        writers = list(self._writers)
        for writer in writers:
            writer.cancel()
        if writers:
            await asyncio.wait(writers)

    def _end_of(self, settlement: Settlement, end: TurnEnd) -> _End:
        start, usage = end.start, settlement.usage
        return _End(
            turn_id=start.turn_id,
            router_usage_id=start.router_usage_id,
            workspace_id=start.workspace_id,
            project_id=start.project_id,
            session_id=start.session_id,
            agent=_storable_or_none(start.agent),
            provider=start.provider,
            model_id=start.model_id,
            model_name=_storable(start.model_name),
            input_price_per_million_micros=start.prices.input_per_million_micros,
            output_price_per_million_micros=start.prices.output_per_million_micros,
            binding_origin=start.binding_origin,
            routing_preference=start.routing_preference,
            prompt_bytes=start.prompt_bytes,
            process_id=self._process_id,
            host=self._host,
            started_at=start.started_at,
            due_at=start.due_at,
            traceparent=start.traceparent,
            generation_id=None if usage is None else _storable_or_none(usage.generation_id),
            ended_at=end.ended_at,
            outcome=end.outcome,
            router_outcome=end.router,
            error_code=end.error_code,
            settled_by=self._process_id,
            has_chat_row=usage is not None,
        )

    def _start_writer(self) -> None:
        if len(self._writers) - (self._gatherer is not None) < self._pool.max_size:
            self._start(self._write())

    def _start(self, writing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        writer = asyncio.get_running_loop().create_task(writing, context=contextvars.Context())
        self._writers.add(writer)
        writer.add_done_callback(self._writer_ended)
        return writer

    async def _gather(self) -> None:
        """Wait a little for others to come along, which a writer may take away meanwhile; then write what is there."""
        try:
            if not self._is_closed:
                await asyncio.sleep(_LEISURE_S)
        finally:
            self._gatherer = None
        await self._write()

    async def _write(self) -> None:
        """Write until nothing is left to be written."""
        while batch := self._next_batch():
            try:
                await self._write_batch(batch)
            except asyncio.CancelledError:
                self._again.append(batch)
                raise

    async def _write_batch(self, batch: _Batch) -> None:
        try:
            await self._settle(batch.records)
        except psycopg.Error as error:
            self._end_attempt(batch, is_held_up=error.sqlstate == _HELD_UP)
            await self._recover(batch.records, error)
        except Exception as error:  # noqa: BLE001 - a writer that died would leave everybody's records behind
            self._end_attempt(batch, is_held_up=False)
            _log.error("settling_failed", error=type(error).__name__)
            await asyncio.sleep(_LONGEST_PAUSE_S)
            self._again.append(_Batch(batch.records))
        else:
            self._pause_s = _PAUSE_S
            self._end_attempt(batch, is_held_up=False)
            self._flushed(batch.records)

    async def _settle(self, records: list[_Handed]) -> None:
        rows: dict[UUID, bytes] = {}
        ends: dict[UUID, bytes] = {}
        others: set[UUID] = set()
        for handed in records:
            settlement = handed.settlement
            if handed.row is not None and rows.setdefault(settlement.id, handed.row) is not handed.row:
                others.add(settlement.id)
            if handed.end is not None:
                ends.setdefault(settlement.turn_id, handed.end)
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        parameters = {"rows": _list_of(rows.values()), "ends": _list_of(ends.values())}
        found = await fetch_row(self._pool, SETTLE, parameters, deadline_s=deadline_s)
        assert found is not None
        if found[0] == "[]" and not others:
            return
        # Rare: somebody has settled these before, with another figure.
        others.update(msgspec.json.decode(found[0], type=list[UUID]))
        for handed in records:
            if handed.settlement.usage is not None and handed.settlement.id in others:
                await correct_settled(self._pool, handed.settlement.usage)

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        self._writers.discard(writer)
        if writer.cancelled():
            # Only the end of the event loop cancels a writer, and with it all the others.
            if not self._writers:
                for handed in list(self._unflushed):
                    self._leave_behind(handed)
        elif self._handed or self._again:
            # Handed over after this writer had looked for more, and before it counted as ended.
            self._start_writer()

    def _next_batch(self) -> _Batch | None:
        """None when there is nothing to write, or nothing that may be tried now."""
        if self._again:
            return self._again.popleft()
        return self._next_quarantined() or self._next_fresh()

    def _next_quarantined(self) -> _Batch | None:
        # One writer at least is there for everybody else.
        if len(self._quarantined_under_way) >= max(1, self._pool.max_size - 1):
            return None
        for project in [one for one in self._quarantine if one not in self._quarantined_under_way]:
            waiting = self._quarantine.pop(project)
            if records := _take(waiting):
                self._quarantine[project] = waiting
                self._quarantined_under_way.add(project)
                return _Batch(records, project)
        return None

    def _next_fresh(self) -> _Batch | None:
        fresh: list[_Handed] = []
        while self._handed and len(fresh) < _BATCH_MAX:
            handed = self._handed.popleft()
            if (waiting := self._quarantine.get(handed.settlement.project_id)) is not None:
                waiting.append(handed)
            else:
                fresh.append(handed)
        return _Batch(fresh) if fresh else None

    def _end_attempt(self, batch: _Batch, *, is_held_up: bool) -> None:
        """The write of a project in quarantine has ended; unless it was held up again, the project is free."""
        if batch.quarantined is not None:
            self._quarantined_under_way.discard(batch.quarantined)
            if not is_held_up:
                self._handed.extendleft(reversed(self._quarantine.pop(batch.quarantined, ())))

    async def _recover(self, records: list[_Handed], error: psycopg.Error) -> None:
        """Decide what becomes of records whose write failed; every writer may take up what is left of them."""
        if error.sqlstate == _HELD_UP:
            self._set_apart(records)
        elif error.sqlstate in _TRY_AGAIN_WHOLE:
            await asyncio.sleep(_PAUSE_S)
            self._again.append(_Batch(records))
        elif len(records) > 1 and (error.sqlstate == _TOO_SLOW or _is_of_a_record(error)):
            # One record is at fault, and must not take its neighbours with it.
            middle = len(records) // 2
            self._again.extend((_Batch(records[:middle]), _Batch(records[middle:])))
        elif not _is_of_a_record(error):
            await self._wait_for_the_server(records, error)
        elif records[0].row is not None and error.sqlstate == _POINTS_NOWHERE and records[0].names_model:
            # The model may have been deleted since the turn read of it; a session that is gone fails again.
            records[0].leave_out_model()
            self._again.append(_Batch(records))
        else:
            await self._park(records[0], error)

    async def _wait_for_the_server(self, records: list[_Handed], error: psycopg.Error) -> None:
        """It is away, or takes nothing from anybody: a standby, a full disk, a schema that is being altered."""
        if not is_connection_failure(error):  # which the pool tells of
            _log.error("settling_failed", error=type(error).__name__, sqlstate=error.sqlstate)
        # In front of what has come since: it is written in order.
        self._again.appendleft(_Batch(records))
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)

    async def _park(self, handed: _Handed, refusal: psycopg.Error) -> None:
        """The ledger refuses it for good. The money was spent all the same."""
        reason = f"{refusal.diag.message_primary} (SQLSTATE {refusal.sqlstate})"
        usage = handed.settlement.usage
        if usage is None:
            self._give_up(handed, f"the database refused it: {reason}")
            return
        row = _encode(_row_of(usage))
        parameters = {
            "rows": _list_of([row]),
            "ends": _list_of([] if handed.end is None else [handed.end]),
            "record": row.decode(),
            "reason": reason,
        }
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        try:
            found = await fetch_row(self._pool, PARK, parameters, deadline_s=deadline_s)
            assert found is not None
            is_new = found[0] > 0
            if not is_new:
                await correct_settled(self._pool, usage)
        except psycopg.Error as error:
            if _is_of_a_record(error):
                self._give_up(
                    handed, f"the database refused it: {reason}, and parked: SQLSTATE {error.sqlstate}"
                )
            elif error.sqlstate == _HELD_UP:
                self._set_apart([handed])
            else:
                await self._wait_for_the_server([handed], error)
            return
        if is_new:
            handed.context.run(_log.error, "usage_parked", reason=reason, id=str(usage.id))
            self._on_parked()
        self._flushed([handed])

    def _set_apart(self, records: list[_Handed]) -> None:
        """Find the project that is locked, which the database does not name: each is tried alone, before all others."""
        by_project: dict[UUID, list[_Handed]] = {}
        for handed in records:
            by_project.setdefault(handed.settlement.project_id, []).append(handed)
        if len(by_project) == 1:
            (project,) = by_project
            self._quarantine.setdefault(project, deque()).extendleft(reversed(records))
            return
        for alone in by_project.values():
            self._again.append(_Batch(alone))
            self._start_writer()

    def _flushed(self, records: list[_Handed]) -> None:
        """The database has them."""
        self._journal.flushed([handed.settlement for handed in records])
        for handed in records:
            self._unflushed.pop(handed, None)
            if handed.patience is not None:
                handed.patience.cancel()
            if handed.answer.done():
                handed.context.run(_log.warning, "usage_recorded_late", id=str(handed.settlement.id))
            else:
                handed.answer.set_result(True)

    def _run_out_of_patience(self, handed: _Handed) -> None:
        """Its caller is answered; it stays to be written."""
        if handed.answer.done():
            return
        handed.answer.set_result(handed.is_kept)
        if handed.is_kept:
            handed.context.run(_log.warning, "usage_kept_for_later", id=str(handed.settlement.id))
        else:
            handed.context.run(
                self._report, handed.settlement, "neither the database nor the disk took it in time"
            )

    def _give_up(self, handed: _Handed, reason: str) -> None:
        """Nothing will ever take it."""
        handed.context.run(self._report, handed.settlement, reason)
        self._unflushed.pop(handed, None)
        if handed.patience is not None:
            handed.patience.cancel()
        if not handed.answer.done():
            handed.answer.set_result(False)

    def _leave_behind(self, handed: _Handed) -> None:
        """The event loop ends before the database took it; what is on disk is settled by the next process."""
        if not handed.is_kept:
            self._give_up(handed, "the process ended before the database took it")
        elif not handed.answer.done():
            handed.answer.set_result(True)

    def _report(self, settlement: Settlement, reason: str) -> None:
        if settlement.usage is not None:
            row = msgspec.to_builtins(_row_of(settlement.usage))
            _log.error("usage_unrecorded", reason=reason, **row)
            self._on_unrecorded(settlement.usage)
        else:
            _log.error("turn_end_unrecorded", reason=reason, turn_id=str(settlement.turn_id))


def _is_of_a_record(error: psycopg.Error) -> bool:
    """Whether it would be refused again, whenever it came."""
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
        return True
    return error.sqlstate is not None and error.sqlstate.startswith(_OF_THE_RECORD)


def _list_of(documents: Iterable[bytes]) -> str:
    return (b"[" + b",".join(documents) + b"]").decode()


def _take(waiting: deque[_Handed]) -> list[_Handed]:
    """The first of them, as many as are written together."""
    return [waiting.popleft() for _ in range(min(len(waiting), _BATCH_MAX))]
