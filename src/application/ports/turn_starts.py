"""Starts as rows of the database, for whoever settles a turn from another host."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from domain.settlement import TurnStart


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedStart:
    """A start without an end whose process has not been heard of for longer than a turn can take.

    Its row may lag behind what happened: no sending in it does not mean that nothing was sent.
    """

    start: TurnStart
    generation_id: str | None
    last_heard_at: datetime


class TurnStarts(Protocol):
    """Notes starts: each method returns at once, and what it notes is written in groups a moment later. Turns that end
    before that are written with their end alone."""

    def note(self, start: TurnStart) -> None:
        """A turn has begun."""
        ...

    def note_generation(self, turn_id: UUID, generation_id: str) -> None:
        """Its chat call has an id at the provider."""
        ...

    def forget(self, turn_id: UUID) -> None:
        """It has ended: its end is written by whoever settles it."""
        ...


class OrphanedStarts(Protocol):
    """Finds what other hosts have left behind."""

    async def take(self, *, silent_s: float, limit: int, here: Sequence[UUID]) -> Sequence[OrphanedStart]:
        """Up to `limit` starts whose process has beaten no heart for `silent_s`, the oldest first; each is given to
        one taker alone for the next minute. Not those of the processes `here`, whose journals tell more. Raises
        DatabaseFailed.
        """
        ...
