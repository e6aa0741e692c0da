"""The machine's clocks."""

import time
from datetime import UTC, datetime

from application.ports.clock import Clock


class SystemClock(Clock):
    """The machine's wall clock and its monotonic one."""

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock`."""
        return time.monotonic()
