"""Setting the budget of a project or of a session."""

from dataclasses import dataclass
from uuid import UUID

from application.not_there import NotThere
from application.ports.budgets import BudgetOwner, Budgets, OwnedBudget, UnknownOwner
from application.ports.users import Users
from application.require_role import NotAllowed, require_project_role, role_for_budget
from domain.budget import BudgetPolicy


@dataclass(frozen=True, slots=True)
class SetBudget:
    """A project's is for its maintainers, a session's for developers too."""

    users: Users
    budgets: Budgets

    async def __call__(
        self,
        user_id: UUID,
        owner: BudgetOwner,
        *,
        limit_micros: int,
        policy: BudgetPolicy | None,
        is_strict: bool | None = None,
    ) -> OwnedBudget:
        """The budget as it is then; made where there was none. None: as it was, or `block`, and not strict.

        Raises UnknownUser, NotAllowed, NotThere, CannotBeStrict and DatabaseFailed.
        """
        needed = role_for_budget(owner)
        await require_project_role(self.users, user_id, owner.project_id, needed)
        try:
            return await self.budgets.set(
                owner, limit_micros=limit_micros, policy=policy, is_strict=is_strict
            )
        except UnknownOwner:
            if owner.session_id is None:  # deleted since the lines above
                raise NotAllowed(needed, "project") from None
            raise NotThere("There is no such session in the project.") from None
