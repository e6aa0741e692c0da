"""The turn's one settle: rows, budgets, areas and crossed thresholds of all the turns that end together."""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    Integer,
    Numeric,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    insert,
    literal_column,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import array, distinct_on
from sqlalchemy.dialects.postgresql import insert as insert_or_ignore
from structlog import get_logger

from adapters.postgres.pool import PATIENCE_S, Pool, as_query, fetch_row, is_connection_failure
from adapters.postgres.tables import agent_areas, budgets, outbox_events, token_usage
from application.ports.usage_recorder import UsageRecorder
from domain.budget import THRESHOLDS_PERCENT, BudgetScope
from domain.usage import TokenUsage

_log = get_logger(__name__)
_encode: Final = msgspec.json.Encoder().encode

_BATCH_MAX: Final = 500
_LEISURE_S: Final = 0.02
"""What nobody waits for yet may wait for others, so that they are written together."""
_PAUSE_S: Final = 0.05
"""Between two attempts at what a moment may mend."""

_TRY_AGAIN_WHOLE: Final = frozenset({"40001", "40P01", "57014"})
"""Serialization failure, deadlock: PostgreSQL chose this one of two to give way. Or a server too slow just now."""

_HELD_UP: Final = "55P03"
"""Somebody else has held a lock for longer than we wait for one."""

_POINTS_NOWHERE: Final = "23503"
"""A foreign key: what the record belongs to is gone."""


class _Row(msgspec.Struct):
    """A record as the statement takes it: columns of `token_usage` by their names, and what its counters need."""

    id: UUID
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


def _row_of(usage: TokenUsage) -> _Row:
    return _Row(
        id=usage.id,
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
    )


