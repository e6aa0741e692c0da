"""What a role is needed for."""

from uuid import UUID

from application.ports.users import Users
from domain.roles import Role


class NotAllowed(Exception):  # noqa: N818 - it names what happened
    """The user's role is too low, or the user is no member: also when there is no such workspace."""

    def __init__(self, needed: Role) -> None:
        super().__init__(f"This needs the role `{needed}` in the workspace, or a higher one.")


async def require_role(users: Users, user_id: UUID, workspace_id: UUID, needed: Role) -> None:
    """Raise NotAllowed unless the user has the needed role in the workspace now. May raise UnknownUser."""
    role = await users.role_in_workspace(user_id, workspace_id)
    if role is None or not role.covers(needed):
        raise NotAllowed(needed)
