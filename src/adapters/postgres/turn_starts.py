"""Starts and heartbeats in PostgreSQL."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
import psycopg
import structlog

from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row, fetch_row_or_fail
from adapters.postgres.settle import START_COLUMNS, names, typed
from application.ports.turn_starts import OrphanedStart, OrphanedStarts, TurnStarts
from domain.provider import Provider, RoutingPreference
from domain.settlement import TurnStart
from domain.usage import Prices

_log: Final = structlog.get_logger(__name__)
_encode: Final = msgspec.json.Encoder().encode

_FLUSH_S: Final = 0.25
"""Turns that end sooner are written with their end alone."""
BEAT_S: Final = 5.0
"""Between two heartbeats."""

_FLUSH: Final = f"""INSERT INTO turn_starts AS s ({names(START_COLUMNS)})
    SELECT {names(START_COLUMNS)} FROM json_to_recordset(%(starts)s::json) AS r ({typed(START_COLUMNS)})
    ORDER BY turn_id
    ON CONFLICT (turn_id) DO UPDATE SET generation_id = excluded.generation_id
    WHERE s.ended_at IS NULL AND excluded.generation_id IS NOT NULL
    RETURNING 1
""".encode()

_BEAT: Final = b"""INSERT INTO api_processes (id, host) VALUES (%(id)s, %(host)s)
    ON CONFLICT (id) DO UPDATE SET beat_at = now()
    RETURNING 1
"""

_TAKE: Final = f"""WITH taken AS (
        SELECT s.turn_id, coalesce(p.beat_at, s.started_at) AS last_heard_at
        FROM turn_starts s LEFT JOIN api_processes p ON p.id = s.process_id
        WHERE s.ended_at IS NULL AND s.process_id <> ALL (%(here)s)
            AND coalesce(p.beat_at, s.started_at) < now() - make_interval(secs => %(silent_s)s)
            AND (s.taken_until IS NULL OR s.taken_until < now())
        ORDER BY s.started_at LIMIT %(limit)s
        FOR UPDATE OF s SKIP LOCKED
    ), marked AS (
        UPDATE turn_starts s SET taken_until = now() + interval '1 minute'
        FROM taken t WHERE s.turn_id = t.turn_id
        RETURNING {", ".join(f"s.{name}" for name in START_COLUMNS)}, t.last_heard_at
    )
    SELECT coalesce(json_agg(marked ORDER BY started_at), '[]')::text FROM marked
""".encode()


class _StartRow(msgspec.Struct):
    """A start by the names of its columns."""

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
    last_heard_at: datetime | None = None


def start_row(start: TurnStart, process_id: UUID, host: str, generation_id: str | None = None) -> _StartRow:
    """The start as statements take it."""
    return _StartRow(
        turn_id=start.turn_id,
        router_usage_id=start.router_usage_id,
        workspace_id=start.workspace_id,
        project_id=start.project_id,
        session_id=start.session_id,
        agent=start.agent,
        provider=start.provider,
        model_id=start.model_id,
        model_name=start.model_name,
        input_price_per_million_micros=start.prices.input_per_million_micros,
        output_price_per_million_micros=start.prices.output_per_million_micros,
        binding_origin=start.binding_origin,
        routing_preference=start.routing_preference,
        prompt_bytes=start.prompt_bytes,
        process_id=process_id,
        host=host,
        started_at=start.started_at,
        due_at=start.due_at,
        traceparent=start.traceparent,
        generation_id=generation_id,
    )


class PostgresTurnStarts(TurnStarts):
    """Writes starts and beats the process's heart while `run` runs, on a pool that somebody else opens."""

    def __init__(self, pool: Pool, *, process_id: UUID, host: str) -> None:
        self._pool = pool
        self._process_id = process_id
        self._host = host
        self._starts: dict[UUID, TurnStart] = {}
        """Of the turns that have not ended."""
        self._generations: dict[UUID, str] = {}
        self._unwritten: set[UUID] = set()

    def note(self, start: TurnStart) -> None:
        self._starts[start.turn_id] = start
        self._unwritten.add(start.turn_id)

    def note_generation(self, turn_id: UUID, generation_id: str) -> None:
        if turn_id in self._starts:
            self._generations[turn_id] = generation_id
            self._unwritten.add(turn_id)

    def forget(self, turn_id: UUID) -> None:
        self._starts.pop(turn_id, None)
        self._generations.pop(turn_id, None)
        self._unwritten.discard(turn_id)

    async def run(self) -> None:
        """Write and beat until cancelled. What the database does not take now it is given again."""
        loop = asyncio.get_running_loop()
        next_beat_s = loop.time()
        while True:
            try:
                if loop.time() >= next_beat_s:
                    await self._execute(_BEAT, {"id": self._process_id, "host": self._host})
                    next_beat_s = loop.time() + BEAT_S
                await self._flush()
            except psycopg.Error as error:
                _log.info("starts_unwritten", error=type(error).__name__, sqlstate=error.sqlstate)
            await asyncio.sleep(_FLUSH_S)

    async def _flush(self) -> None:
        due, self._unwritten = self._unwritten, set()
        rows = [
            start_row(start, self._process_id, self._host, self._generations.get(turn_id))
            for turn_id in due
            if (start := self._starts.get(turn_id)) is not None
        ]
        if not rows:
            return
        try:
            await self._execute(_FLUSH, {"starts": _encode(rows).decode()})
        except BaseException:
            self._unwritten |= due & self._starts.keys()
            raise

    async def _execute(self, query: bytes, parameters: dict[str, object]) -> None:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        await fetch_row(self._pool, query, parameters, deadline_s=deadline_s)


class PostgresOrphanedStarts(OrphanedStarts):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def take(self, *, silent_s: float, limit: int, here: Sequence[UUID]) -> Sequence[OrphanedStart]:
        parameters = {"silent_s": silent_s, "limit": limit, "here": list(here)}
        row = await fetch_row_or_fail(self._pool, _TAKE, parameters)
        assert row is not None, "an aggregate has a row"
        return [_orphan_of(found) for found in msgspec.json.decode(row[0], type=list[_StartRow])]


def _orphan_of(row: _StartRow) -> OrphanedStart:
    assert row.last_heard_at is not None
    start = TurnStart(
        turn_id=row.turn_id,
        router_usage_id=row.router_usage_id,
        workspace_id=row.workspace_id,
        project_id=row.project_id,
        session_id=row.session_id,
        agent=row.agent,
        provider=Provider(row.provider),
        model_id=row.model_id,
        model_name=row.model_name,
        prices=Prices(row.input_price_per_million_micros, row.output_price_per_million_micros),
        binding_origin=row.binding_origin,
        routing_preference=None
        if row.routing_preference is None
        else RoutingPreference(row.routing_preference),
        prompt_bytes=row.prompt_bytes,
        started_at=row.started_at,
        due_at=row.due_at,
        traceparent=row.traceparent,
    )
    return OrphanedStart(start=start, generation_id=row.generation_id, last_heard_at=row.last_heard_at)
