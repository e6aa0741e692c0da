"""The bill: one entry for every chat and decisions call, from the moment it is accepted, read or not."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from entrypoints.simulator.clock import Clock
from entrypoints.simulator.prices import Model, find_model, plain


class Status(StrEnum):
    """Where a call stands."""

    ACCEPTED = "accepted"
    """Running: its cost is that of the prompt and of what has been generated so far."""
    FINISHED = "finished"
    """The provider ended it, whether or not the client received all of it."""
    CANCELLED = "cancelled"
    """The client left and the generation stopped."""
    REFUSED = "refused"
    """Answered with an error and never run. Free."""


@dataclass(slots=True)
class Entry:
    """One call on the bill. Amounts are exact USD."""

    id: str
    path: str
    model_id: str
    model: Model | None
    """None when the call was refused before a known model was named."""
    key: str = field(repr=False)
    """The whole bearer: only its owner may ask for the record. Never shown."""
    mark: str | None
    streamed: bool
    accepted_s: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Generated so far; what is charged unless the whole answer is."""
    all_completion_tokens: int = 0
    """The size of the whole answer."""
    full_cost: Decimal = Decimal(0)
    """The charge if the whole answer is generated."""
    status: Status = Status.ACCEPTED
    http_status: int = 200
    cost: Decimal = Decimal(0)
    """Settled charge; meaningless while the call runs (see `cost_now`)."""
    ended_s: float | None = None
    headers_sent: bool = False
    delivered: bool = False
    """The last byte went to the socket, and no fault took any away."""
    client_left: bool = False
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    faults: tuple[str, ...] = ()
    record_delay_ms: float | None = None
    """When GET /generation begins to know it, counted from the end; None: never."""

    def cost_now(self) -> Decimal:
        """The settled charge, or what a cancellation at this moment would be charged."""
        if self.status is Status.ACCEPTED and self.model is not None:
            return self.model.cost(self.prompt_tokens, self.completion_tokens)
        return self.cost

    def view(self) -> dict[str, Any]:
        """The entry as GET /_bill shows it."""
        cost = self.cost_now()
        return {
            "id": self.id,
            "path": self.path,
            "model": self.model_id,
            "provider": self.model.provider if self.model else None,
            "key": last_four(self.key),
            "mark": self.mark,
            "streamed": self.streamed,
            "status": self.status,
            "http_status": self.http_status,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": plain(cost),
            "charged": cost != 0,
            "cancelled": self.status is Status.CANCELLED,
            "client_left": self.client_left,
            "headers_sent": self.headers_sent,
            "delivered": self.delivered,
            "finish_reason": self.finish_reason,
            "faults": list(self.faults),
            "accepted_at_s": self.accepted_s,
            "ended_at_s": self.ended_s,
        }


@dataclass(frozen=True, slots=True)
class BilledCall:
    """What the bill keeps of a request. `prefix` begins the id: `gen` or `gen-dec`."""

    prefix: str
    path: str
    model_id: str
    key: str = field(repr=False)
    mark: str | None
    streamed: bool
    faults: tuple[str, ...]


class Bill:
    """Every call in the order of acceptance, and how many ran at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._run = secrets.token_hex(5)
        self._issued = 0
        self.in_flight = 0
        self.peak_in_flight = 0

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, entry_id: str) -> Entry | None:
        """The entry of that generation id, or None."""
        return self._entries.get(entry_id)

    def accept(self, call: BilledCall, model: Model) -> Entry:
        """Puts a call on the bill, running."""
        entry = self._new(call, model)
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return entry

    def refuse(self, call: BilledCall, http_status: int) -> Entry:
        """Puts a call on the bill that is not run, for free."""
        entry = self._new(call, find_model(call.model_id))
        entry.status = Status.REFUSED
        entry.http_status = http_status
        entry.ended_s = entry.accepted_s
        return entry

    def finish(self, entry: Entry, *, in_full: bool, cost: Decimal | None = None) -> None:
        """Ends a call by the provider: charged for all of it, or for what was generated; or exactly `cost`."""
        if in_full:
            entry.completion_tokens = entry.all_completion_tokens
        self._end(entry, Status.FINISHED, cost if cost is not None else self._charge(entry, in_full))

    def cancel(self, entry: Entry) -> None:
        """Ends a call whose client left: charged for the prompt and what was generated."""
        entry.finish_reason = None
        entry.native_finish_reason = None
        self._end(entry, Status.CANCELLED, self._charge(entry, in_full=False))

    def total(self) -> Decimal:
        """The exact sum of all entries as they stand, in USD."""
        return sum((entry.cost_now() for entry in self), Decimal(0))

    def clear(self) -> None:
        """Forgets the calls that ended. Those still running stay, for they will be charged."""
        self._entries = {entry.id: entry for entry in self if entry.status is Status.ACCEPTED}
        self.peak_in_flight = self.in_flight

    def view(self) -> dict[str, Any]:
        """The JSON of GET /_bill."""
        return {
            "entries": [entry.view() for entry in self],
            "count": len(self),
            "total": plain(self.total()),
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
        }

    @staticmethod
    def _charge(entry: Entry, in_full: bool) -> Decimal:
        if in_full:
            return entry.full_cost
        assert entry.model is not None
        return entry.model.cost(entry.prompt_tokens, entry.completion_tokens)

    def _end(self, entry: Entry, status: Status, cost: Decimal) -> None:
        assert entry.status is Status.ACCEPTED, f"{entry.id} was already {entry.status}"
        entry.status = status
        entry.cost = cost
        entry.ended_s = self._clock.now_s()
        self.in_flight -= 1

    def _new(self, call: BilledCall, model: Model | None) -> Entry:
        now_s = self._clock.now_s()
        self._issued += 1
        entry = Entry(
            id=f"{call.prefix}-{int(now_s)}-{self._run}{self._issued:010d}",
            path=call.path,
            model_id=call.model_id,
            model=model,
            key=call.key,
            mark=call.mark,
            streamed=call.streamed,
            faults=call.faults,
            accepted_s=now_s,
        )
        self._entries[entry.id] = entry
        return entry


def last_four(key: str) -> str:
    """What may be shown of a key."""
    return f"…{key[-4:]}" if key else ""
