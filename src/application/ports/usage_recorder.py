"""The one path of metering."""

from typing import Protocol

from domain.settlement import Settlement


class UsageRecorder(Protocol):
    """Writes the ledger."""

    @property
    def oldest_unflushed_s(self) -> float:
        """For how long the oldest settlement has been waiting for the database; 0: none is."""
        ...

    @property
    def unkept(self) -> int:
        """How many settlements neither the database nor the disk has: they exist in this process alone."""
        ...

    async def record(self, settlement: Settlement, *, at_leisure: bool = False) -> bool:
        """Write the row, the budgets, the area, the crossed thresholds, the turn's end and what was held for it in
        one transaction. True: committed, or kept on disk, from where it is written later without help.

        A second write of one id changes nothing; one with another figure books a correction, unless it is an estimate
        and the first was none. False after 2 s at the most: neither the database nor the disk has it, and it is tried
        for as long as the process lives. Never raises for what either does. Cancelling the caller does not undo what
        was handed over. `at_leisure`: nobody waits for it yet, and it may be written a few milliseconds later,
        together with others.
        """
        ...
