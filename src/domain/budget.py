"""Budgets: what a gate refuses, and which thresholds a spend crosses."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

THRESHOLDS_PERCENT: Final = (70, 90, 100)
"""Each is announced once per arming."""

LIMIT_MICROS_MAX: Final = 10**15
"""A thousand million USD: no budget is meant to have more, and every reader of JSON has its digits."""


class BudgetScope(StrEnum):
    """What a budget covers."""

    PROJECT = "project"
    SESSION = "session"
    AREA = "area"


class BudgetPolicy(StrEnum):
    """Values of the enum `budget_policy`: `block` refuses from 100 % on, `allow` never does."""

    BLOCK = "block"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit and what was spent of it, in micro-USD. A limit of 0 is no limit."""

    scope: BudgetScope
    limit_micros: int
    spent_micros: int
    policy: BudgetPolicy = BudgetPolicy.BLOCK

    @property
    def is_spent(self) -> bool:
        """Whether this budget refuses the next turn."""
        return self.policy is BudgetPolicy.BLOCK and 0 < self.limit_micros <= self.spent_micros


def refusing_budget(budgets: Iterable[Budget]) -> Budget | None:
    """The first budget that refuses, in the order given; None when the turn may go on."""
    return next((budget for budget in budgets if budget.is_spent), None)


def crossed_thresholds(
    *, spent_micros: int, limit_micros: int, last_notified_percent: int
) -> tuple[int, ...]:
    """The thresholds that `spent_micros` has reached and that were not announced yet, ascending."""
    if limit_micros <= 0:
        return ()
    return tuple(
        percent
        for percent in THRESHOLDS_PERCENT
        if percent > last_notified_percent and spent_micros * 100 >= limit_micros * percent
    )


def notified_after(
    limit_micros: int, *, limit_before_micros: int, spent_micros: int, last_notified_percent: int
) -> int:
    """The highest threshold that counts as announced once a budget has a new limit.

    A raised limit arms again what is no longer crossed. A lowered one announces nothing: the next spend does.
    """
    is_raised = limit_before_micros > 0 and (limit_micros == 0 or limit_micros > limit_before_micros)
    if not is_raised:
        return last_notified_percent
    crossed = crossed_thresholds(
        spent_micros=spent_micros, limit_micros=limit_micros, last_notified_percent=0
    )
    return min(last_notified_percent, max(crossed, default=0))
