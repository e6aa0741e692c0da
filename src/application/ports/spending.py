"""What was spent, summed from the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Spend:
    """Rows of the ledger together: exact USD where the provider named them, else the row's micro-USD."""

    calls: int
    usd: Decimal


@dataclass(frozen=True, slots=True)
class ModelName:
    """A model as its rows name it; the tool router is one of them."""

    provider: str
    name: str


@dataclass(frozen=True, slots=True)
class Actor:
    """Whose rows: the kind is one of the enum `actor_kind`."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Spending:
    """One set of rows, summed four ways: each adds up to the total."""

    total: Spend
    days: Mapping[date, Spend]
    """Days in UTC on which something was recorded."""
    models: Mapping[ModelName, Spend]
    actors: Mapping[Actor, Spend]


class SpendingBooks(Protocol):
    """Sums the ledger as it is committed now."""

    def read(
        self,
        first_day: date,
        last_day: date,
        *,
        workspace_id: UUID | None = None,
        project_id: UUID | None = None,
    ) -> Spending | None:
        """What was spent on these days, both of them included, of one workspace or project, or of all.

        None when there is no such workspace or project. Raises DatabaseFailed.
        """
        ...
