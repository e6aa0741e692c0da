"""The switch of the tool router, read for each step that would ask it."""

import asyncio
from typing import Final
from uuid import UUID

import psycopg
from sqlalchemy import Uuid, bindparam, select

from adapters.postgres.pool import PATIENCE_S, Pool, as_query, fetch_row_from_the_living
from adapters.postgres.tables import workspaces
from application.ports.router_switch import RouterSwitches, SwitchUnreadable

_READ: Final = as_query(
    select(workspaces.c.tool_router_enabled).where(workspaces.c.id == bindparam("workspace_id", type_=Uuid))
)


class PostgresRouterSwitches(RouterSwitches):
    """On a pool that somebody else opens."""

    def __init__(self, pool: Pool, *, patience_s: float = PATIENCE_S) -> None:
        self._pool = pool
        self._patience_s = patience_s

    async def is_on(self, workspace_id: UUID) -> bool:
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        try:
            row = await fetch_row_from_the_living(
                self._pool, _READ, {"workspace_id": workspace_id}, deadline_s=deadline_s
            )
        except psycopg.Error as error:
            raise SwitchUnreadable(type(error).__name__) from error
        return row is not None and row[0] is True
