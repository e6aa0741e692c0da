"""Users, workspaces and members for a contract test, held by PostgreSQL or in memory, with the same handles on both."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from adapters.in_memory.users import InMemoryUsers
from adapters.in_memory.workspaces import InMemoryWorkspaces
from adapters.postgres.pool import Pool, owners_pool
from adapters.postgres.users import PostgresUsers
from adapters.postgres.workspaces import PostgresWorkspaces
from application.ports.users import User, Users
from application.ports.workspaces import Workspace, Workspaces
from domain.roles import Role
from tests.support import brabo_data

HELD_BY: Final = ("in_memory", "postgres")

Switched = tuple[UUID, UUID | None, bool, bool]
"""Workspace, who, from and to."""


class MemberWorld(ABC):
    """Nobody and nothing, to begin with."""

    def __init__(self, users: Users, workspaces: Workspaces) -> None:
        self.users = users
        self.workspaces = workspaces

    @abstractmethod
    def add_user(self, email: str) -> User: ...
    @abstractmethod
    def delete_user(self, user: User) -> None: ...
    @abstractmethod
    def add_workspace(self, creator: User, *, slug: str = "main", is_on: bool = True) -> Workspace: ...
    @abstractmethod
    def set_role(self, user: User, workspace: Workspace, role: Role | None) -> None:
        """None: no member any more."""

    @abstractmethod
    def add_project(self, workspace: Workspace, creator: User) -> UUID: ...
    @abstractmethod
    def set_project_role(self, user: User, project_id: UUID, role: Role | None) -> None:
        """None: no member of its own any more."""

    @abstractmethod
    def switches(self) -> list[Switched]:
        """The record of switches, the oldest first."""


class InMemoryMembers(MemberWorld):
    def __init__(self) -> None:
        self.held_users, self.held_workspaces = InMemoryUsers(), InMemoryWorkspaces()
        super().__init__(self.held_users, self.held_workspaces)

    def add_user(self, email: str) -> User:
        user = User(uuid4(), email)
        self.held_users.users[user.id] = user
        return user

    def delete_user(self, user: User) -> None:
        del self.held_users.users[user.id]

    def add_workspace(self, creator: User, *, slug: str = "main", is_on: bool = True) -> Workspace:
        workspace = Workspace(uuid4(), slug.title(), slug, is_on)
        self.held_workspaces.workspaces[workspace.id] = workspace
        return workspace

    def set_role(self, user: User, workspace: Workspace, role: Role | None) -> None:
        self.held_users.workspace_roles.pop((user.id, workspace.id), None)
        if role is not None:
            self.held_users.workspace_roles[user.id, workspace.id] = role

    def add_project(self, workspace: Workspace, creator: User) -> UUID:
        project_id = uuid4()
        self.held_users.project_workspaces[project_id] = workspace.id
        return project_id

    def set_project_role(self, user: User, project_id: UUID, role: Role | None) -> None:
        self.held_users.project_roles.pop((user.id, project_id), None)
        if role is not None:
            self.held_users.project_roles[user.id, project_id] = role

    def switches(self) -> list[Switched]:
        return [
            (each.workspace_id, each.by_user_id, each.was_enabled, each.is_enabled)
            for each in self.held_workspaces.switches
        ]


class PostgresMembers(MemberWorld):
    def __init__(self, database_url: str, pool: Pool) -> None:
        super().__init__(PostgresUsers(pool), PostgresWorkspaces(pool))
        self.database_url = database_url

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement and commit; its rows, if it brings any."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def add_user(self, email: str) -> User:
        with psycopg.connect(self.database_url) as connection:
            return User(brabo_data.insert(connection, "users", email=email), email)

    def delete_user(self, user: User) -> None:
        self.execute("DELETE FROM users WHERE id = %s", user.id)

    def add_workspace(self, creator: User, *, slug: str = "main", is_on: bool = True) -> Workspace:
        with psycopg.connect(self.database_url) as connection:
            values = {"name": slug.title(), "slug": slug, "tool_router_enabled": is_on}
            made = brabo_data.insert(connection, "workspaces", created_by=creator.id, **values)
        return Workspace(made, slug.title(), slug, is_on)

    def set_role(self, user: User, workspace: Workspace, role: Role | None) -> None:
        where = "WHERE workspace_id = %s AND user_id = %s"
        self.execute(f"DELETE FROM workspace_members {where}", workspace.id, user.id)
        if role is not None:
            with psycopg.connect(self.database_url) as connection:
                brabo_data.create_member(connection, workspace.id, user.id, role)

    def add_project(self, workspace: Workspace, creator: User) -> UUID:
        with psycopg.connect(self.database_url) as connection:
            return brabo_data.create_project(connection, workspace.id, creator.id)

    def set_project_role(self, user: User, project_id: UUID, role: Role | None) -> None:
        self.execute(
            "DELETE FROM project_members WHERE project_id = %s AND user_id = %s", project_id, user.id
        )
        if role is not None:
            with psycopg.connect(self.database_url) as connection:
                brabo_data.create_project_member(connection, project_id, user.id, role)

    def switches(self) -> list[Switched]:
        return self.execute(
            "SELECT workspace_id, by_user_id, was_enabled, is_enabled FROM brabo_api_router_switches"
            " ORDER BY created_at"
        )


@asynccontextmanager
async def member_world(held_by: str, request: pytest.FixtureRequest) -> AsyncIterator[MemberWorld]:
    """A world held by one of `HELD_BY`."""
    if held_by == "in_memory":
        yield InMemoryMembers()
        return
    database_url = request.getfixturevalue("database_url")
    async with owners_pool(database_url) as pool:
        yield PostgresMembers(database_url, pool)
