"""The areas of a project: reading them, and setting what one may spend."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from application.not_there import NotThere
from application.ports.agent_areas import AgentArea, AgentAreas
from application.ports.users import Users
from application.require_role import require_project_role
from domain.roles import Role


@dataclass(frozen=True, slots=True)
class ReadAgentAreas:
    """For the project's maintainers."""

    users: Users
    areas: AgentAreas

    async def __call__(self, user_id: UUID, project_id: UUID) -> Sequence[AgentArea]:
        """The areas as they are now, by key. Raises UnknownUser, NotAllowed and DatabaseFailed."""
        await require_project_role(self.users, user_id, project_id, Role.MAINTAINER)
        return await self.areas.of_project(project_id)


@dataclass(frozen=True, slots=True)
class LimitAgentArea:
    """For the project's maintainers."""

    users: Users
    areas: AgentAreas

    async def __call__(
        self, user_id: UUID, project_id: UUID, key: str, *, limit_micros: int | None
    ) -> AgentArea:
        """The area as it is then; None takes its ceiling away.

        Raises UnknownUser, NotAllowed, NotThere and DatabaseFailed.
        """
        await require_project_role(self.users, user_id, project_id, Role.MAINTAINER)
        area = await self.areas.set_limit(project_id, key, limit_micros)
        if area is None:
            raise NotThere(
                "There is no such area in the project; `GET /projects/{id}/agent-areas` lists them."
            )
        return area
