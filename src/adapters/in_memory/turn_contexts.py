"""Contexts out of an in-memory ledger."""

from uuid import UUID

from adapters.in_memory.ledger import InMemoryLedger
from application.ports.turn_context import ContextUnavailable, TurnContext, TurnContexts
from domain.agents import CREATIVE, area_of
from domain.binding import Bindings, BindingScope
from domain.budget import Budget, BudgetScope


class InMemoryTurnContexts(TurnContexts):
    """Reads what the ledger holds now."""

    def __init__(self, ledger: InMemoryLedger) -> None:
        self._ledger = ledger

    async def read(self, session_id: UUID, project_id: UUID, agent: str | None) -> TurnContext | None:
        ledger = self._ledger
        if not ledger.is_reachable:
            raise ContextUnavailable("the ledger is out of reach")
        if ledger.session_projects.get(session_id) != project_id:
            return None
        workspace_id = ledger.project_workspaces[project_id]
        owner_id = ledger.workspace_owners[workspace_id]
        return TurnContext(
            workspace_id=workspace_id,
            bindings=self._bindings(session_id, project_id, workspace_id, agent),
            budgets=self._budgets(session_id, project_id, area_of(agent)),
            sealed_keys={
                provider: sealed
                for (user_id, provider), sealed in ledger.sealed_keys.items()
                if user_id == owner_id
            },
        )

    def _bindings(
        self, session_id: UUID, project_id: UUID, workspace_id: UUID, agent: str | None
    ) -> Bindings:
        places = [
            (BindingScope.SESSION, str(session_id)),
            (BindingScope.PROJECT, str(project_id)),
            (BindingScope.WORKSPACE, str(workspace_id)),
        ]
        if agent is not None:
            places.append((BindingScope.AGENT, f"{project_id}:{agent}"))
        if (area := area_of(agent)) is not None:
            places.append((BindingScope.AREA, f"{project_id}:{area}"))
        bindings = self._ledger.bindings
        creative = bindings.get((BindingScope.AGENT, f"{project_id}:{CREATIVE}"))
        return Bindings(
            [bindings[place] for place in places if place in bindings],
            creative if agent != CREATIVE else None,
        )

    def _budgets(self, session_id: UUID, project_id: UUID, area: str | None) -> list[Budget]:
        owners = ((BudgetScope.PROJECT, project_id), (BudgetScope.SESSION, session_id))
        found = [
            Budget(
                id=entry.id,
                scope=entry.scope,
                limit_micros=entry.limit_micros,
                spent_micros=entry.spent_micros,
                policy=entry.policy,
                is_strict=entry.is_strict,
                held_micros=entry.held_micros,
            )
            for owner in owners
            if (entry := self._ledger.budgets.get(owner))
        ]
        ceiling = None if area is None else self._ledger.areas.get((project_id, area))
        if ceiling is not None and ceiling.limit_micros is not None:
            found.append(
                Budget(
                    id=ceiling.id,
                    scope=BudgetScope.AREA,
                    limit_micros=ceiling.limit_micros,
                    spent_micros=ceiling.spent_micros,
                )
            )
        return found
