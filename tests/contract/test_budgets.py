"""What every adapter of the port Budgets does."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest

from adapters.in_memory.ledger import BudgetEntry
from application.ports.budgets import BudgetOwner, CannotBeStrict, OwnedBudget, UnknownOwner
from domain.budget import LIMIT_MICROS_MAX, BudgetPolicy, BudgetScope
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, row_of, usage_of

SCOPES = pytest.mark.parametrize("scope", [BudgetScope.PROJECT, BudgetScope.SESSION])


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


def owner_of(world: LedgerWorld, scope: BudgetScope) -> BudgetOwner:
    if scope is BudgetScope.PROJECT:
        return BudgetOwner(world.project_id)
    return BudgetOwner(world.project_id, world.session_id)


def add(world: LedgerWorld, scope: BudgetScope, limit_micros: int, spent: int, last: int) -> None:
    owner_id = world.project_id if scope is BudgetScope.PROJECT else world.session_id
    world.add_budget(
        BudgetEntry(scope, owner_id, limit_micros, spent_micros=spent, last_threshold_notified=last)
    )


def announced(world: LedgerWorld) -> list[tuple[int, int]]:
    """Thresholds and the limits they were of."""
    payloads = [each["payload"] for each in world.announcements()]
    return [(payload["threshold"], payload["limitMicros"]) for payload in payloads]


@SCOPES
async def test_where_there_is_none_one_is_made(world: LedgerWorld, scope: BudgetScope) -> None:
    owner = owner_of(world, scope)
    before = await world.budgets.find(owner)
    made = await world.budgets.set(owner, limit_micros=100, policy=None)
    await world.recorder.record(row_of(usage_of(world, 75)))

    assert before is None
    assert made == OwnedBudget(100, 0, BudgetPolicy.BLOCK, 0)
    assert await world.budgets.find(owner) == OwnedBudget(100, 75, BudgetPolicy.BLOCK, 70)
    other = BudgetScope.SESSION if scope is BudgetScope.PROJECT else BudgetScope.PROJECT
    assert await world.budgets.find(owner_of(world, other)) is None


@SCOPES
async def test_setting_it_again_keeps_what_was_spent(world: LedgerWorld, scope: BudgetScope) -> None:
    owner = owner_of(world, scope)
    add(world, scope, 100, 30, 0)

    set_to = [
        await world.budgets.set(owner, limit_micros=LIMIT_MICROS_MAX, policy=BudgetPolicy.ALLOW),
        await world.budgets.set(owner, limit_micros=50, policy=None),
        await world.budgets.set(owner, limit_micros=0, policy=BudgetPolicy.BLOCK),
    ]

    assert set_to == [
        OwnedBudget(LIMIT_MICROS_MAX, 30, BudgetPolicy.ALLOW, 0),
        OwnedBudget(50, 30, BudgetPolicy.ALLOW, 0),
        OwnedBudget(0, 30, BudgetPolicy.BLOCK, 0),
    ]
    assert await world.budgets.find(owner) == set_to[-1]


async def test_budgets_of_others_stay_as_they_are(world: LedgerWorld) -> None:
    other_session = world.add_session(world.project_id)
    other = BudgetEntry(BudgetScope.SESSION, other_session, 100, last_threshold_notified=90)
    world.add_budget(other)

    for scope in (BudgetScope.PROJECT, BudgetScope.SESSION):
        await world.budgets.set(owner_of(world, scope), limit_micros=1_000, policy=BudgetPolicy.ALLOW)

    assert world.budget(BudgetScope.SESSION, other_session) == other


@SCOPES
@pytest.mark.parametrize(
    ("limit", "spent", "last", "new_limit", "last_then"),
    [
        pytest.param(100, 95, 90, 1_000, 0, id="raised beyond all"),
        pytest.param(100, 95, 90, 136, 0, id="raised to just below 70 %"),
        pytest.param(100, 95, 90, 135, 70, id="raised to just over 70 %"),
        pytest.param(100, 100, 100, 101, 90, id="raised by a little"),
        pytest.param(100, 95, 90, 101, 90, id="raised, and all still crossed"),
        pytest.param(100, 95, 90, 0, 0, id="no limit any more"),
        pytest.param(100, 200, 100, 150, 100, id="raised below what is spent"),
        pytest.param(100, 95, 0, 101, 0, id="raised, and what is crossed was never announced"),
        pytest.param(100, 95, 90, 100, 90, id="the same"),
        pytest.param(100, 10, 90, 100, 90, id="the same, and spent less than announced"),
        pytest.param(100, 60, 0, 50, 0, id="lowered below what is spent"),
        pytest.param(0, 60, 0, 50, 0, id="a limit where there was none"),
        pytest.param(0, 60, 70, 1_000, 70, id="a wide limit where there was none"),
        pytest.param(10**15, 7 * 10**14, 70, 10**15 - 1, 70, id="lowered, large"),
        pytest.param(10**14, 9 * 10**17, 100, 10**15, 100, id="raised, larger than 64 bits times 100"),
    ],
)
async def test_a_raised_limit_arms_what_is_no_longer_crossed_and_announces_nothing(
    world: LedgerWorld, scope: BudgetScope, limit: int, spent: int, last: int, new_limit: int, last_then: int
) -> None:
    add(world, scope, limit, spent, last)

    now = await world.budgets.set(owner_of(world, scope), limit_micros=new_limit, policy=None)

    assert now == OwnedBudget(new_limit, spent, BudgetPolicy.BLOCK, last_then)
    assert announced(world) == []


@SCOPES
async def test_what_is_armed_again_is_announced_again_once(world: LedgerWorld, scope: BudgetScope) -> None:
    owner = owner_of(world, scope)
    add(world, scope, 100, 0, 0)

    await world.recorder.record(row_of(usage_of(world, 95)))
    await world.budgets.set(owner, limit_micros=200, policy=None)
    await world.recorder.record(row_of(usage_of(world, 50)))  # 145 of 200
    await world.budgets.set(owner, limit_micros=200, policy=None)
    await world.recorder.record(row_of(usage_of(world, 1)))
    await world.budgets.set(owner, limit_micros=146, policy=None)
    before_a_spend = announced(world)
    await world.recorder.record(row_of(usage_of(world, 1)))  # 147 of 146

    assert sorted(before_a_spend) == [(70, 100), (70, 200), (90, 100)]
    assert sorted(announced(world)) == [(70, 100), (70, 200), (90, 100), (90, 146), (100, 146)]


async def test_who_is_unknown_has_no_budget_and_gets_none(world: LedgerWorld) -> None:
    other_project = world.add_project()
    gone = world.add_session(world.project_id)
    await world.budgets.set(BudgetOwner(world.project_id, gone), limit_micros=5, policy=None)
    world.delete_session(gone)
    unknown = [
        BudgetOwner(uuid4()),
        BudgetOwner(world.project_id, uuid4()),
        BudgetOwner(world.project_id, world.project_id),
        BudgetOwner(other_project, world.session_id),
        BudgetOwner(uuid4(), world.session_id),
        BudgetOwner(world.project_id, gone),
    ]
    for owner in unknown:
        with pytest.raises(UnknownOwner):
            await world.budgets.find(owner)
        with pytest.raises(UnknownOwner):
            await world.budgets.set(owner, limit_micros=1, policy=None)

    assert await world.budgets.find(BudgetOwner(world.project_id, world.session_id)) is None
    assert await world.budgets.find(BudgetOwner(other_project)) is None


async def test_made_by_many_at_once_it_is_one(world: LedgerWorld) -> None:
    owner = owner_of(world, BudgetScope.SESSION)
    limits = range(1, 21)

    set_to = await asyncio.gather(
        *(world.budgets.set(owner, limit_micros=limit, policy=None) for limit in limits)
    )

    assert [budget.limit_micros for budget in set_to] == list(limits)
    assert await world.budgets.find(owner) in set_to


@SCOPES
async def test_a_budget_is_strict_from_then_on_until_it_is_said_to_be_no_longer(
    world: LedgerWorld, scope: BudgetScope
) -> None:
    owner = owner_of(world, scope)

    seen = [
        await world.budgets.set(owner, limit_micros=100, policy=None, is_strict=True),
        await world.budgets.set(owner, limit_micros=200, policy=BudgetPolicy.BLOCK),
        await world.budgets.set(owner, limit_micros=0, policy=BudgetPolicy.ALLOW, is_strict=False),
        await world.budgets.set(owner, limit_micros=100, policy=BudgetPolicy.BLOCK, is_strict=True),
        await world.budgets.set(owner, limit_micros=50, policy=None, is_strict=True),
    ]

    assert [budget.is_strict for budget in seen] == [True, True, False, True, True]
    assert await world.budgets.find(owner) == seen[-1]
    assert {(budget.held_micros, budget.excess_turns, budget.excess_micros) for budget in seen} == {(0, 0, 0)}


@SCOPES
@pytest.mark.parametrize(
    ("before", "change"),
    [
        (None, {"limit_micros": 0, "policy": None, "is_strict": True}),
        (None, {"limit_micros": 5, "policy": BudgetPolicy.ALLOW, "is_strict": True}),
        ((BudgetPolicy.ALLOW, False), {"limit_micros": 5, "policy": None, "is_strict": True}),
        ((BudgetPolicy.BLOCK, True), {"limit_micros": 5, "policy": BudgetPolicy.ALLOW}),
        ((BudgetPolicy.BLOCK, True), {"limit_micros": 0, "policy": None}),
        ((BudgetPolicy.BLOCK, True), {"limit_micros": 0, "policy": None, "is_strict": True}),
    ],
)
async def test_with_nothing_to_hold_no_budget_is_strict_and_nothing_changes(
    world: LedgerWorld,
    scope: BudgetScope,
    before: tuple[BudgetPolicy, bool] | None,
    change: dict[str, Any],
) -> None:
    owner = owner_of(world, scope)
    if before is not None:
        policy, is_strict = before
        await world.budgets.set(owner, limit_micros=100, policy=policy, is_strict=is_strict)
    found = await world.budgets.find(owner)

    with pytest.raises(CannotBeStrict):
        await world.budgets.set(owner, **change)

    assert await world.budgets.find(owner) == found


async def test_who_is_unknown_is_unknown_whatever_is_to_be_strict(world: LedgerWorld) -> None:
    with pytest.raises(UnknownOwner):
        await world.budgets.set(BudgetOwner(uuid4()), limit_micros=0, policy=None, is_strict=True)


@SCOPES
async def test_each_arming_is_counted(world: LedgerWorld, scope: BudgetScope) -> None:
    owner = owner_of(world, scope)
    owner_id = owner.session_id or owner.project_id
    add(world, scope, 100, 95, 90)
    seen = []
    for limit_micros in (100, 50, 101, 1_000, 2_000, 0, 100):
        await world.budgets.set(owner, limit_micros=limit_micros, policy=None)
        budget = world.budget(scope, owner_id)
        seen.append((budget.armings, budget.last_threshold_notified))

    # 101 still has its 90 % crossed; 1,000 has none.
    assert seen == [(0, 90), (0, 90), (0, 90), (1, 0), (1, 0), (1, 0), (1, 0)]


async def test_what_is_announced_says_of_which_arming_it_is(world: LedgerWorld) -> None:
    owner = owner_of(world, BudgetScope.PROJECT)
    add(world, BudgetScope.PROJECT, 100, 0, 0)
    for limit_micros, cost_micros in ((100, 75), (200, 70), (400, 300)):
        await world.budgets.set(owner, limit_micros=limit_micros, policy=None)
        await world.recorder.record(row_of(usage_of(world, cost_micros)))

    armings = [
        (each["payload"]["limitMicros"], each["metadata"].get("arming")) for each in world.announcements()
    ]
    assert sorted(set(armings), key=str) == [(100, None), (200, 1), (400, 2)]
