"""Workspaces in PostgreSQL, and the switch of their router."""

from typing import Any, Final
from uuid import UUID

from sqlalchemy import Boolean, Text, Uuid, bindparam, func, insert, select, update

from adapters.postgres.pool import Pool, as_query, fetch_row_or_fail
from adapters.postgres.tables import router_switches, workspaces
from application.ports.workspaces import Workspace, Workspaces

_COLUMNS: Final = (workspaces.c.id, workspaces.c.name, workspaces.c.slug)
_FOUND: Final = select(*_COLUMNS, workspaces.c.tool_router_enabled)
_FIND_BY_ID: Final = as_query(_FOUND.where(workspaces.c.id == bindparam("id", type_=Uuid)))
_FIND_BY_SLUG: Final = as_query(_FOUND.where(workspaces.c.slug == bindparam("slug", type_=Text)))


def _switch() -> bytes:
    """Lock, switch and record, in one statement: all of it happens, or nothing."""
    wanted = bindparam("enabled", type_=Boolean)
    before = (
        select(*_COLUMNS, workspaces.c.tool_router_enabled)
        .where(workspaces.c.id == bindparam("id", type_=Uuid))
        .with_for_update(key_share=True)  # whoever switches at the same time waits, and sees what we left
        .cte("before")
    )
    switched = (
        update(workspaces)
        .where(workspaces.c.id == before.c.id, before.c.tool_router_enabled != wanted)
        .values(tool_router_enabled=wanted, updated_at=func.now())
        .returning(workspaces.c.id, before.c.tool_router_enabled.label("was_enabled"))
        .cte("switched")
    )
    recorded = (
        insert(router_switches)
        .from_select(
            ["workspace_id", "by_user_id", "was_enabled", "is_enabled", "created_at"],
            # Not when the statement began: it may have waited for another switch, and comes after it.
            select(
                switched.c.id,
                bindparam("by_user_id", type_=Uuid),
                switched.c.was_enabled,
                wanted,
                func.clock_timestamp(),
            ),
        )
        .cte("recorded")
    )
    return as_query(select(before.c.id, before.c.name, before.c.slug, wanted).add_cte(recorded))


_SWITCH: Final = _switch()


class PostgresWorkspaces(Workspaces):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, id_or_slug: UUID | str) -> Workspace | None:
        if isinstance(id_or_slug, UUID):
            return await self._fetch(_FIND_BY_ID, {"id": id_or_slug})
        return await self._fetch(_FIND_BY_SLUG, {"slug": id_or_slug})

    async def switch_tool_router(
        self, workspace_id: UUID, *, enabled: bool, by_user_id: UUID | None
    ) -> Workspace | None:
        return await self._fetch(_SWITCH, {"id": workspace_id, "enabled": enabled, "by_user_id": by_user_id})

    async def _fetch(self, query: bytes, parameters: dict[str, Any]) -> Workspace | None:
        row = await fetch_row_or_fail(self._pool, query, parameters)
        return None if row is None else Workspace(*row)
