"""The budget of a project or of a session."""

from dataclasses import dataclass
from uuid import UUID

from application.not_there import NotThere
from application.ports.budgets import BudgetOwner, Budgets, OwnedBudget, UnknownOwner
from application.ports.users import Users
from application.require_role import NotAllowed, require_project_role, role_for_budget


@dataclass(frozen=True, slots=True)
class ReadBudget:
    """A project's is for its maintainers, a session's for developers too."""

    users: Users
    budgets: Budgets

    async def __call__(self, user_id: UUID, owner: BudgetOwner) -> OwnedBudget:
        """The budget as it is now. Raises UnknownUser, NotAllowed, NotThere and DatabaseFailed.

        Where there is no budget nothing is counted, so that a spend of 0 would be untrue: it is NotThere.
        """
        needed = role_for_budget(owner)
        await require_project_role(self.users, user_id, owner.project_id, needed)
        try:
            budget = await self.budgets.find(owner)
        except UnknownOwner:
            if owner.session_id is None:  # deleted since the lines above
                raise NotAllowed(needed, "project") from None
            raise NotThere("There is no such session in the project.") from None
        if budget is None:
            owned_by = "project" if owner.session_id is None else "session"
            raise NotThere(
                f"The {owned_by} has no budget, so nothing limits or counts its spend: PUT makes one."
            )
        return budget
