"""The areas of a project's agents, with what they may spend and have spent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class AgentArea:
    """An area, in micro-USD. A limit of None is no ceiling; what is spent is counted all the same."""

    key: str
    limit_micros: int | None
    spent_micros: int


class AgentAreas(Protocol):
    """Reads areas as they are committed now, and sets their ceilings. Each method may raise DatabaseFailed."""

    async def of_project(self, project_id: UUID) -> Sequence[AgentArea]:
        """The project's areas, by key; none when there is no project."""
        ...

    async def set_limit(self, project_id: UUID, key: str, limit_micros: int | None) -> AgentArea | None:
        """Set a ceiling, or take it away, and give the area as it is then; None when there is no such area."""
        ...
