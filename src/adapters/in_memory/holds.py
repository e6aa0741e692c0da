"""Holds in an in-memory ledger."""

from adapters.in_memory.ledger import BudgetEntry, HoldEntry, InMemoryLedger
from application.ports.holds import HoldRequest, Holds
from application.ports.turn_context import ContextUnavailable
from domain.budget import Budget


class InMemoryHolds(Holds):
    """Nothing comes between looking and holding."""

    def __init__(self, ledger: InMemoryLedger) -> None:
        self._ledger = ledger

    async def place(self, request: HoldRequest) -> Budget | None:
        ledger, turn_id = self._ledger, request.start.turn_id
        if not ledger.is_reachable:
            raise ContextUnavailable("the ledger is out of reach")
        entries = {entry.id: entry for entry in ledger.budgets.values()}
        found = [entries[budget_id] for budget_id in sorted(request.budget_ids) if budget_id in entries]
        holding = [entry for entry in found if _budget(entry).holds]
        if holding and turn_id in ledger.ends:
            raise ContextUnavailable("the turn was ended by somebody else before it had begun")
        new = [entry for entry in holding if (turn_id, entry.id) not in ledger.holds]
        short = next((entry for entry in new if not _budget(entry).has_room_for(request.micros)), None)
        if short is not None:
            return _budget(short)
        for entry in new:
            ledger.holds[turn_id, entry.id] = HoldEntry(
                request.micros, request.chat_micros, request.router_micros
            )
            entry.held_micros += request.micros
        return None

    async def release_strays(self) -> int:
        return 0  # a grant that is asked for after the end is refused


def _budget(entry: BudgetEntry) -> Budget:
    return Budget(
        id=entry.id,
        scope=entry.scope,
        limit_micros=entry.limit_micros,
        spent_micros=entry.spent_micros,
        policy=entry.policy,
        is_strict=entry.is_strict,
        held_micros=entry.held_micros,
    )
