"""Starts in memory."""

from dataclasses import dataclass, field
from uuid import UUID

from application.ports.turn_starts import TurnStarts
from domain.settlement import TurnStart


@dataclass(slots=True)
class InMemoryTurnStarts(TurnStarts):
    """Holds the starts of turns that have not ended."""

    open: dict[UUID, TurnStart] = field(default_factory=dict)
    generations: dict[UUID, str] = field(default_factory=dict)

    def note(self, start: TurnStart) -> None:
        self.open[start.turn_id] = start

    def note_generation(self, turn_id: UUID, generation_id: str) -> None:
        self.generations[turn_id] = generation_id

    def forget(self, turn_id: UUID) -> None:
        self.open.pop(turn_id, None)
