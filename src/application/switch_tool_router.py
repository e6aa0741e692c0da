"""A workspace's tool router, on or off."""

from dataclasses import dataclass
from uuid import UUID

from application.ports.users import Users
from application.ports.workspaces import Workspace, Workspaces
from application.require_role import NotAllowed, require_role
from domain.roles import Role


@dataclass(frozen=True, slots=True)
class SwitchToolRouter:
    """Only owners may: it changes what turns cost, and how they go."""

    users: Users
    workspaces: Workspaces

    async def __call__(self, user_id: UUID, workspace_id: UUID, *, enabled: bool) -> Workspace:
        """The workspace as it is then, for every process. Raises UnknownUser, NotAllowed and DatabaseFailed."""
        await require_role(self.users, user_id, workspace_id, Role.OWNER)
        workspace = await self.workspaces.switch_tool_router(
            workspace_id, enabled=enabled, by_user_id=user_id
        )
        if workspace is None:  # deleted since the line above
            raise NotAllowed(Role.OWNER)
        return workspace
