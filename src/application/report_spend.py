"""What was spent, by day, model and actor."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, timedelta
from decimal import Decimal
from uuid import UUID

from application.ports.clock import Clock
from application.ports.spending import Actor, ModelName, Spend, SpendingBooks


@dataclass(frozen=True, slots=True)
class SpendReport:
    """The days are dense and in order; models and actors come by spend, the largest first."""

    total: Spend
    days: Sequence[tuple[date, Spend]]
    models: Sequence[tuple[ModelName, Spend]]
    actors: Sequence[tuple[Actor, Spend]]


@dataclass(frozen=True, slots=True)
class ReportSpend:
    """Of one workspace or project, or of the whole installation."""

    books: SpendingBooks
    clock: Clock

    def __call__(
        self, days: int, *, workspace_id: UUID | None = None, project_id: UUID | None = None
    ) -> SpendReport | None:
        """The last `days` days in UTC, today being one of them; None when there is no such workspace or project.

        Raises DatabaseFailed.
        """
        last_day = self.clock.now().astimezone(UTC).date()
        window = [last_day - timedelta(days=ago) for ago in reversed(range(days))]
        spending = self.books.read(window[0], last_day, workspace_id=workspace_id, project_id=project_id)
        if spending is None:
            return None
        nothing = Spend(0, Decimal(0))
        return SpendReport(
            spending.total,
            [(day, spending.days.get(day, nothing)) for day in window],
            sorted(spending.models.items(), key=lambda item: (-item[1].usd, item[0].name, item[0].provider)),
            sorted(spending.actors.items(), key=lambda item: (-item[1].usd, item[0].id, item[0].kind)),
        )
