"""The audit in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import text

from adapters.postgres.invariants import INVARIANTS, SINCE, Invariant
from adapters.postgres.one_command import transaction
from adapters.postgres.pool import Pool, fetch_row_or_fail
from application.ports.audit import Audit, AuditRuns, Finding, LastAudit, Violation

_SHOWN_AT_MOST: Final = 1_000

_REMEMBER: Final = """
    INSERT INTO audit_runs (ran_at, duration_ms, violations, failed)
    VALUES (now(), :duration_ms, :violations, :failed)
    ON CONFLICT (only_row) DO UPDATE SET ran_at = excluded.ran_at, duration_ms = excluded.duration_ms,
        violations = excluded.violations, failed = excluded.failed
"""


class PostgresAudit(Audit):
    """Opens a connection for each."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def run(self, *, since: datetime | None) -> Sequence[Finding]:
        with transaction(self._database_url) as connection:
            # One snapshot for all: what is settled meanwhile is in every sum or in none.
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))
            findings = []
            for invariant in INVARIANTS:
                rows = connection.exec_driver_sql(f"{_since(invariant, since)} LIMIT {_SHOWN_AT_MOST}")
                found = [Violation(*row) for row in rows]
                findings.append(Finding(invariant.name, invariant.meaning, found))
        return findings

    def remember(self, findings: Sequence[Finding], *, duration_ms: int) -> None:
        values = {
            "duration_ms": duration_ms,
            "violations": sum(len(finding.violations) for finding in findings),
            "failed": [finding.name for finding in findings if finding.violations],
        }
        with transaction(self._database_url) as connection:
            connection.execute(text(_REMEMBER), values)


class PostgresAuditRuns(AuditRuns):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def last(self) -> LastAudit | None:
        row = await fetch_row_or_fail(self._pool, b"SELECT ran_at, violations FROM audit_runs", {})
        return None if row is None else LastAudit(*row)


def _since(invariant: Invariant, since: datetime | None) -> str:
    """The statement, with `%` doubled as the driver wants it."""
    sql = (
        invariant.sql
        if since is None
        else invariant.sql.replace(SINCE, f"'{since.isoformat()}'::timestamptz")
    )
    return f"SELECT id, detail FROM ({sql}) broken".replace("%", "%%")
