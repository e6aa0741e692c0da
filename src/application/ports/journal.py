"""What is kept on disk until the database has it."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
from uuid import UUID

from domain.settlement import Settlement, TurnStart


class NotEntered(Exception):  # noqa: N818 - it names what happened
    """The entry could not be made: the disk is full or not writable, or the journal has its whole size. Says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledTurn:
    """What the journal knows of a turn."""

    start: TurnStart | None
    """None: it began in the journal of a process that has died, and this one only settles it."""
    was_asked: bool
    """The router was about to be asked."""
    was_sent: bool
    """The chat call was about to be sent."""
    generation_id: str | None
    """Of the chat call, once its headers had come."""
    settlements: Sequence[Settlement]
    """In the order they were kept."""
    flushed: frozenset[UUID]
    """The ids of those the database has."""

    @property
    def has_ended(self) -> bool:
        """Its last entry is there; what is not flushed has only to be written."""
        return any(settlement.end is not None for settlement in self.settlements)


class Journal(Protocol):
    """The journal of this process. An entry survives the process as soon as its method has returned, and with
    `BRABO_JOURNAL_FSYNC=always` a power cut. It holds no message content and no key."""

    async def begin(self, start: TurnStart) -> None:
        """Enter a turn before the first of its calls. Raises NotEntered: then nothing may be sent."""
        ...

    async def asking(self, turn_id: UUID) -> None:
        """The router is about to be asked. Raises NotEntered: then it may not be."""
        ...

    async def sending(self, turn_id: UUID) -> None:
        """The chat call is about to be sent. Raises NotEntered: then it may not be."""
        ...

    def generation(self, turn_id: UUID, generation_id: str) -> None:
        """The chat call has an id at its provider. Not waited for, and a failure is no more than logged."""
        ...

    def keep(self, settlement: Settlement) -> asyncio.Future[bool]:
        """Keep a settlement for later; whether the disk has it. The entry is made at once: only the answer waits."""
        ...

    def flushed(self, settlements: Iterable[Settlement]) -> None:
        """The database has these: their turns need no one any more. Losing this entry costs a second write, no more."""
        ...


class DeadJournal(Protocol):
    """The journal of a process that has died, held by us so that no one else settles it."""

    @property
    def process_id(self) -> UUID:
        """Which process's it is."""
        ...

    @property
    def died_at(self) -> datetime:
        """When its last entry was made."""
        ...

    def turns(self) -> Iterable[JournaledTurn]:
        """Its turns, the oldest first. A torn last entry is passed over; any other damage is logged, with its place."""
        ...

    def flushed(self, settlements: Iterable[Settlement]) -> None:
        """As in Journal."""
        ...

    def close(self, *, is_settled: bool) -> None:
        """Let go of it. Settled: nobody needs to look at it again, and it stays until its room is needed."""
        ...


class Journals(Protocol):
    """The journals of this host."""

    def processes(self) -> Sequence[UUID]:
        """Whose journals are here, dead or alive."""
        ...

    def dead(self) -> Iterable[DeadJournal]:
        """Those of processes that have died and are not settled yet, one at a time, each of them held. A process that
        is only paused has not died."""
        ...
