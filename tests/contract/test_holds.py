"""What every adapter of the port Holds does, and what the recorder and the corrections do with what it placed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.ledger import BudgetEntry, HoldEntry
from application.ports.budgets import BudgetOwner
from application.ports.holds import HoldRequest
from application.ports.turn_context import ContextUnavailable
from domain.budget import Budget, BudgetPolicy, BudgetScope
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome, TurnStart
from domain.usage import TokenUsage
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, start_of, usage_of


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


def add_budget(
    world: LedgerWorld, limit_micros: int, scope: BudgetScope = BudgetScope.PROJECT, spent_micros: int = 0
) -> UUID:
    """A strict budget's id."""
    owner_id = world.project_id if scope is BudgetScope.PROJECT else world.session_id
    entry = BudgetEntry(scope, owner_id, limit_micros, spent_micros=spent_micros, is_strict=True)
    world.add_budget(entry)
    return entry.id


def of_project(world: LedgerWorld) -> BudgetEntry:
    return world.budget(BudgetScope.PROJECT, world.project_id)


def start(world: LedgerWorld) -> TurnStart:
    return start_of(workspace_id=world.workspace_id, project_id=world.project_id, session_id=world.session_id)


def request(start: TurnStart, *budget_ids: UUID, chat: int, router: int = 0) -> HoldRequest:
    return HoldRequest(start=start, budget_ids=budget_ids, chat_micros=chat, router_micros=router)


def chat_row(world: LedgerWorld, of: TurnStart, cost_micros: int, *, awaits_truth: bool) -> TokenUsage:
    return usage_of(
        world,
        cost_micros,
        id=of.turn_id,
        turn_id=of.turn_id,
        awaits_truth=awaits_truth,
        is_estimated=awaits_truth,
    )


def router_row(world: LedgerWorld, of: TurnStart, cost_micros: int) -> TokenUsage:
    return usage_of(world, cost_micros, id=of.router_usage_id, turn_id=of.turn_id)


def end(of: TurnStart, router: RouterOutcome | None = None) -> TurnEnd:
    return TurnEnd(start=of, outcome=TurnOutcome.ANSWERED, ended_at=of.due_at, router=router)


async def settle(world: LedgerWorld, of: TurnStart, usage: TokenUsage | None, ended: TurnEnd | None) -> None:
    assert await world.recorder.record(Settlement(turn_id=of.turn_id, usage=usage, end=ended))


async def test_no_hold_is_granted_beyond_the_limit(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 100, spent_micros=10)
    turns = [start(world) for _ in range(3)]

    first = await world.holds.place(request(turns[0], budget_id, chat=40, router=10))
    second = await world.holds.place(request(turns[1], budget_id, chat=41))
    third = await world.holds.place(request(turns[2], budget_id, chat=40))

    assert (first, third) == (None, None)
    assert second == Budget(
        id=budget_id,
        scope=BudgetScope.PROJECT,
        limit_micros=100,
        spent_micros=10,
        is_strict=True,
        held_micros=50,
    )
    assert second is not None
    assert second.left_micros == 40
    assert of_project(world).held_micros == 90
    assert of_project(world).spent_micros == 10
    assert world.hold(turns[0].turn_id, budget_id) == HoldEntry(50, 40, 10)
    assert world.hold(turns[1].turn_id, budget_id) is None


async def test_several_budgets_hold_or_none_does(world: LedgerWorld) -> None:
    wide = add_budget(world, 1_000)
    narrow = add_budget(world, 100, BudgetScope.SESSION)

    refused = await world.holds.place(request(start(world), wide, narrow, chat=101))
    held = await world.holds.place(request(start(world), narrow, wide, chat=60))
    again = await world.holds.place(request(start(world), wide, narrow, chat=60))

    assert refused is not None
    assert (refused.id, refused.scope, refused.left_micros) == (narrow, BudgetScope.SESSION, 100)
    assert held is None
    assert again is not None
    assert (again.id, again.left_micros) == (narrow, 40)
    assert of_project(world).held_micros == 60
    assert world.budget(BudgetScope.SESSION, world.session_id).held_micros == 60


