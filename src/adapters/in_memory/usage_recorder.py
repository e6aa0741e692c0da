"""A recorder into an in-memory ledger."""

from collections.abc import Callable
from decimal import Decimal
from uuid import UUID

from adapters.in_memory.ledger import InMemoryLedger
from application.ports.corrections import Booked, Corrections
from application.ports.database import DatabaseFailed
from application.ports.journal import Journal
from application.ports.usage_recorder import UsageRecorder
from domain.settlement import Settlement
from domain.usage import TokenUsage


class InMemoryUsageRecorder(UsageRecorder):
    """Writes at once; what an unreachable ledger does not take is written with the next one that it takes.

    `on_unrecorded` is told of every row that neither the ledger nor the journal took.
    """

    def __init__(
        self,
        ledger: InMemoryLedger,
        journal: Journal,
        *,
        on_unrecorded: Callable[[TokenUsage], None] = lambda _usage: None,
    ) -> None:
        self._ledger = ledger
        self._journal = journal
        self._on_unrecorded = on_unrecorded
        self._unflushed: dict[UUID, tuple[Settlement, bool]] = {}

    @property
    def oldest_unflushed_s(self) -> float:
        return float("inf") if self._unflushed else 0.0

    @property
    def unkept(self) -> int:
        return sum(not is_kept for _, is_kept in self._unflushed.values())

    async def record(self, settlement: Settlement, *, at_leisure: bool = False) -> bool:  # noqa: ARG002 - it is always at once
        is_kept = await self._journal.keep(settlement)
        self._unflushed[settlement.id] = (settlement, is_kept)
        if not self._ledger.is_reachable:
            if not is_kept and settlement.usage is not None:
                self._on_unrecorded(settlement.usage)
            return is_kept
        written = [waiting for waiting, _ in self._unflushed.values()]
        self._unflushed.clear()
        for waiting in written:
            self._ledger.settle(waiting)
        self._journal.flushed(written)
        return True


class InMemoryCorrections(Corrections):
    """Corrections of an in-memory ledger."""

    def __init__(self, ledger: InMemoryLedger) -> None:
        self._ledger = ledger

    async def book_truth(self, usage_id: UUID, charged_usd: Decimal) -> Booked | None:
        self._require_reachable()
        return self._ledger.correct(usage_id, "provider", charged_usd, is_certain=True)

    async def write_off(self, usage_id: UUID, turn_id: UUID, reason: str) -> None:  # noqa: ARG002 - nobody reads it here
        self._require_reachable()
        self._ledger.write_off(usage_id, turn_id)

    def _require_reachable(self) -> None:
        if not self._ledger.is_reachable:
            raise DatabaseFailed("The ledger is out of reach.")
