"""What strict budgets hold for turns under way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from domain.budget import Budget
from domain.settlement import TurnStart


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """The worst case of a turn, to be held in each of these budgets."""

    start: TurnStart
    budget_ids: Sequence[UUID]
    chat_micros: int
    router_micros: int
    """0: the router will not be asked."""

    @property
    def micros(self) -> int:
        """What has to fit."""
        return self.chat_micros + self.router_micros


class Holds(Protocol):
    """Places holds; settling, correcting and writing off are the recorder's and reconciliation's."""

    async def place(self, request: HoldRequest) -> Budget | None:
        """Hold it in all of the budgets, or in none; the first, by id, that has no room is the answer.

        No hold is granted unless spent + held + hold ≤ limit. A budget that is strict no longer, or gone, is passed
        over. A second request of one turn changes nothing. The turn's start is written with it. Raises
        ContextUnavailable when the database is out of reach for 2 s, or the turn has ended already: then nothing may
        be sent, and the turn's end releases what may have been held all the same.
        """
        ...

    async def release_strays(self) -> int:
        """Release what was granted to turns that had ended, without a call, by the time the grant came through; how
        many holds. To be called now and then: such a turn's own end found nothing to release. Raises DatabaseFailed.
        """
        ...
