"""A journal in memory."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from application.ports.journal import Journal, JournaledTurn, NotEntered
from domain.settlement import Settlement, TurnStart


@dataclass(slots=True)
class InMemoryJournal(Journal):
    """Keeps everything; `is_full` plays a disk that takes nothing any more."""

    is_full: bool = False
    starts: dict[UUID, TurnStart] = field(default_factory=dict)
    asked: set[UUID] = field(default_factory=set)
    sent: set[UUID] = field(default_factory=set)
    generations: dict[UUID, str] = field(default_factory=dict)
    kept: list[Settlement] = field(default_factory=list)
    flushed_ids: set[UUID] = field(default_factory=set)

    async def begin(self, start: TurnStart) -> None:
        self._require_room()
        self.starts[start.turn_id] = start

    async def asking(self, turn_id: UUID) -> None:
        self._require_room()
        self.asked.add(turn_id)

    async def sending(self, turn_id: UUID) -> None:
        self._require_room()
        self.sent.add(turn_id)

    def generation(self, turn_id: UUID, generation_id: str) -> None:
        if not self.is_full:
            self.generations[turn_id] = generation_id

    def keep(self, settlement: Settlement) -> asyncio.Future[bool]:
        if not self.is_full:
            self.kept.append(settlement)
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        kept.set_result(not self.is_full)
        return kept

    def flushed(self, settlements: Iterable[Settlement]) -> None:
        self.flushed_ids.update(settlement.id for settlement in settlements)

    def turns(self) -> list[JournaledTurn]:
        """What was entered, as another process would read it."""
        return [
            JournaledTurn(
                start=start,
                was_asked=turn_id in self.asked,
                was_sent=turn_id in self.sent,
                generation_id=self.generations.get(turn_id),
                settlements=[kept for kept in self.kept if kept.turn_id == turn_id],
                flushed=frozenset(self.flushed_ids),
            )
            for turn_id, start in self.starts.items()
        ]

    def _require_room(self) -> None:
        if self.is_full:
            raise NotEntered("the journal in memory is full")
