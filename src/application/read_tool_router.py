"""Whether a workspace's tool router is on."""

from dataclasses import dataclass
from uuid import UUID

from application.ports.users import Users
from application.ports.workspaces import Workspace, Workspaces
from application.require_role import NotAllowed, require_role
from domain.roles import Role


@dataclass(frozen=True, slots=True)
class ReadToolRouter:
    """Every member may look."""

    users: Users
    workspaces: Workspaces

    async def __call__(self, user_id: UUID, workspace_id: UUID) -> Workspace:
        """The workspace as it is now. Raises UnknownUser, NotAllowed and DatabaseFailed."""
        await require_role(self.users, user_id, workspace_id, Role.VIEWER)
        workspace = await self.workspaces.find(workspace_id)
        if workspace is None:  # deleted since the line above
            raise NotAllowed(Role.VIEWER)
        return workspace
