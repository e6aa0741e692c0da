"""The sums of an in-memory ledger."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date
from decimal import MAX_PREC, Context, Decimal
from typing import Final, TypeVar
from uuid import UUID

from adapters.in_memory.ledger import InMemoryLedger, figure_of
from application.ports.spending import Actor, ModelName, Spend, Spending, SpendingBooks
from domain.usage import TokenUsage

_Key = TypeVar("_Key")
_EXACT: Final = Context(prec=MAX_PREC)


@dataclass(frozen=True, slots=True)
class InMemorySpending(SpendingBooks):
    """Sums at each question."""

    ledger: InMemoryLedger

    def read(
        self,
        first_day: date,
        last_day: date,
        *,
        workspace_id: UUID | None = None,
        project_id: UUID | None = None,
    ) -> Spending | None:
        of_project = self.ledger.project_workspaces
        if workspace_id is not None and workspace_id not in self.ledger.workspace_owners:
            return None
        if project_id is not None and project_id not in of_project:
            return None
        ledger = self.ledger
        usages = [
            usage
            for usage in (*ledger.usages.values(), *ledger.parked.values())
            if first_day <= _day(usage) <= last_day
            and workspace_id in (None, of_project[usage.project_id])
            and project_id in (None, usage.project_id)
        ]
        return Spending(
            self._sum(usages),
            self._grouped(usages, _day),
            self._grouped(usages, lambda usage: ModelName(str(usage.provider), usage.model_name)),
            self._grouped(usages, lambda usage: Actor(str(usage.actor_kind), usage.actor_id)),
        )

    def _grouped(self, usages: Iterable[TokenUsage], key: Callable[[TokenUsage], _Key]) -> dict[_Key, Spend]:
        groups: dict[_Key, list[TokenUsage]] = {}
        for usage in usages:
            groups.setdefault(key(usage), []).append(usage)
        return {each: self._sum(group) for each, group in groups.items()}

    def _sum(self, usages: Iterable[TokenUsage]) -> Spend:
        calls, usd = 0, Decimal(0)
        for usage in usages:
            calls += 1
            usd = _EXACT.add(usd, figure_of(usage))
            for correction in self.ledger.corrections.get(usage.id, ()):
                usd = _EXACT.add(usd, correction.delta_usd)
        return Spend(calls, usd)


def _day(usage: TokenUsage) -> date:
    return usage.created_at.astimezone(UTC).date()
