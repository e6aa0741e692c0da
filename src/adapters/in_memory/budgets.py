"""Budgets and areas of an in-memory ledger, for their owners."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from adapters.in_memory.ledger import AreaEntry, BudgetEntry, InMemoryLedger
from application.ports.agent_areas import AgentArea, AgentAreas
from application.ports.budgets import BudgetOwner, Budgets, OwnedBudget, UnknownOwner
from domain.budget import BudgetPolicy, BudgetScope, notified_after


@dataclass(frozen=True, slots=True)
class InMemoryBudgets(Budgets):
    """Nothing comes between reading and writing."""

    ledger: InMemoryLedger

    async def find(self, owner: BudgetOwner) -> OwnedBudget | None:
        entry = self.ledger.budgets.get(self._key(owner))
        return None if entry is None else _owned(entry)

    async def set(self, owner: BudgetOwner, *, limit_micros: int, policy: BudgetPolicy | None) -> OwnedBudget:
        scope, owner_id = self._key(owner)
        entry = self.ledger.budgets.get((scope, owner_id))
        if entry is None:
            entry = BudgetEntry(scope, owner_id, limit_micros)
            self.ledger.add_budget(entry)
        entry.last_threshold_notified = notified_after(
            limit_micros,
            limit_before_micros=entry.limit_micros,
            spent_micros=entry.spent_micros,
            last_notified_percent=entry.last_threshold_notified,
        )
        entry.limit_micros = limit_micros
        entry.policy = policy or entry.policy
        return _owned(entry)

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


def _owned(entry: BudgetEntry) -> OwnedBudget:
    return OwnedBudget(entry.limit_micros, entry.spent_micros, entry.policy, entry.last_threshold_notified)


def _area(key: str, entry: AreaEntry) -> AgentArea:
    return AgentArea(key, entry.limit_micros, entry.spent_micros)
