"""Budgets in PostgreSQL, for their owners."""

from typing import Any, Final
from uuid import UUID

from psycopg.rows import TupleRow
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Integer,
    Numeric,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from adapters.postgres.pool import Pool, as_query, fetch_row_or_fail
from adapters.postgres.tables import budget_policy, budgets, projects, sessions
from application.ports.budgets import BudgetOwner, Budgets, OwnedBudget, UnknownOwner
from domain.budget import THRESHOLDS_PERCENT, BudgetPolicy

_COLUMNS: Final = (
    budgets.c.limit_micros,
    budgets.c.spent_micros,
    cast(budgets.c.policy, Text),
    budgets.c.last_threshold_notified,
)
_PROJECT: Final = select(projects.c.id).where(projects.c.id == bindparam("project_id", type_=Uuid))
_SESSION: Final = select(sessions.c.id).where(
    sessions.c.id == bindparam("session_id", type_=Uuid),
    sessions.c.project_id == bindparam("project_id", type_=Uuid),
)

_FIND_PROJECTS: Final = as_query(
    _PROJECT.with_only_columns(*_COLUMNS).outerjoin_from(
        projects, budgets, budgets.c.project_id == projects.c.id
    )
)
_FIND_SESSIONS: Final = as_query(
    _SESSION.with_only_columns(*_COLUMNS).outerjoin_from(
        sessions, budgets, budgets.c.session_id == sessions.c.id
    )
)


def _set(owner: Any, owner_column: Column[Any]) -> bytes:
    """One statement, whose values beside `excluded` are those of the row once it is locked, whoever moved it before."""
    zero = literal_column("0", Integer)
    wanted = bindparam("limit_micros", type_=BigInteger)
    wanted_policy = cast(bindparam("policy", type_=Text), budget_policy)
    made = owner.with_for_update(read=True, key_share=True).cte("owner")
    new = insert(budgets).from_select(
        [owner_column.name, "limit_micros", "policy"],
        select(
            made.c.id, wanted, func.coalesce(wanted_policy, cast(literal_column("'block'"), budget_policy))
        ),
        include_defaults=False,
    )
    limit = new.excluded.limit_micros
    is_raised = and_(budgets.c.limit_micros > zero, or_(limit == zero, limit > budgets.c.limit_micros))

    def is_crossed(percent: ColumnElement[int]) -> ColumnElement[bool]:
        spent = cast(budgets.c.spent_micros, Numeric) * literal_column("100", Integer)
        return and_(limit > zero, spent >= cast(limit, Numeric) * percent)

    percents = [literal_column(str(percent), Integer) for percent in reversed(THRESHOLDS_PERCENT)]
    crossed = case(*((is_crossed(percent), percent) for percent in percents), else_=zero)
    return as_query(
        new.on_conflict_do_update(
            index_elements=[owner_column],
            set_={
                "limit_micros": limit,
                "policy": func.coalesce(wanted_policy, budgets.c.policy),
                "last_threshold_notified": case(
                    (is_raised, func.least(budgets.c.last_threshold_notified, crossed)),
                    else_=budgets.c.last_threshold_notified,
                ),
                "updated_at": func.now(),
            },
        ).returning(*_COLUMNS)
    )


_SET_PROJECTS: Final = _set(_PROJECT, budgets.c.project_id)
_SET_SESSIONS: Final = _set(_SESSION, budgets.c.session_id)


class PostgresBudgets(Budgets):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        row = await self._fetch(_FIND_PROJECTS if owner.session_id is None else _FIND_SESSIONS, owner)
        return None if row[0] is None else _owned(row)

    async def set(self, owner: BudgetOwner, *, limit_micros: int, policy: BudgetPolicy | None) -> OwnedBudget:
        query = _SET_PROJECTS if owner.session_id is None else _SET_SESSIONS
        wanted = {"limit_micros": limit_micros, "policy": None if policy is None else str(policy)}
        return _owned(await self._fetch(query, owner, **wanted))

    async def _fetch(self, query: bytes, owner: BudgetOwner, **values: object) -> TupleRow:
        ids: dict[str, UUID | None] = {"project_id": owner.project_id, "session_id": owner.session_id}
        row = await fetch_row_or_fail(self._pool, query, {**ids, **values})
        if row is None:
            raise UnknownOwner
        return row


def _policy_of(label: str) -> BudgetPolicy:
    """Policies that came later count as `block`, as they do for turns."""
    return BudgetPolicy.ALLOW if label == BudgetPolicy.ALLOW else BudgetPolicy.BLOCK


def _owned(row: TupleRow) -> OwnedBudget:
    limit_micros, spent_micros, policy, last_threshold_notified = row
    return OwnedBudget(limit_micros, spent_micros, _policy_of(policy), last_threshold_notified)
