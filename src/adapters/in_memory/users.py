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

    async def find(self, id_or_email: UUID | str) -> User | None:
        if isinstance(id_or_email, UUID):
            return self.users.get(id_or_email)
        return next((user for user in self.users.values() if user.email.lower() == id_or_email.lower()), None)

    async def role_in_workspace(self, user_id: UUID, workspace_id: UUID) -> Role | None:
        if user_id not in self.users:
            raise UnknownUser
        return self.workspace_roles.get((user_id, workspace_id))
