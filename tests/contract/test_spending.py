"""What every adapter of the port SpendingBooks does."""

from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from application.ports.spending import Actor, ModelName, Spend, Spending
from domain.provider import Provider
from domain.usage import ActorKind, TokenCounts, implicit_cost
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, row_of, usage_of

NOON = datetime(2026, 9, 1, 12, tzinfo=UTC)
DAY = NOON.date()
NOTHING = Spending(Spend(0, Decimal(0)), {}, {}, {})


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


async def spend(
    world: LedgerWorld,
    micros: int,
    *,
    at: datetime = NOON,
    actor: str = "dev-api",
    session_id: UUID | None = None,
    project_id: UUID | None = None,
) -> None:
    assert await world.recorder.record(
        row_of(
            usage_of(
                world,
                micros,
                created_at=at,
                actor_id=actor,
                session_id=session_id or world.session_id,
                project_id=project_id or world.project_id,
            )
        )
    )


def read(
    world: LedgerWorld,
    first: date = DAY,
    last: date = DAY,
    *,
    workspace_id: UUID | None = None,
    project_id: UUID | None = None,
) -> Spending:
    spending = world.spending.read(first, last, workspace_id=workspace_id, project_id=project_id)
    assert spending is not None
    return spending


async def test_the_exact_cost_where_it_is_known_and_the_micros_otherwise(world: LedgerWorld) -> None:
    charged = implicit_cost(TokenCounts(1236, 0), Decimal("0.00000042"))
    assert charged.micros == 0
    for _ in range(3):
        await world.recorder.record(
            row_of(usage_of(world, cost=charged, created_at=NOON, model_name="typesafe/jev-1.13"))
        )
    await spend(world, 2**62)
    await spend(world, 1)

    assert read(world) == Spending(
        Spend(5, Decimal("4611686018427.38790626")),
        {DAY: Spend(5, Decimal("4611686018427.38790626"))},
        {
            ModelName("openrouter", "typesafe/jev-1.13"): Spend(3, Decimal("0.00000126")),
            ModelName("openrouter", "maker/model"): Spend(2, Decimal("4611686018427.387905")),
        },
        {
            Actor("agent", "escriba"): Spend(3, Decimal("0.00000126")),
            Actor("agent", "dev-api"): Spend(2, Decimal("4611686018427.387905")),
        },
    )


async def test_what_was_charged_as_nothing_is_nothing_and_not_the_micros(world: LedgerWorld) -> None:
    free = implicit_cost(TokenCounts(10, 0), Decimal(0))
    await world.recorder.record(row_of(usage_of(world, cost=free, created_at=NOON)))

    assert read(world).total == Spend(1, Decimal(0))


async def test_days_are_those_of_utc_and_the_window_has_both_its_ends(world: LedgerWorld) -> None:
    west = timezone(timedelta(hours=-3))
    for micros, at in (
        (1, datetime(2026, 8, 31, 23, 59, 59, 999999, UTC)),
        (10, datetime(2026, 9, 1, tzinfo=UTC)),
        (100, datetime(2026, 9, 1, 21, tzinfo=west)),  # the 2nd in UTC
        (1_000, datetime(2026, 9, 2, 23, 59, 59, 999999, UTC)),
        (10_000, datetime(2026, 9, 3, tzinfo=UTC)),
    ):
        await spend(world, micros, at=at)

    spending = read(world, date(2026, 9, 1), date(2026, 9, 2))

    assert spending.days == {
        date(2026, 9, 1): Spend(1, Decimal("0.00001")),
        date(2026, 9, 2): Spend(2, Decimal("0.0011")),
    }
    assert spending.total == Spend(3, Decimal("0.00111"))


async def test_one_project_one_workspace_or_all(world: LedgerWorld) -> None:
    project = world.add_project()
    session = world.add_session(project)
    await spend(world, 1)
    await spend(world, 10, session_id=session, project_id=project)

    found = [
        read(world, project_id=world.project_id).total.usd,
        read(world, project_id=project).total.usd,
        read(world, workspace_id=world.workspace_id).total.usd,
        read(world).total.usd,
    ]

    assert found == [Decimal(micros).scaleb(-6) for micros in (1, 10, 11, 11)]
    assert read(world, project_id=world.add_project()) == NOTHING


async def test_who_is_unknown_is_told_apart_from_who_spent_nothing(world: LedgerWorld) -> None:
    await spend(world, 1)

    assert world.spending.read(DAY, DAY, workspace_id=uuid4()) is None
    assert world.spending.read(DAY, DAY, project_id=uuid4()) is None
    assert world.spending.read(DAY, DAY, project_id=world.workspace_id) is None
    assert read(world, date(2026, 1, 1), date(2026, 1, 2)) == NOTHING


async def test_models_of_one_name_and_actors_of_one_id_are_told_apart(world: LedgerWorld) -> None:
    usages = [
        usage_of(world, 1, created_at=NOON),
        usage_of(world, 2, created_at=NOON, provider=Provider.TOGETHER),
        usage_of(world, 4, created_at=NOON, actor_kind=ActorKind.USER),
    ]
    for usage in usages:
        await world.recorder.record(row_of(usage))

    spending = read(world)

    assert spending.models == {
        ModelName("openrouter", "maker/model"): Spend(2, Decimal("0.000005")),
        ModelName("together", "maker/model"): Spend(1, Decimal("0.000002")),
    }
    assert spending.actors == {
        Actor("agent", "escriba"): Spend(2, Decimal("0.000003")),
        Actor("user", "escriba"): Spend(1, Decimal("0.000004")),
    }


async def test_a_correction_counts_on_the_day_of_its_row_and_exactly(world: LedgerWorld) -> None:
    usage = usage_of(world, 100, created_at=NOON, awaits_truth=True, is_estimated=True)
    await world.recorder.record(row_of(usage))

    await world.corrections.book_truth(usage.id, Decimal("0.00000042"))

    found = world.spending.read(NOON.date(), NOON.date())
    assert found is not None
    assert (found.total.calls, found.total.usd) == (1, Decimal("0.00000042"))
    (spend,) = found.days.values()
    assert spend.usd == Decimal("0.00000042")


async def test_what_is_parked_was_spent_all_the_same(world: LedgerWorld) -> None:
    deleted = world.add_session(world.project_id)
    world.delete_session(deleted)
    await world.recorder.record(row_of(usage_of(world, 7, session_id=deleted, created_at=NOON)))

    for of in ({}, {"project_id": world.project_id}, {"workspace_id": world.workspace_id}):
        found = world.spending.read(NOON.date(), NOON.date(), **of)
        assert found is not None
        assert found.total.usd == Decimal("0.000007")
