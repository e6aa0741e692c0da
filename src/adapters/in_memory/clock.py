"""Time and ids that a test decides."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from adapters.system.ids import uuid7
from application.ports.clock import Clock, Ids


class ManualClock(Clock):
    """Stands still until it is moved."""

    def __init__(self, now: datetime = datetime(2026, 1, 1, tzinfo=UTC), monotonic_s: float = 0.0) -> None:
        self._now = now.astimezone(UTC)
        self._monotonic_s = monotonic_s

    def now(self) -> datetime:
        """See `Clock`."""
        return self._now

    def monotonic(self) -> float:
        """See `Clock`."""
        return self._monotonic_s

    def advance(self, seconds: float) -> None:
        """Let that much time pass, on both clocks. A negative number moves the wall clock alone: it was set back."""
        self._now += timedelta(seconds=seconds)
        self._monotonic_s += max(seconds, 0.0)


class CountedIds(Ids):
    """1, 2, 3 … within the millisecond of a clock; `process` keeps apart the ids of two that run at once."""

    def __init__(self, clock: Clock | None = None, *, process: int = 0) -> None:
        self._clock = clock or ManualClock()
        self._process = process
        self._unix_ms = 0
        self._made = 0

    def new(self) -> UUID:
        """See `Ids`."""
        self._unix_ms = max(self._unix_ms, int(self._clock.now().timestamp() * 1000))
        self._made += 1
        return uuid7(self._unix_ms, self._made << 16 | self._process)
