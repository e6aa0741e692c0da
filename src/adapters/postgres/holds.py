"""Holds of strict budgets in PostgreSQL."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
import psycopg

from adapters.postgres.gathered import GatheredReads
from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row_from_the_living, fetch_row_or_fail
from adapters.postgres.settle import START_COLUMNS, names, typed
from adapters.postgres.turn_starts import start_row
from application.ports.holds import HoldRequest, Holds
from application.ports.turn_context import ContextUnavailable
from domain.budget import Budget, BudgetScope

_encode: Final = msgspec.json.Encoder().encode

_REQUEST: Final = {
    "at": "integer",
    "turn_id": "uuid",
    "chat_micros": "numeric",
    "router_micros": "numeric",
    "micros": "numeric",
    "budget_ids": "uuid[]",
}
_FIELDS: Final = (
    "b.id, b.project_id IS NOT NULL AS is_of_project, b.limit_micros, b.spent_micros, b.held_micros"
)
_IS_STRICT: Final = "b.strict AND b.policy = 'block' AND b.limit_micros > 0"
_IS_NEW: Final = "NOT EXISTS (SELECT FROM budget_holds h WHERE h.turn_id = r.turn_id AND h.budget_id = b.id)"

_PLACE: Final = f"""
    WITH RECURSIVE requests AS (
            SELECT * FROM json_to_recordset(%(requests)s::json) AS r ({typed(_REQUEST)})
        ), hopeless AS (
            -- What is short already is refused without a lock, and so without a write.
            SELECT DISTINCT ON (r.at) r.at, {_FIELDS}
            FROM requests r JOIN budgets b ON b.id = ANY (r.budget_ids) AND {_IS_STRICT}
            WHERE b.spent_micros::numeric + b.held_micros + r.micros > b.limit_micros AND {_IS_NEW}
            ORDER BY r.at, b.id
        ), hopeful AS (
            SELECT row_number() OVER (ORDER BY at) AS step, r.*
            FROM requests r WHERE NOT EXISTS (SELECT FROM hopeless h WHERE h.at = r.at)
        ), locked AS (
            SELECT {_FIELDS} FROM budgets b
            WHERE b.id IN (SELECT unnest(budget_ids) FROM hopeful) AND {_IS_STRICT}
            ORDER BY b.id FOR UPDATE OF b
        ), walk AS (
            -- One request after the other, each beside what those before it have taken of every budget.
            SELECT 0::bigint AS step, '{{}}'::jsonb AS taken, NULL::uuid AS short_id, 0 AS budgets
            UNION ALL
            SELECT r.step, CASE WHEN tried.short_id IS NULL THEN walk.taken || tried.taken ELSE walk.taken END,
                tried.short_id, tried.budgets
            FROM walk JOIN hopeful r ON r.step = walk.step + 1
            CROSS JOIN LATERAL (
                SELECT count(*)::integer AS budgets,
                    coalesce(jsonb_object_agg(id, taken + r.micros) FILTER (WHERE is_new), '{{}}') AS taken,
                    (array_agg(id ORDER BY id) FILTER (
                        WHERE is_new AND spent_micros::numeric + held_micros + taken + r.micros > limit_micros
                    ))[1] AS short_id
                FROM (
                    SELECT b.*, coalesce((walk.taken ->> b.id::text)::numeric, 0) AS taken, {_IS_NEW} AS is_new
                    FROM locked b WHERE b.id = ANY (r.budget_ids)
                ) of_request
            ) tried
        ), granted AS (
            SELECT r.* FROM walk JOIN hopeful r USING (step) WHERE short_id IS NULL AND budgets > 0
        ), started AS (
            -- A turn that somebody else has ended meanwhile gets no hold: nobody would settle it.
            INSERT INTO turn_starts AS s ({names(START_COLUMNS)})
            SELECT {names(START_COLUMNS)} FROM json_to_recordset(%(starts)s::json) AS r ({typed(START_COLUMNS)})
            WHERE turn_id IN (SELECT turn_id FROM granted) ORDER BY turn_id
            ON CONFLICT (turn_id) DO UPDATE SET started_at = s.started_at WHERE s.ended_at IS NULL
            RETURNING s.turn_id
        ), held AS (
            INSERT INTO budget_holds (turn_id, budget_id, granted_micros, chat_micros, router_micros)
            SELECT turn_id, locked.id, micros::bigint, chat_micros::bigint, router_micros::bigint
            FROM granted JOIN started USING (turn_id) JOIN locked ON locked.id = ANY (budget_ids)
            ORDER BY turn_id, locked.id
            ON CONFLICT (turn_id, budget_id) DO NOTHING
            RETURNING budget_id, granted_micros
        ), moved AS (
            UPDATE budgets b SET held_micros = locked.held_micros + added.micros::bigint, updated_at = now()
            FROM locked JOIN (SELECT budget_id, sum(granted_micros) AS micros FROM held GROUP BY budget_id) added
                ON added.budget_id = locked.id
            WHERE b.id = locked.id
            RETURNING b.id
        ), refused AS (
            SELECT * FROM hopeless
            UNION ALL
            SELECT r.at, b.id, is_of_project, limit_micros, spent_micros,
                held_micros + coalesce((walk.taken ->> b.id::text)::bigint, 0)
            FROM walk JOIN hopeful r USING (step) JOIN locked b ON b.id = walk.short_id
        )
    SELECT json_agg(json_build_array(r.at, f.id, is_of_project, limit_micros, spent_micros, held_micros,
        EXISTS (SELECT FROM granted g WHERE g.at = r.at AND g.turn_id NOT IN (SELECT turn_id FROM started))))::text
    FROM requests r LEFT JOIN refused f ON f.at = r.at