async def test_of_several_without_room_the_first_by_id_is_the_answer(world: LedgerWorld) -> None:
    ids = [add_budget(world, 10), add_budget(world, 10, BudgetScope.SESSION)]

    for order in (ids, ids[::-1]):
        refused = await world.holds.place(request(start(world), *order, chat=11))
        assert refused is not None
        assert refused.id == min(ids)


async def test_a_second_request_of_one_turn_changes_nothing(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 100)
    turn = start(world)

    for _ in range(2):
        assert await world.holds.place(request(turn, budget_id, chat=60, router=1)) is None

    assert of_project(world).held_micros == 61


@pytest.mark.parametrize(
    ("limit_micros", "policy", "is_strict"),
    [(100, BudgetPolicy.BLOCK, False), (100, BudgetPolicy.ALLOW, True), (0, BudgetPolicy.BLOCK, True)],
)
async def test_a_budget_that_is_strict_no_longer_is_passed_over_and_so_is_one_that_is_gone(
    world: LedgerWorld, limit_micros: int, policy: BudgetPolicy, is_strict: bool
) -> None:
    other = BudgetEntry(BudgetScope.SESSION, world.session_id, limit_micros, policy, is_strict=is_strict)
    world.add_budget(other)
    strict = add_budget(world, 1_000)

    assert await world.holds.place(request(start(world), uuid4(), other.id, strict, chat=101)) is None
    assert await world.holds.place(request(start(world), uuid4(), other.id, chat=10**6)) is None

    assert of_project(world).held_micros == 101
    assert world.budget(BudgetScope.SESSION, world.session_id).held_micros == 0


@pytest.mark.parametrize(
    ("limit", "spent", "chat", "is_granted"),
    [
        (100, 0, 100, True),
        (100, 0, 101, False),
        (100, 100, 0, True),
        (100, 101, 0, False),
        (2**63 - 1, 2**63 - 2, 1, True),
        (2**63 - 1, 2**63 - 1, 2**63 - 1, False),
        (2**63 - 1, 0, 2**70, False),
    ],
)
async def test_the_limit_is_kept_to_the_last_micro(
    world: LedgerWorld, limit: int, spent: int, chat: int, is_granted: bool
) -> None:
    budget_id = add_budget(world, limit, spent_micros=spent)

    refused = await world.holds.place(request(start(world), budget_id, chat=chat))

    assert (refused is None) is is_granted
    assert of_project(world).held_micros == (chat if is_granted else 0)


async def test_of_many_at_once_as_many_as_fit_are_granted(world: LedgerWorld) -> None:
    project, session = add_budget(world, 1_000), add_budget(world, 950, BudgetScope.SESSION)
    ids = (project, session)

    answers = await asyncio.gather(
        *(
            world.holds.place(request(start(world), *ids[:: 1 if at % 2 else -1], chat=99, router=1))
            for at in range(60)
        )
    )

    refused = [answer for answer in answers if answer is not None]
    assert len(refused) == 60 - 9
    assert {answer.id for answer in refused} == {session}
    assert of_project(world).held_micros == 900


async def test_what_is_certain_releases_the_whole_of_the_chats_part_and_the_end_the_routers(
    world: LedgerWorld,
) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500, router=20))

    await settle(world, turn, chat_row(world, turn, 120, awaits_truth=False), None)
    before_the_end = of_project(world)
    held, spent = before_the_end.held_micros, before_the_end.spent_micros
    await settle(world, turn, None, end(turn))

    assert (held, spent) == (20, 120)
    assert of_project(world).held_micros == 0
    assert of_project(world).spent_micros == 120
    assert world.hold(turn.turn_id, budget_id) == HoldEntry(520, 0, 0, 120, has_ended=True)


async def test_the_routers_row_takes_out_the_routers_part(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500, router=20))

    await settle(world, turn, router_row(world, turn, 3), None)

    assert world.hold(turn.turn_id, budget_id) == HoldEntry(520, 500, 0, 3)
    assert (of_project(world).held_micros, of_project(world).spent_micros) == (500, 3)