def _storable(text: str) -> str:
    """The text without what PostgreSQL's text cannot hold, which a provider's JSON can: NUL and lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _storable_or_none(text: str | None) -> str | None:
    return None if text is None else _storable(text)


def _text(text: str) -> ColumnElement[str]:
    return literal_column(f"'{text}'", Text)


def _settle_statement() -> bytes:
    """All in one statement, so in one transaction and one snapshot.

    Counters move by what was inserted, never by what was handed over: a record that is there already moves none.
    The rows to be moved are locked in the order of their ids, budgets before areas, and each is updated by one CTE
    only, from the values its lock brought: those beside the UPDATE may be older.
    """
    zero, one, hundred = (literal_column(number, Integer) for number in ("0", "1", "100"))
    row_columns = [token_usage.c[name] for name in _Row.__struct_fields__ if name in token_usage.c]
    record = (
        func.json_to_recordset(cast(bindparam("records", type_=Text), JSON))
        .table_valued(
            *(column(stored.name, stored.type) for stored in row_columns),
            column("project_id", Uuid),
            column("area", Text),
            column("traceparent", Text),
        )
        .render_derived(name="record", with_types=True)
    )
    handed = select(record).ext(distinct_on(record.c.id)).order_by(record.c.id).cte("handed")
    inserted = (
        insert_or_ignore(token_usage)
        .from_select(
            [stored.name for stored in row_columns],
            select(*(handed.c[stored.name] for stored in row_columns)).order_by(handed.c.id),
            include_defaults=False,
        )
        .on_conflict_do_nothing(index_elements=[token_usage.c.id])
        .returning(token_usage.c.id)
        .cte("inserted")
    )
    written = (
        select(
            handed.c.id,
            handed.c.project_id,
            handed.c.session_id,
            handed.c.area,
            handed.c.cost_micros,
            handed.c.traceparent,
        )
        .join_from(handed, inserted, inserted.c.id == handed.c.id)
        .cte("written")
    )

    def shares_of(owner: ColumnElement[UUID], owner_written: ColumnElement[UUID]) -> Select[UUID, Decimal]:
        return (
            select(budgets.c.id, func.sum(written.c.cost_micros).label("cost_micros"))
            .join_from(written, budgets, owner == owner_written)
            .group_by(budgets.c.id)
        )

    shares = union_all(
        shares_of(budgets.c.project_id, written.c.project_id),
        shares_of(budgets.c.session_id, written.c.session_id),
    ).cte("shares")
    locked = (
        select(
            budgets.c.id,
            budgets.c.project_id,
            budgets.c.session_id,
            budgets.c.limit_micros,
            budgets.c.last_threshold_notified,
            budgets.c.spent_micros.label("spent_before_micros"),
            (budgets.c.spent_micros + shares.c.cost_micros).label("spent_micros"),
        )
        .join_from(budgets, shares, shares.c.id == budgets.c.id)
        .order_by(budgets.c.id)
        .with_for_update(of=budgets)
        .cte("locked")
    )

    def reaches(spent_micros: ColumnElement[Any], percent: ColumnElement[int]) -> ColumnElement[bool]:
        return and_(
            locked.c.limit_micros > zero,
            cast(spent_micros, Numeric) * hundred >= cast(locked.c.limit_micros, Numeric) * percent,
        )

    percents = [literal_column(str(percent), Integer) for percent in THRESHOLDS_PERCENT]
    reached = case(
        *((reaches(locked.c.spent_micros, percent), percent) for percent in reversed(percents)), else_=zero
    )
    moved_budgets = (
        update(budgets)
        .where(budgets.c.id == locked.c.id)
        .values(
            spent_micros=cast(locked.c.spent_micros, BigInteger),
            last_threshold_notified=func.greatest(locked.c.last_threshold_notified, reached),
            updated_at=func.now(),
        )
        .returning(budgets.c.id)
        .cte("moved_budgets")
    )
    thresholds = (
        func.unnest(array(percents))
        .table_valued(column("percent", Integer))
        .render_derived(name="thresholds")
    )
    # A threshold is the doing of one record of the batch, by the order of ids: its trace, and what was spent then.
    running = (
        select(
            written.c.id,
            written.c.traceparent,
            (
                locked.c.spent_before_micros + func.sum(written.c.cost_micros).over(order_by=written.c.id)
            ).label("spent_micros"),
        )
        .where(or_(written.c.project_id == locked.c.project_id, written.c.session_id == locked.c.session_id))
        .correlate(locked)
        .lateral("running")
    )
    crossing = (
        select(running.c.traceparent, cast(running.c.spent_micros, BigInteger).label("spent_micros"))
        .where(reaches(running.c.spent_micros, thresholds.c.percent))
        .order_by(running.c.id)
        .limit(one)
        .correlate(locked, thresholds)
        .lateral("crossing")
    )
    payload = {
        "scope": case(
            (locked.c.project_id.is_not(None), _text(BudgetScope.PROJECT)), else_=_text(BudgetScope.SESSION)
        ),
        "scopeId": func.coalesce(locked.c.project_id, locked.c.session_id),
        "threshold": thresholds.c.percent,
        "spentMicros": crossing.c.spent_micros,
        "limitMicros": locked.c.limit_micros,
    }
    announced = (
        insert(outbox_events)
        .from_select(
            ["aggregate_type", "aggregate_id", "event_type", "payload", "metadata"],
            select(
                _text("budget"),
                locked.c.id,
                _text("budget.threshold_crossed"),
                func.jsonb_build_object(
                    *chain.from_iterable((_text(key), value) for key, value in payload.items())
                ),
                func.jsonb_strip_nulls(func.jsonb_build_object(_text("traceparent"), crossing.c.traceparent)),
            )
            .select_from(
                locked.join(
                    thresholds,
                    and_(
                        thresholds.c.percent > locked.c.last_threshold_notified,
                        reaches(locked.c.spent_micros, thresholds.c.percent),
                    ),
                ).join(crossing, true())
            )
            .order_by(locked.c.id, thresholds.c.percent),
            include_defaults=False,
        )
        .returning(outbox_events.c.id)
        .cte("announced")
    )
    area_shares = (
        select(agent_areas.c.id, func.sum(written.c.cost_micros).label("cost_micros"))
        .join_from(
            written,
            agent_areas,
            and_(agent_areas.c.project_id == written.c.project_id, agent_areas.c.key == written.c.area),
        )
        # Asking for the budgets here is what makes their locks come first.
        .where(select(func.count()).select_from(moved_budgets).scalar_subquery() >= zero)
        .group_by(agent_areas.c.id)
        .cte("area_shares")
    )
    locked_areas = (
        select(
            agent_areas.c.id,
            (agent_areas.c.spent_micros + area_shares.c.cost_micros).label("spent_micros"),
        )
        .join_from(agent_areas, area_shares, area_shares.c.id == agent_areas.c.id)
        .order_by(agent_areas.c.id)
        .with_for_update(of=agent_areas)
        .cte("locked_areas")
    )
    moved_areas = (
        update(agent_areas)
        .where(agent_areas.c.id == locked_areas.c.id)
        .values(spent_micros=cast(locked_areas.c.spent_micros, BigInteger), updated_at=func.now())
        .returning(agent_areas.c.id)
        .cte("moved_areas")
    )
    return as_query(select(func.count()).select_from(inserted).add_cte(announced, moved_areas))


_SETTLE: Final = _settle_statement()


@dataclass(slots=True, eq=False)
class _Handed:
    """A record on its way: `settled` is what `record` answers."""

    usage: TokenUsage
    json: bytes
    settled: asyncio.Future[bool]
    deadline_s: float
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Of the turn that handed it over, for what is logged of it: writers write for many turns."""
    expiry: asyncio.TimerHandle | None = None
    names_model: bool = True

    def leave_out_model(self) -> None:
        """Write null as its model, as the database does in the rows of a model that is deleted."""
        self.json = _encode(msgspec.structs.replace(_row_of(self.usage), model_id=None))
        self.names_model = False


