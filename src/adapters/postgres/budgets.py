"""Budgets in PostgreSQL, for their owners."""

from typing import Any, Final
from uuid import UUID

from psycopg.rows import TupleRow
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    FromClause,
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
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import insert

from adapters.postgres.pool import Pool, as_query, fetch_row_or_fail
from adapters.postgres.tables import budget_holds, budget_policy, budgets, projects, sessions
from application.ports.budgets import BudgetOwner, Budgets, CannotBeStrict, OwnedBudget, UnknownOwner
from domain.budget import THRESHOLDS_PERCENT, BudgetPolicy

_SHOWN: Final = (
    budgets.c.id,
    budgets.c.limit_micros,
    budgets.c.spent_micros,
    budgets.c.policy,
    budgets.c.last_threshold_notified,
    budgets.c.strict,
    budgets.c.held_micros,
)


def _columns_of(budget: FromClause) -> list[ColumnElement[Any]]:
    """What its owner sees of a budget: `budget` has the columns of `_SHOWN`."""
    excess = func.sum(budget_holds.c.settled_micros - budget_holds.c.granted_micros)
    shown = [
        cast(budget.c.policy, Text) if column is budgets.c.policy else budget.c[column.name]
        for column in _SHOWN
    ]
    return [
        *shown,
        *(
            select(figure)
            .where(
                budget_holds.c.budget_id == budget.c.id,
                budget_holds.c.settled_micros > budget_holds.c.granted_micros,
            )
            .correlate(budget)
            .scalar_subquery()
            for figure in (func.count(), cast(func.coalesce(excess, literal_column("0")), BigInteger))
        ),
    ]


_PROJECT: Final = select(projects.c.id).where(projects.c.id == bindparam("project_id", type_=Uuid))
_SESSION: Final = select(sessions.c.id).where(
    sessions.c.id == bindparam("session_id", type_=Uuid),
    sessions.c.project_id == bindparam("project_id", type_=Uuid),
)

_FIND_PROJECTS: Final = as_query(
    _PROJECT.with_only_columns(*_columns_of(budgets)).outerjoin_from(
        projects, budgets, budgets.c.project_id == projects.c.id
    )
)
_FIND_SESSIONS: Final = as_query(
    _SESSION.with_only_columns(*_columns_of(budgets)).outerjoin_from(
        sessions, budgets, budgets.c.session_id == sessions.c.id
    )
)


def _set(owner: Any, owner_column: Column[Any]) -> bytes:
    """One statement, whose values beside `excluded` are those of the row once it is locked, whoever moved it before.

    No row: there is no such owner. A row of nulls: it would be strict with nothing to hold.
    """
    zero, one = (literal_column(number, Integer) for number in ("0", "1"))
    wanted = bindparam("limit_micros", type_=BigInteger)
    wanted_policy = cast(bindparam("policy", type_=Text), budget_policy)
    wanted_strict = cast(bindparam("is_strict", type_=Boolean), Boolean)
    block, allow = (cast(literal_column(f"'{policy}'"), budget_policy) for policy in ("block", "allow"))
    made = owner.with_for_update(read=True, key_share=True).cte("owner")

    def holds_nothing(
        strict: ColumnElement[bool], limit_micros: ColumnElement[int], policy: ColumnElement[Any]
    ) -> ColumnElement[bool]:
        return and_(strict, or_(limit_micros == zero, policy == allow))

    new_policy = func.coalesce(wanted_policy, block)
    new_strict = func.coalesce(wanted_strict, literal_column("false", Boolean))
    new = insert(budgets).from_select(
        [owner_column.name, "limit_micros", "policy", "strict"],
        select(made.c.id, wanted, new_policy, new_strict).where(
            not_(holds_nothing(new_strict, wanted, new_policy))
        ),
        include_defaults=False,
    )
    limit = new.excluded.limit_micros
    policy_then = func.coalesce(wanted_policy, budgets.c.policy)
    strict_then = func.coalesce(wanted_strict, budgets.c.strict)
    is_raised = and_(budgets.c.limit_micros > zero, or_(limit == zero, limit > budgets.c.limit_micros))

    def is_crossed(percent: ColumnElement[int]) -> ColumnElement[bool]:
        spent = cast(budgets.c.spent_micros, Numeric) * literal_column("100", Integer)
        return and_(limit > zero, spent >= cast(limit, Numeric) * percent)

    percents = [literal_column(str(percent), Integer) for percent in reversed(THRESHOLDS_PERCENT)]
    crossed = case(*((is_crossed(percent), percent) for percent in percents), else_=zero)
    last = budgets.c.last_threshold_notified
    arms_again = and_(is_raised, crossed < last)
    written = (
        new.on_conflict_do_update(
            index_elements=[owner_column],
            set_={
                "limit_micros": limit,
                "policy": policy_then,
                "strict": strict_then,
                "last_threshold_notified": case((arms_again, crossed), else_=last),
                "armings": budgets.c.armings + case((arms_again, one), else_=zero),
                "updated_at": func.now(),
            },
            where=not_(holds_nothing(strict_then, limit, policy_then)),
        )
        .returning(*_SHOWN)
        .cte("written")
    )
    return as_query(select(*_columns_of(written)).select_from(made.outerjoin(written, true())))


_SET_PROJECTS: Final = _set(_PROJECT, budgets.c.project_id)
_SET_SESSIONS: Final = _set(_SESSION, budgets.c.session_id)


class PostgresBudgets(Budgets):
    """Works on a pool that somebody else opens and closes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        row = await self._fetch(_FIND_PROJECTS if owner.session_id is None else _FIND_SESSIONS, owner)
        return None if row[0] is None else _owned(row)

    async def set(
        self,
        owner: BudgetOwner,
        *,
        limit_micros: int,
        policy: BudgetPolicy | None,
        is_strict: bool | None = None,
    ) -> OwnedBudget:
        query = _SET_PROJECTS if owner.session_id is None else _SET_SESSIONS
        row = await self._fetch(
            query,
            owner,
            limit_micros=limit_micros,
            policy=None if policy is None else str(policy),
            is_strict=is_strict,
        )
        if row[0] is None:
            raise CannotBeStrict
        return _owned(row)

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
    _, limit_micros, spent_micros, policy, last_threshold_notified, strict, held_micros, turns, micros = row
    return OwnedBudget(
        limit_micros,
        spent_micros,
        _policy_of(policy),
        last_threshold_notified,
        is_strict=strict,
        held_micros=held_micros,
        excess_turns=turns,
        excess_micros=micros,
    )