async def test_our_own_estimate_frees_nothing_and_the_truth_does(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500))

    await settle(world, turn, chat_row(world, turn, 120, awaits_truth=True), end(turn))
    unsettled = world.hold(turn.turn_id, budget_id)
    refused = await world.holds.place(request(start(world), budget_id, chat=501))
    booked = await world.corrections.book_truth(turn.turn_id, Decimal("0.000300"))

    assert unsettled == HoldEntry(500, 380, 0, 120, has_ended=True)
    assert refused is not None
    assert (refused.spent_micros, refused.held_micros) == (120, 380)
    assert booked is not None
    assert (of_project(world).held_micros, of_project(world).spent_micros) == (0, 300)
    assert world.hold(turn.turn_id, budget_id) == HoldEntry(500, 0, 0, 300, has_ended=True)


@pytest.mark.parametrize(("router", "left"), [(None, 0), (RouterOutcome.FREE, 0), (RouterOutcome.UNSEEN, 20)])
async def test_a_turn_without_a_call_releases_all_but_what_the_router_may_have_taken(
    world: LedgerWorld, router: RouterOutcome | None, left: int
) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500, router=20))

    for _ in range(2):
        await settle(world, turn, None, end(turn, router))

    assert of_project(world).held_micros == left
    assert world.hold(turn.turn_id, budget_id) == HoldEntry(520, 0, left, has_ended=True)


async def test_what_nobody_will_ever_know_is_freed_by_name(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500))
    await settle(world, turn, chat_row(world, turn, 120, awaits_truth=True), end(turn))

    await world.corrections.write_off(turn.turn_id, turn.turn_id, "the provider does not know it")

    assert (of_project(world).held_micros, of_project(world).spent_micros) == (0, 120)


async def test_a_cost_above_its_hold_is_spent_shown_as_an_excess_and_refuses_until_it_fits_again(
    world: LedgerWorld,
) -> None:
    budget_id = add_budget(world, 1_000)
    owner = BudgetOwner(world.project_id)
    turns = [start(world) for _ in range(2)]
    for turn in turns:
        await world.holds.place(request(turn, budget_id, chat=100))

    await settle(world, turns[0], chat_row(world, turns[0], 950, awaits_truth=False), end(turns[0]))
    await settle(world, turns[1], chat_row(world, turns[1], 60, awaits_truth=True), end(turns[1]))
    refused = await world.holds.place(request(start(world), budget_id, chat=1))
    shown = await world.budgets.find(owner)
    await world.corrections.book_truth(turns[1].turn_id, Decimal("0.000140"))
    then = await world.budgets.find(owner)
    await world.budgets.set(owner, limit_micros=2_000, policy=None)

    assert refused is not None
    assert refused.left_micros == 0
    assert shown is not None
    assert (shown.spent_micros, shown.held_micros) == (1_010, 40)
    assert (shown.excess_turns, shown.excess_micros) == (1, 850)
    assert then is not None
    assert (then.spent_micros, then.held_micros) == (1_090, 0)
    assert (then.excess_turns, then.excess_micros) == (2, 890)
    assert await world.holds.place(request(start(world), budget_id, chat=1)) is None


async def test_a_budget_that_stops_being_strict_keeps_what_is_held_until_it_is_settled(
    world: LedgerWorld,
) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await world.holds.place(request(turn, budget_id, chat=500))

    relaxed = await world.budgets.set(
        BudgetOwner(world.project_id), limit_micros=100, policy=None, is_strict=False
    )
    await settle(world, turn, chat_row(world, turn, 5, awaits_truth=False), end(turn))

    assert relaxed.held_micros == 500
    assert (of_project(world).held_micros, of_project(world).spent_micros) == (0, 5)


async def test_a_turn_that_was_ended_by_somebody_else_gets_no_hold(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 1_000)
    turn = start(world)
    await settle(world, turn, None, end(turn))

    with pytest.raises(ContextUnavailable, match="ended by somebody else"):
        await world.holds.place(request(turn, budget_id, chat=500))

    assert of_project(world).held_micros == 0


async def test_turns_of_others_are_left_alone(world: LedgerWorld) -> None:
    budget_id = add_budget(world, 1_000)
    turn, other = start(world), start(world)
    for each in (turn, other):
        await world.holds.place(request(each, budget_id, chat=100))
    foreign = replace(chat_row(world, other, 7, awaits_truth=False), id=uuid4(), turn_id=uuid4())

    await settle(world, start(world), foreign, None)

    assert (of_project(world).held_micros, of_project(world).spent_micros) == (200, 7)
