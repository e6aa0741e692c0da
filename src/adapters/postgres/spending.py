"""The ledger's sums in PostgreSQL, for `brabo report`."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Date, Numeric, Text, cast, func, literal_column, select, tuple_

from adapters.postgres.one_command import transaction
from adapters.postgres.tables import projects, sessions, token_usage, workspaces
from application.ports.spending import Actor, ModelName, Spend, Spending, SpendingBooks

# A product, since a quotient of two numbers of PostgreSQL's is rounded.
_USD_OF_MICROS: Final = cast(token_usage.c.cost_micros, Numeric) * literal_column("0.000001", Numeric)
_USD: Final = func.sum(func.coalesce(token_usage.c.charged_usd, _USD_OF_MICROS))
_DAY: Final = cast(func.timezone("UTC", token_usage.c.created_at), Date)
_PROVIDER: Final = cast(token_usage.c.provider, Text)
_KIND: Final = cast(token_usage.c.actor_kind, Text)


class PostgresSpending(SpendingBooks):
    """Opens a connection a question. Labels of enums are read as text: a database can have more than we know."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def read(
        self,
        first_day: date,
        last_day: date,
        *,
        workspace_id: UUID | None = None,
        project_id: UUID | None = None,
    ) -> Spending | None:
        by_day, by_model = (_DAY,), (_PROVIDER, token_usage.c.model_name)
        by_actor = (_KIND, token_usage.c.actor_id)
        # One statement, so that the sums are of the same rows.
        query = (
            select(
                func.grouping(_DAY, _PROVIDER, _KIND),
                *by_day,
                *by_model,
                *by_actor,
                func.count(),
                _USD,
            )
            .where(
                token_usage.c.created_at >= _midnight(first_day),
                token_usage.c.created_at < _midnight(last_day + timedelta(days=1)),
            )
            .group_by(func.grouping_sets(tuple_(*by_day), tuple_(*by_model), tuple_(*by_actor), tuple_()))
        )
        of = workspace_id or project_id
        if of is not None:
            owner = projects.c.workspace_id if workspace_id else projects.c.id
            query = query.where(
                token_usage.c.session_id.in_(
                    select(sessions.c.id)
                    .join_from(sessions, projects, projects.c.id == sessions.c.project_id)
                    .where(owner == of)
                )
            )
        owners = workspaces if workspace_id else projects
        with transaction(self._database_url) as connection:
            if (
                of is not None
                and connection.execute(select(owners.c.id).where(owners.c.id == of)).first() is None
            ):
                return None
            return _summed(connection.execute(query).all())


def _summed(rows: Any) -> Spending:
    total = Spend(0, Decimal(0))
    days: dict[date, Spend] = {}
    models: dict[ModelName, Spend] = {}
    actors: dict[Actor, Spend] = {}
    for not_grouped, day, provider, model, kind, actor, calls, usd in rows:
        spend = Spend(calls, usd or Decimal(0))  # no rows, no sum
        match not_grouped:
            case 0b011:
                days[day] = spend
            case 0b101:
                models[ModelName(provider, model)] = spend
            case 0b110:
                actors[Actor(kind, actor)] = spend
            case _:
                total = spend
    return Spending(total, days, models, actors)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
