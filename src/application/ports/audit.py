"""Whether the books agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that breaks an invariant."""

    id: str
    detail: str


@dataclass(frozen=True, slots=True)
class Finding:
    """An invariant, and what breaks it."""

    name: str
    meaning: str
    violations: Sequence[Violation]
    """The first of them, if there are very many."""


@dataclass(frozen=True, slots=True)
class LastAudit:
    """The last run."""

    ran_at: datetime
    violations: int


class Audit(Protocol):
    """Checks the books. Each method may raise DatabaseFailed."""

    def run(self, *, since: datetime | None) -> Sequence[Finding]:
        """Every invariant, all of one moment. `since` leaves out older rows where rows are checked one by one; sums
        are always whole. Changes nothing.
        """
        ...

    def remember(self, findings: Sequence[Finding], *, duration_ms: int) -> None:
        """Keep what a run found as the last one's, for whoever asks without running one."""
        ...


class AuditRuns(Protocol):
    """Tells of audits without running one."""

    async def last(self) -> LastAudit | None:
        """The last run; None before the first. Raises DatabaseFailed."""
        ...
