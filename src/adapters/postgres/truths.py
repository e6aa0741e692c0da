"""Rows that await the truth, and the keys to ask for it, in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from adapters.postgres.pool import Pool, fetch_row_or_fail
from application.ports.credential_vault import SealedKey
from application.ports.open_truths import OpenTruth, OpenTruths, TruthsSummary
from application.ports.owner_keys import OwnerKeys
from domain.provider import Provider

_TAKE: Final = b"""WITH due AS (
        SELECT usage_id FROM usage_truths
        WHERE state = 'open' AND (ask_after <= %(now)s OR %(even_if_early)s)
        ORDER BY ask_after LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE usage_truths t SET times_asked = times_asked + 1, ask_after = %(now)s + interval '1 minute'
        FROM due WHERE t.usage_id = due.usage_id
        RETURNING t.usage_id, t.turn_id, t.project_id, t.provider, t.generation_id, t.booked_micros, t.created_at,
            t.times_asked
    )
    SELECT coalesce(json_agg(taken), '[]')::text FROM taken
"""

_POSTPONE: Final = b"""UPDATE usage_truths SET ask_after = %(until)s WHERE usage_id = %(usage_id)s AND state = 'open'
    RETURNING 1
"""

_LEASE: Final = b"""INSERT INTO api_leases (name, holder, until_at)
    VALUES ('reconcile', %(holder)s, now() + make_interval(secs => %(for_s)s))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, until_at = excluded.until_at
    WHERE api_leases.until_at < now() OR api_leases.holder = excluded.holder
    RETURNING 1
"""

_SUMMARY: Final = b"""SELECT count(*) FILTER (WHERE state = 'open'), count(*) FILTER (WHERE state = 'equal'),
        count(*) FILTER (WHERE state = 'corrected'), count(*) FILTER (WHERE state = 'irreconcilable'),
        coalesce(sum(booked_micros) FILTER (WHERE truth_micros IS NOT NULL), 0),
        coalesce(sum(truth_micros), 0), coalesce(sum(abs(truth_micros - booked_micros)), 0)
    FROM usage_truths WHERE created_at >= %(since)s
"""

_KEY: Final = b"""SELECT c.wrapped_dek, c.dek_iv, c.dek_auth_tag, c.encrypted_api_key, c.api_key_iv, c.api_key_auth_tag
    FROM projects p JOIN workspaces w ON w.id = p.workspace_id
    JOIN user_credentials c ON c.user_id = w.created_by
    WHERE p.id = %(project_id)s AND c.provider::text = %(provider)s
"""


class _TakenRow(msgspec.Struct):
    usage_id: UUID
    turn_id: UUID
    project_id: UUID
    provider: str
    generation_id: str | None
    booked_micros: int
    created_at: datetime
    times_asked: int


class PostgresOpenTruths(OpenTruths):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def take(self, *, now: datetime, limit: int, even_if_early: bool = False) -> Sequence[OpenTruth]:
        parameters = {"now": now, "limit": limit, "even_if_early": even_if_early}
        row = await fetch_row_or_fail(self._pool, _TAKE, parameters)
        assert row is not None, "an aggregate has a row"
        return [
            OpenTruth(
                usage_id=taken.usage_id,
                turn_id=taken.turn_id,
                project_id=taken.project_id,
                provider=Provider(taken.provider),
                generation_id=taken.generation_id,
                booked_micros=taken.booked_micros,
                created_at=taken.created_at,
                times_asked=taken.times_asked,
            )
            for taken in msgspec.json.decode(row[0], type=list[_TakenRow])
        ]

    async def postpone(self, usage_id: UUID, until: datetime) -> None:
        await fetch_row_or_fail(self._pool, _POSTPONE, {"usage_id": usage_id, "until": until})

    async def may_work(self, holder: UUID, *, for_s: float) -> bool:
        parameters = {"holder": holder, "for_s": for_s}
        return await fetch_row_or_fail(self._pool, _LEASE, parameters) is not None

    async def summary(self, since: datetime) -> TruthsSummary:
        row = await fetch_row_or_fail(self._pool, _SUMMARY, {"since": since})
        assert row is not None, "an aggregate has a row"
        is_open, equal, corrected, irreconcilable, booked, true, off = map(int, row)
        return TruthsSummary(
            open=is_open,
            equal=equal,
            corrected=corrected,
            irreconcilable=irreconcilable,
            booked_micros=booked,
            true_micros=true,
            off_micros=off,
        )


class PostgresOwnerKeys(OwnerKeys):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def of_project(self, project_id: UUID, provider: Provider) -> SealedKey | None:
        parameters = {"project_id": project_id, "provider": str(provider)}
        row = await fetch_row_or_fail(self._pool, _KEY, parameters)
        return None if row is None else SealedKey(*row)
