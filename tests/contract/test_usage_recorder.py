"""What every adapter of the port UsageRecorder does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from application.ports.corrections import Booked, Verdict
from domain.binding import BindingScope
from domain.budget import BudgetPolicy, BudgetScope
from domain.provider import Provider, RoutingPreference
from domain.usage import ActorKind, Cost, Prices, TokenCounts, TokenUsage, implicit_cost
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, row_of, usage_of

LARGEST_BIGINT = 2**63 - 1
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


def project_budget(world: LedgerWorld, limit_micros: int, **fields: Any) -> BudgetEntry:
    entry = BudgetEntry(BudgetScope.PROJECT, world.project_id, limit_micros, **fields)
    world.add_budget(entry)
    return entry


def session_budget(world: LedgerWorld, limit_micros: int, **fields: Any) -> BudgetEntry:
    entry = BudgetEntry(BudgetScope.SESSION, world.session_id, limit_micros, **fields)
    world.add_budget(entry)
    return entry


def spent(world: LedgerWorld, scope: BudgetScope = BudgetScope.PROJECT) -> int:
    owner_id = world.project_id if scope is BudgetScope.PROJECT else world.session_id
    return world.budget(scope, owner_id).spent_micros


def thresholds(world: LedgerWorld) -> list[int]:
    return [announcement["payload"]["threshold"] for announcement in world.announcements()]


async def test_a_record_becomes_the_whole_row(world: LedgerWorld) -> None:
    bound = world.bound(BindingScope.AREA, routing_preference=RoutingPreference.THROUGHPUT)
    world.bind(bound, f"{world.project_id}:qa")
    usage = usage_of(
        world,
        actor_kind=ActorKind.AGENT,
        actor_id="qa-automacao",
        provider=Provider.NVIDIA_NIM,
        model_id=bound.model_id,
        model_name="maker/model:free",
        tokens=TokenCounts(2**31 - 1, 17, cached_input=11, reasoning=5),
        is_estimated=True,
        cost=Cost(LARGEST_BIGINT, Prices(3, LARGEST_BIGINT), True, 42, Decimal("9.87E-97")),
        latency_ms=1234,
        binding_origin="area",
        routing_preference=RoutingPreference.THROUGHPUT,
        upstream_provider="Fornecedor São José",
        resolved_model_name="maker/model-2026-08-01",
        generation_id="gen-1",
        created_at=datetime(2026, 2, 28, 23, 59, 59, 999999, UTC),
    )

    assert await world.recorder.record(row_of(usage)) is True

    assert world.rows() == {
        usage.id: {
            "id": usage.id,
            "session_id": world.session_id,
            "actor_kind": "agent",
            "actor_id": "qa-automacao",
            "provider": "nvidia-nim",
            "model_id": bound.model_id,
            "model_name": "maker/model:free",
            "input_tokens": 2**31 - 1,
            "output_tokens": 17,
            "estimated": True,
            "cost_micros": LARGEST_BIGINT,
            "input_price_per_million_micros": 3,
            "output_price_per_million_micros": LARGEST_BIGINT,
            "latency_ms": 1234,
            "binding_origin": "area",
            "upstream_provider": "Fornecedor São José",
            "routing_preference": "throughput",
            "created_at": datetime(2026, 2, 28, 23, 59, 59, 999999, UTC),
            "price_implicit": True,
            "catalog_cost_micros": 42,
            "resolved_model_name": "maker/model-2026-08-01",
            "generation_id": "gen-1",
            "cached_input_tokens": 11,
            "reasoning_tokens": 5,
            "charged_usd": Decimal("9.87E-97"),
        }
    }
    assert not world.unrecorded


async def test_what_is_unknown_stays_null_and_what_is_free_is_zero(world: LedgerWorld) -> None:
    project_budget(world, 100)
    usage = usage_of(world, cost_micros=0)

    assert await world.recorder.record(row_of(usage))

    row = world.rows()[usage.id]
    assert row["cost_micros"] == 0
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {
        "model_id",
        "binding_origin",
        "routing_preference",
        "upstream_provider",
        "resolved_model_name",
        "generation_id",
        "cached_input_tokens",
        "reasoning_tokens",
        "catalog_cost_micros",
        "charged_usd",
    }
    assert spent(world) == 0


@pytest.mark.parametrize(
    "charged", ["0.00000042", "4.2e-7", "0", "1000000", "0.000051912000000000004", "1." + "3" * 100]
)
async def test_what_was_charged_is_kept_digit_for_digit(world: LedgerWorld, charged: str) -> None:
    usage = usage_of(world, cost=implicit_cost(TokenCounts(1236, 0), Decimal(charged)))

    assert await world.recorder.record(row_of(usage))

    kept = world.rows()[usage.id]["charged_usd"]
    assert f"{kept:f}" == f"{Decimal(charged):f}"


@pytest.mark.parametrize("charged", ["1e-101", "1e-99999"])
async def test_what_no_price_is_written_with_is_kept_in_micros_only(world: LedgerWorld, charged: str) -> None:
    usage = usage_of(world, cost=implicit_cost(TokenCounts(1236, 0), Decimal(charged)))

    assert await world.recorder.record(row_of(usage))

    row = world.rows()[usage.id]
    assert (row["charged_usd"], row["cost_micros"]) == (None, 0)


async def test_project_and_session_budgets_move_and_others_stay(world: LedgerWorld) -> None:
    project_budget(world, 1_000, spent_micros=5)
    session_budget(world, 1_000)
    other_session = world.add_session(world.project_id)
    world.add_budget(BudgetEntry(BudgetScope.SESSION, other_session, 1_000, spent_micros=3))

    assert await world.recorder.record(row_of(usage_of(world, 10)))
    assert await world.recorder.record(row_of(usage_of(world, 20)))

    assert spent(world) == 35
    assert spent(world, BudgetScope.SESSION) == 30
    assert world.budget(BudgetScope.SESSION, other_session).spent_micros == 3


async def test_without_any_budget_the_row_is_written(world: LedgerWorld) -> None:
    usage = usage_of(world)

    assert await world.recorder.record(row_of(usage))

    assert list(world.rows()) == [usage.id]
    assert not world.announcements()


async def test_writing_a_record_twice_changes_nothing_the_second_time(world: LedgerWorld) -> None:
    project_budget(world, 100)
    session_budget(world, 1_000)
    world.add_area("dev", AreaEntry())
    usage = usage_of(world, 80, area="dev")

    assert await world.recorder.record(row_of(usage))
    assert await world.recorder.record(row_of(usage))

    assert len(world.rows()) == 1
    assert spent(world) == 80
    assert spent(world, BudgetScope.SESSION) == 80
    assert world.area_spent_micros("dev") == 80
    assert thresholds(world) == [70]


async def test_one_record_handed_over_twice_at_once_counts_once(world: LedgerWorld) -> None:
    project_budget(world, 100)
    world.add_area("dev", AreaEntry())
    usage = usage_of(world, 80, area="dev")
    neighbours = [usage_of(world, 1, area="dev") for _ in range(5)]

    results = await asyncio.gather(
        *(world.recorder.record(row_of(each)) for each in [usage, *neighbours, usage, usage])
    )

    assert all(results)
    assert spent(world) == 85
    assert world.area_spent_micros("dev") == 85
    assert thresholds(world) == [70]


@pytest.mark.parametrize("ceiling_micros", [None, 50])
async def test_the_area_moves_with_and_without_a_ceiling(
    world: LedgerWorld, ceiling_micros: int | None
) -> None:
    world.add_area("dev", AreaEntry(limit_micros=ceiling_micros, spent_micros=1))
    world.add_area("qa", AreaEntry())

    assert await world.recorder.record(row_of(usage_of(world, 60, actor_id="dev-api", area="dev")))

    assert world.area_spent_micros("dev") == 61
    assert world.area_spent_micros("qa") == 0
    assert not world.announcements()


async def test_an_actor_without_an_area_moves_none(world: LedgerWorld) -> None:
    world.add_area("dev", AreaEntry())

    assert await world.recorder.record(row_of(usage_of(world, 60)))
    assert await world.recorder.record(row_of(usage_of(world, 60, actor_id="infra", area="infra")))

    assert world.area_spent_micros("dev") == 0
    assert len(world.rows()) == 2


async def test_a_crossed_threshold_is_announced_with_its_trace(world: LedgerWorld) -> None:
    entry = project_budget(world, 1_000, spent_micros=650)

    assert await world.recorder.record(row_of(usage_of(world, 50, traceparent=TRACEPARENT)))

    assert world.announcements() == [
        {
            "aggregate_type": "budget",
            "aggregate_id": entry.id,
            "event_type": "budget.threshold_crossed",
            "payload": {
                "scope": "project",
                "scopeId": str(world.project_id),
                "threshold": 70,
                "spentMicros": 700,
                "limitMicros": 1_000,
            },
            "metadata": {"traceparent": TRACEPARENT},
        }
    ]
    assert world.budget(BudgetScope.PROJECT, world.project_id).last_threshold_notified == 70


async def test_a_session_announces_as_a_session_beside_its_project(world: LedgerWorld) -> None:
    of_project = project_budget(world, 1_000)
    of_session = session_budget(world, 20)

    assert await world.recorder.record(row_of(usage_of(world, 18)))

    announcements = world.announcements()
    assert {each["aggregate_id"] for each in announcements} == {of_session.id}
    assert [each["payload"] for each in announcements] == [
        {
            "scope": "session",
            "scopeId": str(world.session_id),
            "threshold": threshold,
            "spentMicros": 18,
            "limitMicros": 20,
        }
        for threshold in (70, 90)
    ]
    assert [each["metadata"] for each in announcements] == [{}, {}]
    assert world.budget(BudgetScope.PROJECT, world.project_id).last_threshold_notified == 0
    assert of_project.id != of_session.id


async def test_one_call_from_nothing_to_all_announces_all_three(world: LedgerWorld) -> None:
    project_budget(world, 100)

    assert await world.recorder.record(row_of(usage_of(world, 250)))

    assert thresholds(world) == [70, 90, 100]
    assert {each["payload"]["spentMicros"] for each in world.announcements()} == {250}


@pytest.mark.parametrize(
    ("costs", "announced"), [([69], []), ([70], [70]), ([89, 1], [70, 90]), ([99, 1], [70, 90, 100])]
)
async def test_a_threshold_is_crossed_at_its_very_percentage(
    world: LedgerWorld, costs: list[int], announced: list[int]
) -> None:
    project_budget(world, 100)

    for cost_micros in costs:
        assert await world.recorder.record(row_of(usage_of(world, cost_micros)))

    assert thresholds(world) == announced


async def test_a_threshold_is_announced_once_an_arming(world: LedgerWorld) -> None:
    project_budget(world, 100, spent_micros=95, last_threshold_notified=90)

    assert await world.recorder.record(row_of(usage_of(world, 1)))
    assert await world.recorder.record(row_of(usage_of(world, 10)))
    assert await world.recorder.record(row_of(usage_of(world, 10)))

    assert thresholds(world) == [100]
    assert world.budget(BudgetScope.PROJECT, world.project_id).last_threshold_notified == 100


async def test_a_budget_that_only_allows_announces_too(world: LedgerWorld) -> None:
    project_budget(world, 100, policy=BudgetPolicy.ALLOW)

    assert await world.recorder.record(row_of(usage_of(world, 95)))

    assert thresholds(world) == [70, 90]


async def test_a_limit_of_zero_announces_nothing(world: LedgerWorld) -> None:
    project_budget(world, 0)

    assert await world.recorder.record(row_of(usage_of(world, 1_000_000)))

    assert spent(world) == 1_000_000
    assert not world.announcements()


async def test_thresholds_of_the_largest_limit_do_not_overflow(world: LedgerWorld) -> None:
    project_budget(world, LARGEST_BIGINT, spent_micros=LARGEST_BIGINT - 10)

    assert await world.recorder.record(row_of(usage_of(world, 10)))

    assert spent(world) == LARGEST_BIGINT
    assert thresholds(world) == [70, 90, 100]


async def test_fifty_at_once_on_one_budget_are_the_exact_sum_and_each_threshold_once(
    world: LedgerWorld,
) -> None:
    project_budget(world, 1_000)
    session_budget(world, 2_000)
    world.add_area("dev", AreaEntry(limit_micros=5))
    usages = [
        usage_of(world, 20, area="dev", id=UUID(int=number), traceparent=f"00-{number:032x}-{number:016x}-01")
        for number in range(1, 51)
    ]

    results = await asyncio.gather(*map(world.recorder.record, map(row_of, usages)))

    assert all(results)
    assert len(world.rows()) == 50
    assert spent(world) == 1_000
    assert spent(world, BudgetScope.SESSION) == 1_000
    assert world.area_spent_micros("dev") == 1_000
    assert thresholds(world) == [70, 90, 100]
    announced = [
        (each["payload"]["spentMicros"], each["metadata"]["traceparent"]) for each in world.announcements()
    ]
    crossing = {usage.traceparent: position * 20 for position, usage in enumerate(usages, start=1)}
    assert [spent_micros for spent_micros, _ in announced] == [700, 900, 1_000]
    assert [crossing[traceparent] for _, traceparent in announced] == [700, 900, 1_000]


@pytest.mark.parametrize("poisoned", [0, 3, 9])
async def test_a_record_of_a_deleted_session_is_parked_alone_and_counts(
    world: LedgerWorld, poisoned: int
) -> None:
    project_budget(world, 1_000)
    deleted = world.add_session(world.project_id)
    world.delete_session(deleted)
    usages = [usage_of(world, 10) for _ in range(10)]
    usages[poisoned] = usage_of(world, 10, session_id=deleted)

    results = await asyncio.gather(*map(world.recorder.record, map(row_of, usages)))

    assert results == [True] * 10
    assert world.unrecorded == []
    assert len(world.rows()) == 9
    assert world.parked_ids() == [usages[poisoned].id]
    assert spent(world) == 100


async def test_a_caller_that_leaves_does_not_undo_its_record(world: LedgerWorld) -> None:
    usage = usage_of(world)
    caller = asyncio.create_task(world.recorder.record(row_of(usage)))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait({caller})

    assert await world.recorder.record(row_of(usage_of(world)))
    async with asyncio.timeout(2):
        while usage.id not in world.rows():
            await asyncio.sleep(0.01)
    assert not world.unrecorded


async def test_several_projects_in_one_go_move_each_their_own(world: LedgerWorld) -> None:
    projects = [world.add_project() for _ in range(4)]
    sessions = [world.add_session(project_id) for project_id in projects]
    for project_id, session_id in zip(projects, sessions, strict=True):
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, project_id, 100))
        world.add_budget(BudgetEntry(BudgetScope.SESSION, session_id, 100))

    results = await asyncio.gather(
        *(
            world.recorder.record(
                row_of(usage_of(world, cost_micros, session_id=session_id, project_id=project_id))
            )
            for _ in range(3)
            for cost_micros, project_id, session_id in zip((10, 20, 30, 40), projects, sessions, strict=True)
        )
    )

    assert all(results)
    assert [world.budget(BudgetScope.PROJECT, each).spent_micros for each in projects] == [30, 60, 90, 120]
    assert [world.budget(BudgetScope.SESSION, each).spent_micros for each in sessions] == [30, 60, 90, 120]
    by_budget: dict[UUID, list[int]] = {}
    for announcement in world.announcements():
        by_budget.setdefault(announcement["aggregate_id"], []).append(announcement["payload"]["threshold"])
    assert sorted(by_budget.values()) == [[70, 90], [70, 90], [70, 90, 100], [70, 90, 100]]


async def test_ids_need_not_be_handed_over_in_order(world: LedgerWorld) -> None:
    usages = sorted(
        (usage_of(world, id=uuid4()) for _ in range(20)), key=lambda usage: usage.id, reverse=True
    )

    assert all(await asyncio.gather(*map(world.recorder.record, map(row_of, usages))))

    assert set(world.rows()) == {usage.id for usage in usages}


def costing(usage: TokenUsage, cost_micros: int, **changes: Any) -> TokenUsage:
    """The same row with another figure."""
    cost = Cost(cost_micros, Prices(150_000, 600_000), is_implicit=False, catalogue_micros=None)
    return replace(usage, cost=cost, **changes)


@pytest.mark.parametrize("second_micros", [95, 40])
async def test_another_figure_of_a_row_moves_what_the_row_has_moved(
    world: LedgerWorld, second_micros: int
) -> None:
    project_budget(world, 100)
    session_budget(world, 1_000)
    world.add_area("dev", AreaEntry())
    usage = usage_of(world, 80, area="dev")
    assert await world.recorder.record(row_of(usage))

    for _ in range(2):
        assert await world.recorder.record(row_of(costing(usage, second_micros)))

    assert world.rows()[usage.id]["cost_micros"] == 80
    assert spent(world) == spent(world, BudgetScope.SESSION) == second_micros
    assert world.area_spent_micros("dev") == second_micros
    assert thresholds(world) == ([70, 90] if second_micros == 95 else [70])


async def test_the_first_figure_again_is_no_other_one(world: LedgerWorld) -> None:
    project_budget(world, 100)
    usage = usage_of(world, 10)

    for figure in (usage, costing(usage, 30), usage):
        assert await world.recorder.record(row_of(figure))

    assert spent(world) == 30


@pytest.mark.parametrize(
    ("figures", "comes_to"),
    [
        ([(10, False), (30, True)], 10),
        ([(10, True), (30, True)], 30),
        ([(10, True), (30, False), (12, True)], 30),
    ],
)
async def test_an_estimate_is_worth_less_than_any_figure_that_is_none(
    world: LedgerWorld, figures: list[tuple[int, bool]], comes_to: int
) -> None:
    project_budget(world, 100)
    usage = usage_of(world)

    for cost_micros, is_estimate in figures:
        assert await world.recorder.record(row_of(costing(usage, cost_micros, is_estimated=is_estimate)))

    assert spent(world) == comes_to


async def test_a_parked_row_is_known_and_corrected_as_any_other(world: LedgerWorld) -> None:
    project_budget(world, 100)
    world.add_area("dev", AreaEntry())
    deleted = world.add_session(world.project_id)
    world.delete_session(deleted)
    gone = usage_of(world, 10, session_id=deleted, area="dev")

    for figure in (gone, gone, costing(gone, 25)):
        assert await world.recorder.record(row_of(figure))

    assert world.parked_ids() == [gone.id]
    assert spent(world) == world.area_spent_micros("dev") == 25


@pytest.mark.parametrize(("charged", "comes_to"), [("0.000025", 25), ("0.0000004", 0), ("0.000010", 10)])
async def test_the_truth_is_booked_once_and_nothing_comes_after_it(
    world: LedgerWorld, charged: str, comes_to: int
) -> None:
    project_budget(world, 100)
    usage = usage_of(world, 10, is_estimated=True, awaits_truth=True)
    assert await world.recorder.record(row_of(usage))

    first, second = [await world.corrections.book_truth(usage.id, Decimal(charged)) for _ in range(2)]

    verdict = Verdict.EQUAL if comes_to == 10 else Verdict.CORRECTED
    assert first == Booked(verdict, comes_to - 10)
    assert second == Booked(Verdict.EQUAL, 0)
    if verdict is Verdict.CORRECTED:
        assert await world.recorder.record(row_of(costing(usage, 70, is_estimated=False)))
    assert spent(world) == comes_to


async def test_a_row_that_is_not_there_has_no_truth(world: LedgerWorld) -> None:
    assert await world.corrections.book_truth(uuid4(), Decimal("0.1")) is None
