"""The ledger's sums in PostgreSQL, for `brabo report`."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    CTE,
    Date,
    Integer,
    Numeric,
    Text,
    cast,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    union_all,
)

from adapters.postgres.one_command import transaction
from adapters.postgres.tables import (
    parked_usage,
    projects,
    sessions,
    token_usage,
    usage_corrections,
    workspaces,
)
from application.ports.spending import Actor, ModelName, Spend, Spending, SpendingBooks

# A product, since a quotient of two numbers of PostgreSQL's is rounded.
_MICRO_USD: Final = literal_column("0.000001", Numeric)


def _booked() -> CTE:
    """All that was spent: rows, those that are parked, and corrections, on the day of the row they correct."""
    project_of_row = select(sessions.c.project_id).where(sessions.c.id == token_usage.c.session_id)
    rows = select(
        token_usage.c.created_at,
        cast(token_usage.c.provider, Text).label("provider"),
        token_usage.c.model_name,
        cast(token_usage.c.actor_kind, Text).label("actor_kind"),
        token_usage.c.actor_id,
        project_of_row.scalar_subquery().label("project_id"),
        literal_column("1", Integer).label("calls"),
        func.coalesce(token_usage.c.charged_usd, cast(token_usage.c.cost_micros, Numeric) * _MICRO_USD).label(
            "usd"
        ),
    )
    parked = select(
        parked_usage.c.created_at,
        parked_usage.c.provider,
        parked_usage.c.model_name,
        parked_usage.c.actor_kind,
        parked_usage.c.actor_id,
        parked_usage.c.project_id,
        literal_column("1", Integer),
        func.coalesce(parked_usage.c.charged_usd, cast(parked_usage.c.cost_micros, Numeric) * _MICRO_USD),
    )
    corrections = select(
        usage_corrections.c.usage_created_at,
        usage_corrections.c.provider,
        usage_corrections.c.model_name,
        usage_corrections.c.actor_kind,
        usage_corrections.c.actor_id,
        usage_corrections.c.project_id,
        literal_column("0", Integer),
        usage_corrections.c.delta_usd,
        # What goes with a deleted session goes whole.
    ).where(
        or_(
            exists().where(token_usage.c.id == usage_corrections.c.usage_id),
            exists().where(parked_usage.c.id == usage_corrections.c.usage_id),
        )
    )
    return union_all(rows, parked, corrections).cte("booked")


_BOOKED: Final = _booked()
_DAY: Final = cast(func.timezone("UTC", _BOOKED.c.created_at), Date)


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
        by_day, by_model = (_DAY,), (_BOOKED.c.provider, _BOOKED.c.model_name)
        by_actor = (_BOOKED.c.actor_kind, _BOOKED.c.actor_id)
        # One statement, so that the sums are of the same rows.
        query = (
            select(
                func.grouping(_DAY, _BOOKED.c.provider, _BOOKED.c.actor_kind),
                *by_day,
                *by_model,
                *by_actor,
                func.sum(_BOOKED.c.calls),
                func.sum(_BOOKED.c.usd),
            )
            .where(
                _BOOKED.c.created_at >= _midnight(first_day),
                _BOOKED.c.created_at < _midnight(last_day + timedelta(days=1)),
            )
            .group_by(func.grouping_sets(tuple_(*by_day), tuple_(*by_model), tuple_(*by_actor), tuple_()))
        )
        of = workspace_id or project_id
        if of is not None:
            owner = projects.c.workspace_id if workspace_id else projects.c.id
            query = query.where(_BOOKED.c.project_id.in_(select(projects.c.id).where(owner == of)))
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
        spend = Spend(calls or 0, usd or Decimal(0))  # no rows, no sum
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
