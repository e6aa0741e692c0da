"""Not asking an endpoint that keeps failing."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from domain.routing import FallbackReason
from domain.secret import Secret

FAILURES_TO_OPEN: Final = 5
"""In a row."""
CIRCUIT_OPEN: Final = "circuit_open"
"""The detail of a step that was not asked about, exactly (contract, section 5)."""
REST_S: Final = 30.0
"""From the opening to the first probe, and from one probe to the next."""
_MOST_KEYS: Final = 1_000


@dataclass(slots=True)
class _Row:
    """The failures of one key since its last answer."""

    reason: FallbackReason
    """Of the last one."""
    failures: int = 0
    next_probe_s: float | None = None
    """None: the circuit is closed."""


class Circuits:
    """A circuit for each key, in this process. It opens after five failures in a row, and any answer closes it.

    While it is open, one call is let through every 30 s: a probe, whose fate nobody waits for. Results count in the
    order in which they arrive, late ones of calls sent before it opened too; a failure opens nothing for longer.
    Only a hash of a key is kept, of a thousand keys at most: the one used longest ago is forgotten.
    """

    def __init__(
        self, monotonic: Callable[[], float], *, on_open: Callable[[int], None] = lambda _count: None
    ) -> None:
        """`on_open` is told how many circuits are open, whenever that may have changed."""
        self._monotonic = monotonic
        self._on_open = on_open
        self._rows: OrderedDict[bytes, _Row] = OrderedDict()

    def refusal(self, key: Secret) -> FallbackReason | None:
        """The reason of the last failure where the endpoint is not to be asked now; None grants a call."""
        name = _name(key)
        row = self._rows.get(name)
        if row is None:
            return None
        self._rows.move_to_end(name)
        if row.next_probe_s is None:
            return None
        now_s = self._monotonic()
        if now_s < row.next_probe_s:
            return row.reason
        row.next_probe_s = now_s + REST_S
        return None

    def failed(self, key: Secret, reason: FallbackReason) -> None:
        """A call ended in a timeout, a connection error or a 5xx."""
        name = _name(key)
        row = self._rows.setdefault(name, _Row(reason))
        self._rows.move_to_end(name)
        row.reason = reason
        row.failures += 1
        if row.failures == FAILURES_TO_OPEN:
            row.next_probe_s = self._monotonic() + REST_S
        if len(self._rows) > _MOST_KEYS:
            self._rows.popitem(last=False)
        self._tell()

    def answered(self, key: Secret) -> None:
        """A call ended in any other way."""
        if self._rows.pop(_name(key), None) is not None:
            self._tell()

    def _tell(self) -> None:
        self._on_open(sum(row.next_probe_s is not None for row in self._rows.values()))


def _name(key: Secret) -> bytes:
    return hashlib.sha256(key.reveal().encode("utf-8", "surrogatepass")).digest()
