"""UUIDs of version 7 (RFC 9562), which Python has from 3.14 on."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from application.ports.clock import Ids

_RANDOM_BITS: Final = 74
_STEP_BITS: Final = 32


def uuid7(unix_ms: int, random: int) -> UUID:
    """The UUID of a time (48 bits) and a number (74 bits); sorts by the one, then by the other."""
    high, low = random >> 62, random & (1 << 62) - 1
    return UUID(int=unix_ms << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low)


class UuidV7Ids(Ids):
    """Random within a millisecond the first time, then that number plus a random step: no two alike, each greater."""

    def __init__(self, *, time_ns: Callable[[], int] = time.time_ns) -> None:
        self._time_ns = time_ns
        self._making = threading.Lock()
        self._unix_ms = 0
        self._random = 0

    def new(self) -> UUID:
        """See `Ids`. Safe from several threads. While a wall clock that was set back catches up, ids' time stands."""
        with self._making:
            unix_ms = self._time_ns() // 1_000_000
            if unix_ms > self._unix_ms:
                # One bit stays free, so that the steps of a millisecond have room.
                self._unix_ms, self._random = unix_ms, _random_bits(_RANDOM_BITS - 1)
            else:
                self._random += 1 + _random_bits(_STEP_BITS)
                if self._random >> _RANDOM_BITS:
                    self._unix_ms, self._random = self._unix_ms + 1, _random_bits(_RANDOM_BITS - 1)
            return uuid7(self._unix_ms, self._random)


def _random_bits(count: int) -> int:
    size = -(-count // 8)
    return int.from_bytes(os.urandom(size)) >> size * 8 - count
