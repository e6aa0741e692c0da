"""The simulator's clock: the wall clock plus what POST /_clock has added."""

import time


class Clock:
    """Time as the simulator sees it. Pauses inside replies use real time; only records and stamps use this."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now_s(self) -> float:
        """Unix time in seconds."""
        return time.time() + self._ahead_s

    def advance(self, ms: float) -> None:
        """Moves the clock forward. A negative step is a ValueError: records would become unknown again."""
        if ms < 0:
            raise ValueError(f"the clock only moves forward, not by {ms} ms")
        self._ahead_s += ms / 1000

    def reset(self) -> None:
        """Back to the wall clock."""
        self._ahead_s = 0.0
