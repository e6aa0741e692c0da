"""Areas in PostgreSQL, for their owners."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import BigInteger, Text, Uuid, bindparam, func, select, update
from sqlalchemy.dialects.postgresql import aggregate_order_by

from adapters.postgres.pool import Pool, as_query, fetch_row_or_fail
from adapters.postgres.tables import agent_areas
from application.ports.agent_areas import AgentArea, AgentAreas

_COLUMNS: Final = (agent_areas.c.key, agent_areas.c.budget_micros, agent_areas.c.spent_micros)
_OF_PROJECT: Final = agent_areas.c.project_id == bindparam("project_id", type_=Uuid)

_LIST: Final = as_query(
    select(
        func.json_agg(aggregate_order_by(func.json_build_array(*_COLUMNS), agent_areas.c.key.collate("C")))
    ).where(_OF_PROJECT)
)
_SET_LIMIT: Final = as_query(
    update(agent_areas)
    .where(_OF_PROJECT, agent_areas.c.key == bindparam("area_key", type_=Text))
    .values(budget_micros=bindparam("limit_micros", type_=BigInteger), updated_at=func.now())
    .returning(*_COLUMNS)
)


class PostgresAgentAreas(AgentAreas):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def of_project(self, project_id: UUID) -> Sequence[AgentArea]:
        row = await fetch_row_or_fail(self._pool, _LIST, {"project_id": project_id})
        return [AgentArea(*area) for area in (row and row[0]) or ()]

    async def set_limit(self, project_id: UUID, key: str, limit_micros: int | None) -> AgentArea | None:
        if "\0" in key:  # PostgreSQL takes no such text, not even to find nothing
            return None
        values = {"project_id": project_id, "area_key": key, "limit_micros": limit_micros}
        row = await fetch_row_or_fail(self._pool, _SET_LIMIT, values)
        return None if row is None else AgentArea(*row)
