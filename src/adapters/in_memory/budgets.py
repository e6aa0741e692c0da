"""Budgets and areas of an in-memory ledger, for their owners."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from adapters.in_memory.ledger import AreaEntry, BudgetEntry, InMemoryLedger
from application.ports.agent_areas import AgentArea, AgentAreas
from application.ports.budgets import BudgetOwner, Budgets, CannotBeStrict, OwnedBudget, UnknownOwner
from domain.budget import BudgetPolicy, BudgetScope, can_be_strict, notified_after


@dataclass(frozen=True, slots=True)
class InMemoryBudgets(Budgets):
    """Nothing comes between reading and writing."""

    ledger: InMemoryLedger

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        entry = self.ledger.budgets.get(self._key(owner))
        return None if entry is None else self._owned(entry)

    async def set(
        self,
        owner: BudgetOwner,
        *,
        limit_micros: int,
        policy: BudgetPolicy | None,
        is_strict: bool | None = None,
    ) -> OwnedBudget:
        scope, owner_id = self._key(owner)
        entry = self.ledger.budgets.get((scope, owner_id)) or BudgetEntry(scope, owner_id, limit_micros)
        policy = policy or entry.policy
        is_strict = entry.is_strict if is_strict is None else is_strict
        if is_strict and not can_be_strict(limit_micros, policy):
            raise CannotBeStrict
        self.ledger.add_budget(entry)
        last_notified_percent = notified_after(
            limit_micros,
            limit_before_micros=entry.limit_micros,
            spent_micros=entry.spent_micros,
            last_notified_percent=entry.last_threshold_notified,
        )
        entry.armings += last_notified_percent < entry.last_threshold_notified
        entry.last_threshold_notified = last_notified_percent
        entry.limit_micros, entry.policy, entry.is_strict = limit_micros, policy, is_strict
        return self._owned(entry)

    def _owned(self, entry: BudgetEntry) -> OwnedBudget:
        excesses = [
            hold.settled_micros - hold.granted_micros
            for (_, budget_id), hold in self.ledger.holds.items()
            if budget_id == entry.id and hold.settled_micros > hold.granted_micros
        ]
        return OwnedBudget(
            entry.limit_micros,
            entry.spent_micros,
            entry.policy,
            entry.last_threshold_notified,
            is_strict=entry.is_strict,
            held_micros=entry.held_micros,
            excess_turns=len(excesses),
            excess_micros=sum(excesses),
        )

    def _key(self, owner: BudgetOwner) -> tuple[BudgetScope, UUID]:
        if owner.session_id is None:
            if owner.project_id not in self.ledger.project_workspaces:
                raise UnknownOwner
            return BudgetScope.PROJECT, owner.project_id
        if self.ledger.session_projects.get(owner.session_id) != owner.project_id:
            raise UnknownOwner
        return BudgetScope.SESSION, owner.session_id


@dataclass(frozen=True, slots=True)
class InMemoryAgentAreas(AgentAreas):
    """Nothing comes between reading and writing."""

    ledger: InMemoryLedger

    async def of_project(self, project_id: UUID) -> Sequence[AgentArea]:
        return [
            _area(key, entry) for (of, key), entry in sorted(self.ledger.areas.items()) if of == project_id
        ]

    async def set_limit(self, project_id: UUID, key: str, limit_micros: int | None) -> AgentArea | None:
        entry = self.ledger.areas.get((project_id, key))
        if entry is None:
            return None
        entry.limit_micros = limit_micros
        return _area(key, entry)


def _area(key: str, entry: AreaEntry) -> AgentArea:
    return AgentArea(key, entry.limit_micros, entry.spent_micros)
