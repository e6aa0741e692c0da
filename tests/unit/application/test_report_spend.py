"""What a report makes of the ledger's sums."""

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

from adapters.in_memory.clock import ManualClock
from adapters.in_memory.spending import InMemorySpending
from application.ports.spending import Actor, ModelName, Spend
from application.report_spend import ReportSpend
from tests.support.ledger_worlds import in_memory_world, row_of, usage_of


async def test_a_spend_report_has_every_day_and_the_largest_first() -> None:
    world = in_memory_world()
    clock = ManualClock(datetime(2026, 3, 1, 0, 30, tzinfo=UTC))
    for micros, day, model, actor in (
        (1, 27, "b", "ana"),
        (2, 27, "a", "bia"),
        (3, 28, "b", "bia"),
        (2, 28, "c", "ana"),
        (9, 26, "d", "ana"),
    ):
        at = datetime(2026, 2, day, 12, tzinfo=UTC)
        world.ledger.settle(row_of(usage_of(world, micros, created_at=at, model_name=model, actor_id=actor)))

    report = ReportSpend(InMemorySpending(world.ledger), clock)(3, workspace_id=world.workspace_id)

    def of(calls: int, micros: int) -> Spend:
        return Spend(calls, Decimal(micros).scaleb(-6))

    assert report is not None
    assert report.total == of(4, 8)
    assert report.days == [
        (date(2026, 2, 27), of(2, 3)),
        (date(2026, 2, 28), of(2, 5)),
        (date(2026, 3, 1), Spend(0, Decimal(0))),
    ]
    assert report.models == [
        (ModelName("openrouter", "b"), of(2, 4)),
        (ModelName("openrouter", "a"), of(1, 2)),
        (ModelName("openrouter", "c"), of(1, 2)),
    ]
    assert report.actors == [(Actor("agent", "bia"), of(2, 5)), (Actor("agent", "ana"), of(2, 3))]


def test_of_who_is_unknown_there_is_no_report() -> None:
    report = ReportSpend(InMemorySpending(in_memory_world().ledger), ManualClock())

    assert report(1, project_id=uuid4()) is None
    assert report(1) is not None
