"""What every adapter of the port TurnContexts does."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from domain.binding import BindingScope
from domain.budget import BudgetPolicy, BudgetScope
from domain.provider import Provider, RoutingPreference
from domain.usage import Prices
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, row_of, sealed_key, usage_of

LARGEST_BIGINT = 2**63 - 1


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


async def test_a_bare_project_brings_its_workspace_and_nothing_else(world: LedgerWorld) -> None:
    context = await world.contexts.read(world.session_id, world.project_id, "dev-api")

    assert context is not None
    assert context.workspace_id == world.workspace_id
    assert not context.bindings.by_scope
    assert context.bindings.creative is None
    assert not context.budgets
    assert not context.sealed_keys


async def test_an_unknown_session_is_none(world: LedgerWorld) -> None:
    assert await world.contexts.read(uuid4(), world.project_id, None) is None


async def test_an_unknown_project_is_none(world: LedgerWorld) -> None:
    assert await world.contexts.read(world.session_id, uuid4(), None) is None


async def test_a_session_of_another_project_is_none(world: LedgerWorld) -> None:
    other_session = world.add_session(world.add_project())

    assert await world.contexts.read(other_session, world.project_id, None) is None


async def test_a_closed_session_still_takes_turns(world: LedgerWorld) -> None:
    world.close_session(world.session_id)

    assert await world.contexts.read(world.session_id, world.project_id, None) is not None


async def test_every_scope_brings_its_binding_with_the_whole_model(world: LedgerWorld) -> None:
    bound = {
        BindingScope.SESSION: world.bound(BindingScope.SESSION, routing_preference=RoutingPreference.LATENCY),
        BindingScope.AGENT: world.bound(BindingScope.AGENT, provider=Provider.NVIDIA_NIM),
        BindingScope.AREA: world.bound(BindingScope.AREA, supports_tool_calling=False),
        BindingScope.PROJECT: world.bound(BindingScope.PROJECT, is_available=False),
        BindingScope.WORKSPACE: world.bound(
            BindingScope.WORKSPACE, prices=Prices(LARGEST_BIGINT, LARGEST_BIGINT - 1)
        ),
    }
    world.bind(bound[BindingScope.SESSION], str(world.session_id))
    world.bind(bound[BindingScope.AGENT], f"{world.project_id}:dev-api")
    world.bind(bound[BindingScope.AREA], f"{world.project_id}:dev")
    world.bind(bound[BindingScope.PROJECT], str(world.project_id))
    world.bind(bound[BindingScope.WORKSPACE], str(world.workspace_id))

    context = await world.contexts.read(world.session_id, world.project_id, "dev-api")

    assert context is not None
    assert {each.scope: each for each in context.bindings.by_scope} == bound
    assert context.bindings.creative is None


async def test_bindings_of_others_stay_away(world: LedgerWorld) -> None:
    other_project = world.add_project()
    world.bind(world.bound(BindingScope.AGENT), f"{world.project_id}:dev-web")
    world.bind(world.bound(BindingScope.AGENT), f"{other_project}:dev-api")
    world.bind(world.bound(BindingScope.AREA), f"{world.project_id}:qa")
    world.bind(world.bound(BindingScope.PROJECT), str(other_project))
    world.bind(world.bound(BindingScope.SESSION), str(world.add_session(world.project_id)))

    context = await world.contexts.read(world.session_id, world.project_id, "dev-api")

    assert context is not None
    assert not context.bindings.by_scope


async def test_a_turn_without_an_agent_takes_no_binding_of_an_agent_or_area(world: LedgerWorld) -> None:
    world.bind(world.bound(BindingScope.AGENT), f"{world.project_id}:None")
    world.bind(world.bound(BindingScope.AREA), f"{world.project_id}:None")
    world.bind(world.bound(BindingScope.AGENT), f"{world.project_id}:")

    context = await world.contexts.read(world.session_id, world.project_id, None)

    assert context is not None
    assert not context.bindings.by_scope


@pytest.mark.parametrize("agent", [None, "dev-api", "escriba"])
async def test_the_model_of_criativo_comes_beside_the_scopes(world: LedgerWorld, agent: str | None) -> None:
    creative = world.bound(BindingScope.AGENT)
    world.bind(creative, f"{world.project_id}:criativo")

    context = await world.contexts.read(world.session_id, world.project_id, agent)

    assert context is not None
    assert context.bindings.creative == creative
    assert not context.bindings.by_scope


async def test_criativo_does_not_inherit_from_itself(world: LedgerWorld) -> None:
    creative = world.bound(BindingScope.AGENT)
    world.bind(creative, f"{world.project_id}:criativo")

    context = await world.contexts.read(world.session_id, world.project_id, "criativo")

    assert context is not None
    assert context.bindings.creative is None
    assert list(context.bindings.by_scope) == [creative]


async def test_budgets_come_in_order_project_session_area(world: LedgerWorld) -> None:
    world.add_area("dev", AreaEntry(limit_micros=LARGEST_BIGINT, spent_micros=7))
    world.add_budget(
        BudgetEntry(BudgetScope.SESSION, world.session_id, 500, BudgetPolicy.ALLOW, spent_micros=600)
    )
    world.add_budget(
        BudgetEntry(BudgetScope.PROJECT, world.project_id, LARGEST_BIGINT, spent_micros=LARGEST_BIGINT - 1)
    )

    context = await world.contexts.read(world.session_id, world.project_id, "dev-lead")

    assert context is not None
    assert [
        (budget.scope, budget.limit_micros, budget.spent_micros, budget.policy) for budget in context.budgets
    ] == [
        (BudgetScope.PROJECT, LARGEST_BIGINT, LARGEST_BIGINT - 1, BudgetPolicy.BLOCK),
        (BudgetScope.SESSION, 500, 600, BudgetPolicy.ALLOW),
        (BudgetScope.AREA, LARGEST_BIGINT, 7, BudgetPolicy.BLOCK),
    ]


@pytest.mark.parametrize(
    ("agent", "ceiling_micros", "brings_one"),
    [
        ("qa", 0, True),
        ("qa-automacao", 5, True),
        ("qa", None, False),
        ("dev-api", 5, False),
        (None, 5, False),
    ],
)
async def test_only_the_agents_own_area_with_a_ceiling_brings_a_budget(
    world: LedgerWorld, agent: str | None, ceiling_micros: int | None, brings_one: bool
) -> None:
    world.add_area("qa", AreaEntry(limit_micros=ceiling_micros, spent_micros=3))

    context = await world.contexts.read(world.session_id, world.project_id, agent)

    assert context is not None
    assert [budget.spent_micros for budget in context.budgets] == ([3] if brings_one else [])


async def test_the_keys_are_the_workspace_owners_and_not_the_session_creators(world: LedgerWorld) -> None:
    world.add_key(world.owner_id, Provider.OPENROUTER, sealed_key("owner"))
    world.add_key(world.owner_id, Provider.NVIDIA_NIM, sealed_key("owner-nvidia"))
    world.add_key(world.session_creator_id, Provider.OPENROUTER, sealed_key("creator"))
    world.add_key(world.session_creator_id, Provider.OPENAI, sealed_key("creator"))

    context = await world.contexts.read(world.session_id, world.project_id, None)

    assert context is not None
    assert context.sealed_keys == {
        Provider.OPENROUTER: sealed_key("owner"),
        Provider.NVIDIA_NIM: sealed_key("owner-nvidia"),
    }


async def test_what_a_committed_record_spent_is_in_the_next_read(world: LedgerWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 100))

    assert await world.recorder.record(row_of(usage_of(world, 60)))
    context = await world.contexts.read(world.session_id, world.project_id, None)

    assert context is not None
    assert [budget.spent_micros for budget in context.budgets] == [60]


async def test_many_reads_at_once_bring_each_its_own(world: LedgerWorld) -> None:
    sessions = [world.add_session(world.project_id) for _ in range(20)]
    for limit_micros, session_id in enumerate(sessions, start=1):
        world.add_budget(BudgetEntry(BudgetScope.SESSION, session_id, limit_micros))

    contexts = await asyncio.gather(
        *(world.contexts.read(session_id, world.project_id, "dev-api") for session_id in sessions * 5)
    )

    limits = [context.budgets[0].limit_micros if context else None for context in contexts]
    assert limits == list(range(1, 21)) * 5


async def test_a_strict_budget_comes_with_what_is_held(world: LedgerWorld) -> None:
    strict = BudgetEntry(BudgetScope.PROJECT, world.project_id, 100, is_strict=True, held_micros=30)
    lax = BudgetEntry(BudgetScope.SESSION, world.session_id, 50)
    world.add_budget(strict)
    world.add_budget(lax)
    world.add_area("qa", AreaEntry(limit_micros=5))

    context = await world.contexts.read(world.session_id, world.project_id, "qa")

    assert context is not None
    assert [(budget.is_strict, budget.held_micros, budget.holds) for budget in context.budgets] == [
        (True, 30, True),
        (False, 0, False),
        (False, 0, False),
    ]
    assert [budget.id for budget in context.budgets[:2]] == [strict.id, lax.id]


@pytest.mark.parametrize("max_output_tokens", [None, 1, 2**31 - 1])
@pytest.mark.parametrize(
    ("prices", "is_priced"),
    [(Prices(0, 0), False), (Prices(0, 0), True), (Prices(1, 0), True), (Prices(0, 1), True)],
)
async def test_a_model_comes_with_its_maximum_and_whether_it_has_a_price(
    world: LedgerWorld, prices: Prices, is_priced: bool, max_output_tokens: int | None
) -> None:
    bound = world.bound(
        BindingScope.WORKSPACE, prices=prices, is_priced=is_priced, max_output_tokens=max_output_tokens
    )
    world.bind(bound, str(world.workspace_id))

    context = await world.contexts.read(world.session_id, world.project_id, None)

    assert context is not None
    assert context.bindings.resolve(with_tools=False) == bound
