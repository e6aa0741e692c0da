"""Rows whose true cost is to be asked of the provider."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from domain.provider import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTruth:
    """A row that was estimated or cut."""

    usage_id: UUID
    turn_id: UUID
    project_id: UUID
    provider: Provider
    generation_id: str | None
    booked_micros: int
    created_at: datetime
    times_asked: int
    """This time included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthsSummary:
    """How far estimates were off, in micro-USD, of the rows made since a moment."""

    open: int
    equal: int
    corrected: int
    irreconcilable: int
    booked_micros: int
    """Of those whose truth is known."""
    true_micros: int
    off_micros: int
    """The sum of the differences, each without its sign."""


class OpenTruths(Protocol):
    """The list of what is to be asked. Each method may raise DatabaseFailed."""

    async def take(self, *, now: datetime, limit: int, even_if_early: bool = False) -> Sequence[OpenTruth]:
        """Up to `limit` that are due, the longest due first; each is given to one taker alone for the next minute."""
        ...

    async def postpone(self, usage_id: UUID, until: datetime) -> None:
        """Ask again then."""
        ...

    async def may_work(self, holder: UUID, *, for_s: float) -> bool:
        """Whether this holder is the one that asks, for the next seconds: one works at a time."""
        ...

    async def summary(self, since: datetime) -> TruthsSummary:
        """What became of the rows made since then."""
        ...
