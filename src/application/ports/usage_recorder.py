"""The one path of metering."""

from typing import Protocol

from domain.usage import TokenUsage


class UsageRecorder(Protocol):
    """Writes the ledger."""

    async def record(self, usage: TokenUsage, *, at_leisure: bool = False) -> bool:
        """Write the row, the budgets, the area and the crossed thresholds in one transaction; True: committed.

        A second write of one id changes nothing and is True. False after 2 s at the most: not known to be
        committed, and reported with all its numbers. Never raises for what the database does. Cancelling the
        caller does not undo what was handed over. `at_leisure`: nobody waits for it yet, and it may be written a few
        milliseconds later, together with others.
        """
        ...