@dataclass(slots=True, eq=False)
class _Batch:
    """Records that are written together."""

    records: list[_Handed]
    quarantined: UUID | None = None
    """The one project that all of them belong to, if it is in quarantine."""


class PostgresUsageRecorder(UsageRecorder):
    """Writes together what is handed over while earlier writes are under way, on a pool that somebody else opens.

    A project whose budget or area somebody else has locked is in quarantine until one of its writes succeeds: they are
    its alone, one at a time, and never take all the writers, so that they hold up no other. `on_unrecorded` is told
    of every record that was not known to be committed `patience_s` after it was handed over, or when the event loop
    ended, or that the database refused; it must not raise.
    """

    def __init__(
        self, pool: Pool, *, on_unrecorded: Callable[[TokenUsage], None], patience_s: float = PATIENCE_S
    ) -> None:
        self._pool = pool
        self._on_unrecorded = on_unrecorded
        self._patience_s = patience_s
        self._handed: deque[_Handed] = deque()
        self._again: deque[_Batch] = deque()
        """Batches, or halves of them, that failed and are to be tried again."""
        self._quarantine: dict[UUID, deque[_Handed]] = {}
        """By project, the longest untried first."""
        self._quarantined_under_way: set[UUID] = set()
        self._writers: set[asyncio.Task[None]] = set()
        self._gatherer: asyncio.Task[None] | None = None
        """The one writer that has not begun to write."""
        self._is_closed = False

    async def record(self, usage: TokenUsage, *, at_leisure: bool = False) -> bool:
        loop = asyncio.get_running_loop()
        if self._is_closed:
            self._report(usage, "the recorder is closed")
            return False
        try:
            json = _encode(_row_of(usage))
        except OverflowError:
            self._report(usage, "a number is beyond 64 bits")
            return False
        handed = _Handed(usage, json, loop.create_future(), loop.time() + self._patience_s)
        handed.expiry = loop.call_at(
            handed.deadline_s, self._give_up, handed, "the database did not take it in time"
        )
        self._handed.append(handed)
        if not at_leisure:
            self._start_writer()
        elif self._gatherer is None:
            self._gatherer = self._start(self._gather())
        # Shielded: a caller that is cancelled leaves its record in good hands.
        return await asyncio.shield(handed.settled)

    async def close(self) -> None:
        """Take no more records, and wait until those handed over are settled: `patience_s` at the most."""
        self._is_closed = True
        while self._writers:
            await asyncio.wait(self._writers)

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
        deadline_s = max(handed.deadline_s for handed in batch.records)
        records = b"[" + b",".join(handed.json for handed in batch.records) + b"]"
        try:
            await fetch_row(self._pool, _SETTLE, {"records": records.decode()}, deadline_s=deadline_s)
        except psycopg.Error as error:
            self._end_attempt(batch, is_held_up=error.sqlstate == _HELD_UP)
            await self._recover(batch.records, error)
        except Exception as error:  # noqa: BLE001 - a writer that died would leave everybody's records behind
            self._end_attempt(batch, is_held_up=False)
            for handed in batch.records:
                self._give_up(handed, f"writing it failed: {type(error).__name__}")
        else:
            self._end_attempt(batch, is_held_up=False)
            for handed in batch.records:
                self._settle(handed)

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        self._writers.discard(writer)
        if writer.cancelled():
            # Only the end of the event loop cancels a writer, and with it all the others.
            self._quarantined_under_way.clear()
            while batch := self._next_batch():
                self._end_attempt(batch, is_held_up=False)
                for handed in batch.records:
                    self._give_up(handed, "the process ended before the database took it")
        elif self._handed or self._again:
            # Handed over after this writer had looked for more, and before it counted as ended.
            self._start_writer()

    def _next_batch(self) -> _Batch | None:
        """Records that still have time; None when there are none, or none that may be tried now."""
        while self._again:
            again = self._again.popleft()
            again.records = [handed for handed in again.records if not handed.settled.done()]
            if again.records:
                return again
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
            if handed.settled.done():
                continue
            if (waiting := self._quarantine.get(handed.usage.project_id)) is not None:
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
        elif error.sqlstate in _TRY_AGAIN_WHOLE or is_connection_failure(error):
            await asyncio.sleep(_PAUSE_S)
            self._again.append(_Batch(records))
        elif len(records) > 1:
            # One record is at fault, and must not take its neighbours with it.
            middle = len(records) // 2
            self._again.extend((_Batch(records[:middle]), _Batch(records[middle:])))
        elif error.sqlstate == _POINTS_NOWHERE and records[0].names_model:
            # The model may have been deleted since the turn read of it; a session that is gone fails again.
            records[0].leave_out_model()
            self._again.append(_Batch(records))
        else:
            self._give_up(
                records[0],
                f"the database refused it: {error.diag.message_primary} (SQLSTATE {error.sqlstate})",
            )

    def _set_apart(self, records: list[_Handed]) -> None:
        """Find the project that is locked, which the database does not name: each is tried alone, before all others."""
        by_project: dict[UUID, list[_Handed]] = {}
        for handed in records:
            by_project.setdefault(handed.usage.project_id, []).append(handed)
        if len(by_project) == 1:
            (project,) = by_project
            self._quarantine.setdefault(project, deque()).extendleft(reversed(records))
            return
        for alone in by_project.values():
            self._again.append(_Batch(alone))
            self._start_writer()

    def _settle(self, handed: _Handed) -> None:
        if handed.expiry is not None:
            handed.expiry.cancel()
        if handed.settled.done():
            handed.context.run(_log.warning, "usage_recorded_late", id=str(handed.usage.id))
        else:
            handed.settled.set_result(True)

    def _give_up(self, handed: _Handed, reason: str) -> None:
        if handed.expiry is not None:
            handed.expiry.cancel()
        if not handed.settled.done():
            handed.settled.set_result(False)
            handed.context.run(self._report, handed.usage, reason)

    def _report(self, usage: TokenUsage, reason: str) -> None:
        _log.error("usage_unrecorded", reason=reason, **msgspec.to_builtins(_row_of(usage)))
        self._on_unrecorded(usage)


def _take(waiting: deque[_Handed]) -> list[_Handed]:
    """The first of them that still have time, as many as are written together."""
    taken: list[_Handed] = []
    while waiting and len(taken) < _BATCH_MAX:
        handed = waiting.popleft()
        if not handed.settled.done():
            taken.append(handed)
    return taken
