"""The sums of an in-memory ledger."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date
from decimal import MAX_PREC, Context, Decimal
from typing import Final, TypeVar
from uuid import UUID

from adapters.in_memory.ledger import InMemoryLedger
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
        usages = [
            usage
            for usage in self.ledger.usages.values()
            if first_day <= _day(usage) <= last_day
            and workspace_id in (None, of_project[usage.project_id])
            and project_id in (None, usage.project_id)
        ]
        return Spending(
            _sum(usages),
            _grouped(usages, _day),
            _grouped(usages, lambda usage: ModelName(str(usage.provider), usage.model_name)),
            _grouped(usages, lambda usage: Actor(str(usage.actor_kind), usage.actor_id)),
        )


def _grouped(usages: Iterable[TokenUsage], key: Callable[[TokenUsage], _Key]) -> dict[_Key, Spend]:
    groups: dict[_Key, list[TokenUsage]] = {}
    for usage in usages:
        groups.setdefault(key(usage), []).append(usage)
    return {each: _sum(group) for each, group in groups.items()}


def _sum(usages: Iterable[TokenUsage]) -> Spend:
    calls, usd = 0, Decimal(0)
    for usage in usages:
        charged = usage.cost.charged_usd
        calls += 1
        usd = _EXACT.add(usd, Decimal(usage.cost.micros).scaleb(-6) if charged is None else charged)
    return Spend(calls, usd)


def _day(usage: TokenUsage) -> date:
    return usage.created_at.astimezone(UTC).date()
