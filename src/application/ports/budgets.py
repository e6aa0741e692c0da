"""The budgets of projects and sessions, as their owners see and set them."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from domain.budget import BudgetPolicy


@dataclass(frozen=True, slots=True)
class BudgetOwner:
    """A project, or with a session's id that session of it."""

    project_id: UUID
    session_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class OwnedBudget:
    """A budget, in micro-USD. A limit of 0 is no limit."""

    limit_micros: int
    spent_micros: int
    """Since the budget was made: nothing counts what was spent before."""
    policy: BudgetPolicy
    last_threshold_notified: int
    """Percent; the thresholds up to this one were announced and are not armed. 0: all of them are."""


class UnknownOwner(Exception):  # noqa: N818 - it names what happened
    """There is no such project, or no such session in it."""


class Budgets(Protocol):
    """Reads budgets as they are committed now, and sets them. Each method may raise UnknownOwner and DatabaseFailed."""

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        """The owner's budget; None when it has none."""
        ...

    async def set(self, owner: BudgetOwner, *, limit_micros: int, policy: BudgetPolicy | None) -> OwnedBudget:
        """Set the budget, or make it, and give it as it is then. Valid from the next turn on.

        `policy` None: as it was, which for a new budget is `block`. What is being spent meanwhile is lost neither in
        the counter nor among the thresholds: `domain.budget.notified_after` says which of them are armed then.
        """
        ...
