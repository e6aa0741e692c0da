"""Corrections in PostgreSQL."""

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from psycopg.rows import TupleRow

from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row, fetch_row_or_fail
from adapters.postgres.settle import CORRECT, WRITE_OFF
from application.ports.corrections import Booked, Corrections, Verdict
from domain.usage import TokenUsage, to_micros

_MICROS: Final = 1_000_000


class PostgresCorrections(Corrections):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def book_truth(self, usage_id: UUID, charged_usd: Decimal) -> Booked | None:
        micros = to_micros(charged_usd)
        parameters = {
            "usage_id": usage_id,
            "source": "provider",
            "figure_usd": charged_usd,
            "figure_micros": micros,
            "is_certain": True,
        }
        while True:
            row = await fetch_row_or_fail(self._pool, CORRECT, parameters)
            if row is None:
                return None
            if not _was_overtaken(row):
                verdict = Verdict(row[0])
                is_new = verdict is Verdict.CORRECTED
                return Booked(verdict, micros - int(row[1]) if is_new else 0)

    async def write_off(self, usage_id: UUID, turn_id: UUID, reason: str) -> None:
        parameters = {
            "usage_id": usage_id,
            "turn_id": turn_id,
            "is_chat": usage_id == turn_id,
            "is_router": usage_id != turn_id,
            "reason": reason,
        }
        await fetch_row_or_fail(self._pool, WRITE_OFF, parameters)


async def correct_settled(pool: Pool, usage: TokenUsage) -> None:
    """Book the figure of somebody who settled second, if it is another one and worth more. Raises psycopg.Error."""
    exact_usd = usage.cost.charged_usd
    parameters: Mapping[str, Any] = {
        "usage_id": usage.id,
        "source": "estimate" if usage.is_estimated else "settlement",
        "figure_usd": Decimal(usage.cost.micros) / _MICROS if exact_usd is None else exact_usd,
        "figure_micros": usage.cost.micros,
        "is_certain": not usage.awaits_truth,
    }
    while True:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        row = await fetch_row(pool, CORRECT, parameters, deadline_s=deadline_s)
        if row is None or not _was_overtaken(row):
            return


def _was_overtaken(row: TupleRow) -> bool:
    """Somebody else booked a correction of the same row meanwhile: it is to be decided again."""
    verdict, _, booked = row
    return verdict == Verdict.CORRECTED and not booked
