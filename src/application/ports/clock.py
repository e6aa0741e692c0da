"""Time and ids."""

from datetime import datetime
from typing import Protocol
from uuid import UUID


class Clock(Protocol):
    """Wall time for records, monotonic time for deadlines."""

    def now(self) -> datetime:
        """The wall clock, in UTC, aware."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; the same clock as the event loop's `time()`."""
        ...


class Ids(Protocol):
    """Makes ids that sort by the time they were made (UUIDv7)."""

    def new(self) -> UUID:
        """An id that no other process makes, greater than every earlier one of this process."""
        ...