""".encode()  # noqa: S608 - made of constants of the module
"""One statement, so one transaction. All is decided by the values that the locks brought, in the order of ids."""

_RELEASE: Final = b"""
    WITH stray AS (
            SELECT h.turn_id, h.budget_id, coalesce(s.router_outcome, 'free') = 'free' AS frees_router
            FROM budget_holds h JOIN turn_starts s ON s.turn_id = h.turn_id
            WHERE h.state = 'open' AND s.ended_at < now() - interval '10 s'
                AND NOT EXISTS (SELECT FROM token_usage t WHERE t.id = h.turn_id)
                AND NOT EXISTS (SELECT FROM parked_usage p WHERE p.id = h.turn_id)
        ), locked AS (
            SELECT b.id, b.held_micros FROM budgets b WHERE b.id IN (SELECT budget_id FROM stray)
            ORDER BY b.id FOR UPDATE OF b
        ), locked_holds AS (
            SELECT h.turn_id, h.budget_id, h.chat_micros + h.router_micros AS held_micros,
                CASE WHEN stray.frees_router THEN 0 ELSE h.router_micros END AS router_micros
            FROM budget_holds h JOIN stray USING (turn_id, budget_id)
            WHERE h.state = 'open' AND (SELECT count(*) FROM locked) >= 0
            ORDER BY h.turn_id, h.budget_id FOR UPDATE OF h
        ), moved_holds AS (
            UPDATE budget_holds h SET chat_micros = 0, router_micros = l.router_micros,
                state = CASE WHEN l.router_micros = 0 THEN 'settled' ELSE 'unsettled' END,
                closed_at = CASE WHEN l.router_micros = 0 THEN now() END
            FROM locked_holds l WHERE h.turn_id = l.turn_id AND h.budget_id = l.budget_id
            RETURNING h.turn_id
        ), moved AS (
            UPDATE budgets b SET held_micros = locked.held_micros - freed.micros::bigint, updated_at = now()
            FROM locked JOIN (
                SELECT budget_id, sum(held_micros - router_micros) AS micros FROM locked_holds GROUP BY budget_id
            ) freed ON freed.budget_id = locked.id
            WHERE b.id = locked.id
            RETURNING b.id
        )
    SELECT count(*) FROM moved_holds
