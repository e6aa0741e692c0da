"""Users and members out of dictionaries."""

from dataclasses import dataclass, field
from uuid import UUID

from application.ports.users import UnknownUser, User, Users
from domain.roles import Role


@dataclass(slots=True)
class InMemoryUsers(Users):
    """Everything may be read and changed directly."""

    users: dict[UUID, User] = field(default_factory=dict)
    workspace_roles: dict[tuple[UUID, UUID], Role] = field(default_factory=dict)
    """By user and workspace."""
    project_roles: dict[tuple[UUID, UUID], Role] = field(default_factory=dict)
    """By user and project."""
    project_workspaces: dict[UUID, UUID] = field(default_factory=dict)

    async def find(self, id_or_email: UUID | str) -> User | None:
        if isinstance(id_or_email, UUID):
            return self.users.get(id_or_email)
        return next((user for user in self.users.values() if user.email.lower() == id_or_email.lower()), None)

    async def role_in_workspace(self, user_id: UUID, workspace_id: UUID) -> Role | None:
        if user_id not in self.users:
            raise UnknownUser
        return self.workspace_roles.get((user_id, workspace_id))

    async def role_in_project(self, user_id: UUID, project_id: UUID) -> Role | None:
        if user_id not in self.users:
            raise UnknownUser
        if project_id not in self.project_workspaces:
            return None
        of_workspace = self.workspace_roles.get((user_id, self.project_workspaces[project_id]))
        return self.project_roles.get((user_id, project_id), of_workspace)
