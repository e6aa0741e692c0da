"""What a role is needed for."""

from typing import Literal
from uuid import UUID

from application.ports.budgets import BudgetOwner
from application.ports.users import Users
from domain.roles import Role


class NotAllowed(Exception):  # noqa: N818 - it names what happened
    """The user's role is too low, or the user is no member: also when there is no such workspace or project."""

    def __init__(self, needed: Role, where: Literal["workspace", "project"] = "workspace") -> None:
        super().__init__(f"This needs the role `{needed}` in the {where}, or a higher one.")


async def require_role(users: Users, user_id: UUID, workspace_id: UUID, needed: Role) -> None:
    """Raise NotAllowed unless the user has the needed role in the workspace now. May raise UnknownUser."""
    _require(await users.role_in_workspace(user_id, workspace_id), needed, "workspace")


async def require_project_role(users: Users, user_id: UUID, project_id: UUID, needed: Role) -> None:
    """Raise NotAllowed unless the user has the needed role in the project now. May raise UnknownUser."""
    _require(await users.role_in_project(user_id, project_id), needed, "project")


def role_for_budget(owner: BudgetOwner) -> Role:
    """What reads and sets a budget: a session's is also for those who work in it."""
    return Role.MAINTAINER if owner.session_id is None else Role.DEVELOPER


def _require(role: Role | None, needed: Role, where: Literal["workspace", "project"]) -> None:
    if role is None or not role.covers(needed):
        raise NotAllowed(needed, where)
