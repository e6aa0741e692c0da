"""The users, and what they are in a workspace."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from domain.roles import Role


@dataclass(frozen=True, slots=True)
class User:
    """A person with an account."""

    id: UUID
    email: str


class UnknownUser(Exception):  # noqa: N818 - it names what happened
    """There is no such user, or not any more."""


class Users(Protocol):
    """Reads users as they are committed now: nothing is remembered. Each method may raise DatabaseFailed."""

    async def find(self, id_or_email: UUID | str) -> User | None:
        """The user of this id, or of this address, upper and lower case being the same."""
        ...

    async def role_in_workspace(self, user_id: UUID, workspace_id: UUID) -> Role | None:
        """The user's role as a member, having made the workspace gives none; None also when there is no workspace.

        Raises UnknownUser.
        """
        ...

    async def role_in_project(self, user_id: UUID, project_id: UUID) -> Role | None:
        """The user's role as a member of the project, which overrides the one in its workspace, upwards and downwards.

        None without either, and when there is no project. Raises UnknownUser.
        """
        ...
