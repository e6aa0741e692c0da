"""Users and members in PostgreSQL."""

from typing import Final
from uuid import UUID

from sqlalchemy import Text, Uuid, and_, bindparam, cast, func, select

from adapters.postgres.pool import Pool, as_query, fetch_row_or_fail
from adapters.postgres.tables import project_members, projects, users, workspace_members
from application.ports.users import UnknownUser, User, Users
from domain.roles import Role

_COLUMNS: Final = (users.c.id, users.c.email)
_FIND_BY_ID: Final = as_query(select(*_COLUMNS).where(users.c.id == bindparam("id", type_=Uuid)))
_FIND_BY_EMAIL: Final = as_query(
    select(*_COLUMNS).where(func.lower(users.c.email) == func.lower(bindparam("email", type_=Text)))
)
_ROLE_IN_WORKSPACE: Final = as_query(
    select(cast(workspace_members.c.role, Text))
    .select_from(
        users.outerjoin(
            workspace_members,
            and_(
                workspace_members.c.user_id == users.c.id,
                workspace_members.c.workspace_id == bindparam("workspace_id", type_=Uuid),
            ),
        )
    )
    .where(users.c.id == bindparam("user_id", type_=Uuid))
)
_ROLE_IN_PROJECT: Final = as_query(
    select(cast(func.coalesce(project_members.c.role, workspace_members.c.role), Text))
    .select_from(
        users.outerjoin(projects, projects.c.id == bindparam("project_id", type_=Uuid))
        .outerjoin(
            project_members,
            and_(project_members.c.user_id == users.c.id, project_members.c.project_id == projects.c.id),
        )
        .outerjoin(
            workspace_members,
            and_(
                workspace_members.c.user_id == users.c.id,
                workspace_members.c.workspace_id == projects.c.workspace_id,
            ),
        )
    )
    .where(users.c.id == bindparam("user_id", type_=Uuid))
)

_ROLES: Final = {str(role): role for role in Role}


class PostgresUsers(Users):
    """Reads on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, id_or_email: UUID | str) -> User | None:
        if isinstance(id_or_email, UUID):
            row = await fetch_row_or_fail(self._pool, _FIND_BY_ID, {"id": id_or_email})
        else:
            row = await fetch_row_or_fail(self._pool, _FIND_BY_EMAIL, {"email": id_or_email})
        return None if row is None else User(*row)

    async def role_in_workspace(self, user_id: UUID, workspace_id: UUID) -> Role | None:
        return await self._role(_ROLE_IN_WORKSPACE, {"user_id": user_id, "workspace_id": workspace_id})

    async def role_in_project(self, user_id: UUID, project_id: UUID) -> Role | None:
        return await self._role(_ROLE_IN_PROJECT, {"user_id": user_id, "project_id": project_id})

    async def _role(self, query: bytes, ids: dict[str, UUID]) -> Role | None:
        row = await fetch_row_or_fail(self._pool, query, ids)
        if row is None:
            raise UnknownUser
        # A label that came after this program was written gives nothing here.
        return _ROLES.get(row[0])
