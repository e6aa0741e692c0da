"""The switches of the tool router, read for each step that would ask it."""

import asyncio
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import psycopg
from sqlalchemy import ARRAY, Uuid, any_, bindparam, func, select

from adapters.postgres.gathered import GatheredReads
from adapters.postgres.pool import PATIENCE_S, Pool, as_query, fetch_row_from_the_living
from adapters.postgres.tables import workspaces
from application.ports.router_switch import RouterSwitches, SwitchUnreadable

_READ: Final = as_query(
    select(func.array_agg(workspaces.c.id)).where(
        workspaces.c.id == any_(bindparam("asked", type_=ARRAY(Uuid))), workspaces.c.tool_router_enabled
    )
)
_READS_AT_ONCE: Final = 2


class PostgresRouterSwitches(RouterSwitches):
    """On a pool that somebody else opens and closes: those that are asked for together are read together."""

    def __init__(self, pool: Pool, *, patience_s: float = PATIENCE_S) -> None:
        self._pool = pool
        self._patience_s = patience_s
        self._reads = GatheredReads(self._read, at_once=_READS_AT_ONCE)

    async def is_on(self, workspace_id: UUID) -> bool:
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        try:
            return await self._reads.ask(workspace_id, deadline_s=deadline_s)
        except psycopg.Error as error:
            raise SwitchUnreadable(type(error).__name__) from error

    async def _read(self, asked: Sequence[UUID], deadline_s: float) -> Sequence[bool]:
        parameters = {"asked": list(asked)}
        row = await fetch_row_from_the_living(self._pool, _READ, parameters, deadline_s=deadline_s)
        are_on = set(row[0] or ()) if row else set()
        return [workspace_id in are_on for workspace_id in asked]
