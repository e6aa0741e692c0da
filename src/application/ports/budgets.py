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
    is_strict: bool = False
    """A turn's worst case is held before it begins."""
    held_micros: int = 0
    """For turns under way, and for those whose cost is not known for certain yet."""
    excess_turns: int = 0
    """Turns that came to more than was held for them."""
    excess_micros: int = 0
    """How much more, in all."""


class CannotBeStrict(Exception):  # noqa: N818 - it names what happened
    """There is nothing to hold in a budget without a limit, or with one that never refuses."""


class UnknownOwner(Exception):  # noqa: N818 - it names what happened
    """There is no such project, or no such session in it."""


class Budgets(Protocol):
    """Reads budgets as they are committed now, and sets them. Each method may raise UnknownOwner and DatabaseFailed."""

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        """The owner's budget; None when it has none."""
        ...

    async def set(
        self,
        owner: BudgetOwner,
        *,
        limit_micros: int,
        policy: BudgetPolicy | None,
        is_strict: bool | None = None,
    ) -> OwnedBudget:
        """Set the budget, or make it, and give it as it is then. Valid from the next turn on.

        None: as it was, which for a new budget is `block`, and not strict. What is being spent meanwhile is lost
        neither in the counter nor among the thresholds: `domain.budget.notified_after` says which of them are armed
        then. What is held stays held. Raises CannotBeStrict, with nothing changed, where it would be strict without
        `domain.budget.can_be_strict`.
        """
        ...
