"""A recorder into an in-memory ledger."""

from collections.abc import Callable

from adapters.in_memory.ledger import InMemoryLedger
from application.ports.usage_recorder import UsageRecorder
from domain.usage import TokenUsage


class InMemoryUsageRecorder(UsageRecorder):
    """Writes at once. `on_unrecorded` is told of every record that was not written."""

    def __init__(self, ledger: InMemoryLedger, *, on_unrecorded: Callable[[TokenUsage], None]) -> None:
        self._ledger = ledger
        self._on_unrecorded = on_unrecorded

    async def record(self, usage: TokenUsage, *, at_leisure: bool = False) -> bool:  # noqa: ARG002 - it is always at once
        if self._ledger.is_reachable and self._ledger.settle(usage):
            return True
        self._on_unrecorded(usage)
        return False