"""


class _Request(msgspec.Struct):
    """A request as the statement takes it; `at` tells those of one batch apart."""

    at: int
    turn_id: UUID
    chat_micros: str
    router_micros: str
    micros: str
    """All three as text: they may be beyond 64 bits, and then there is no room for them."""
    budget_ids: list[UUID]


class _Answer(msgspec.Struct, array_like=True):
    at: int
    short_id: UUID | None
    is_of_project: bool | None
    limit_micros: int | None
    spent_micros: int | None
    held_micros: int | None
    has_ended: bool


_answers: Final = msgspec.json.Decoder(list[_Answer])


@dataclass(slots=True)
class _Line:
    """Those of one project who wait to be placed, or are being placed."""

    requests: GatheredReads[HoldRequest, _Answer]
    waiting: int = 0


class PostgresHolds(Holds):
    """Places together what is asked for while a placement of the same project is under way, on a pool that somebody
    else opens: each project has one connection at a time, so that a budget that is locked keeps no other waiting.

    `patience_s` bounds a request, waiting included.
    """

    def __init__(self, pool: Pool, *, process_id: UUID, host: str, patience_s: float = PATIENCE_S) -> None:
        self._pool = pool
        self._process_id = process_id
        self._host = host
        self._patience_s = patience_s
        self._lines: dict[UUID, _Line] = {}
        """By project."""

    async def place(self, request: HoldRequest) -> Budget | None:
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        project_id = request.start.project_id
        line = self._lines.setdefault(project_id, _Line(GatheredReads(self._place, at_once=1)))
        line.waiting += 1
        try:
            answer = await line.requests.ask(request, deadline_s=deadline_s)
        except psycopg.Error as error:
            # The server's own words are for the operator: the pool logs what keeps it from connecting.
            raise ContextUnavailable(
                f"the database did not hold what the turn may cost within {self._patience_s:g} s "
                f"({type(error).__name__}, SQLSTATE {error.sqlstate})"
            ) from error
        finally:
            line.waiting -= 1
            if not line.waiting and self._lines.get(project_id) is line:
                del self._lines[project_id]
        if answer.has_ended:
            raise ContextUnavailable("the turn was ended by somebody else before it had begun")
        return _budget_of(answer)

    async def release_strays(self) -> int:
        row = await fetch_row_or_fail(self._pool, _RELEASE, {})
        assert row is not None, "an aggregate has a row"
        released: int = row[0]
        return released

    async def _place(self, asked: Sequence[HoldRequest], deadline_s: float) -> Sequence[_Answer]:
        starts = [start_row(request.start, self._process_id, self._host) for request in asked]
        parameters = {
            "requests": _encode([_row_of(at, request) for at, request in enumerate(asked)]).decode(),
            "starts": _encode(starts).decode(),
        }
        # It may run twice: a request that came through unheard changes nothing.
        row = await fetch_row_from_the_living(self._pool, _PLACE, parameters, deadline_s=deadline_s)
        assert row is not None, "an aggregate has a row"
        return sorted(_answers.decode(row[0]), key=lambda answer: answer.at)


def _row_of(at: int, request: HoldRequest) -> _Request:
    return _Request(
        at=at,
        turn_id=request.start.turn_id,
        chat_micros=str(request.chat_micros),
        router_micros=str(request.router_micros),
        micros=str(request.micros),
        budget_ids=list(request.budget_ids),
    )


def _budget_of(answer: _Answer) -> Budget | None:
    """The budget that has no room."""
    if answer.short_id is None:
        return None
    assert answer.limit_micros is not None
    assert answer.spent_micros is not None
    assert answer.held_micros is not None
    return Budget(
        id=answer.short_id,
        scope=BudgetScope.PROJECT if answer.is_of_project else BudgetScope.SESSION,
        limit_micros=answer.limit_micros,
        spent_micros=answer.spent_micros,
        is_strict=True,
        held_micros=answer.held_micros,
    )
