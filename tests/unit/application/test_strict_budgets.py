"""What is held for a turn, and why a strict budget refuses it."""

from typing import Any
from uuid import uuid4

import pytest

from application.strict_budgets import PlannedHold, StrictBudgets, StrictTurn
from domain.binding import BindingScope, BoundModel
from domain.budget import Budget, BudgetPolicy, BudgetScope
from domain.failure import FailureCode, StrictObstacle, TurnFailure
from domain.provider import Provider
from domain.usage import Prices
from tests.support.ledger_worlds import start_of
from tests.support.steps import ACall, Said, tools

BUDGETS = StrictBudgets(output_tokens=100, bounded={Provider.OPENROUTER})
PROMPT_TOKENS = 16 + 4


def bound(**over: Any) -> BoundModel:
    fields: dict[str, Any] = {
        "scope": BindingScope.WORKSPACE,
        "model_id": uuid4(),
        "provider": Provider.OPENROUTER,
        "name": "maker/model",
        "prices": Prices(1_000_000, 2_000_000),
        "is_available": True,
        "supports_tool_calling": True,
    }
    return BoundModel(**(fields | over))


def budget(**over: Any) -> Budget:
    fields: dict[str, Any] = {
        "id": uuid4(),
        "scope": BudgetScope.PROJECT,
        "limit_micros": 10_000,
        "spent_micros": 0,
        "is_strict": True,
    }
    return Budget(**(fields | over))


def turn(*budgets: Budget, **over: Any) -> StrictTurn:
    fields: dict[str, Any] = {
        "bound": bound(),
        "budgets": budgets,
        "messages": [Said("user", "text")],
        "tools": [],
        "body_bytes": 100,
        "may_be_routed": False,
    }
    return StrictTurn(**(fields | over))


async def planned(of: StrictTurn) -> PlannedHold:
    plan = await BUDGETS.plan(of)
    assert isinstance(plan, PlannedHold)
    return plan


async def refused(of: StrictTurn) -> TurnFailure:
    plan = await BUDGETS.plan(of)
    assert isinstance(plan, TurnFailure)
    assert plan.code is FailureCode.BUDGET_EXHAUSTED
    return plan


async def test_without_a_strict_budget_nothing_is_held() -> None:
    lax = [
        budget(is_strict=False),
        budget(policy=BudgetPolicy.ALLOW),
        budget(limit_micros=0),
        budget(scope=BudgetScope.AREA, is_strict=False, spent_micros=10_000),
    ]

    assert await BUDGETS.plan(turn(*lax, bound=bound(provider=Provider.OLLAMA, is_priced=False))) is None
    assert await BUDGETS.plan(turn()) is None


async def test_the_worst_case_is_prompt_and_answer_at_their_prices() -> None:
    strict, session = budget(), budget(scope=BudgetScope.SESSION)

    plan = await planned(turn(budget(is_strict=False), strict, session))

    assert (plan.worst.chat_micros, plan.worst.router_micros) == (PROMPT_TOKENS + 200, 0)
    assert plan.worst.output_tokens == 100
    assert plan.prices == Prices(1_000_000, 2_000_000)
    start = start_of()
    request = plan.request(start)
    assert (request.start, request.micros) == (start, PROMPT_TOKENS + 200)
    assert list(request.budget_ids) == [strict.id, session.id]


async def test_asking_the_router_is_held_too() -> None:
    plan = await planned(turn(budget(), may_be_routed=True))

    assert plan.request(start_of()).router_micros == 2_688


@pytest.mark.parametrize(("own_maximum", "cap"), [(None, 100), (1_000, 100), (100, 100), (99, 99), (16, 16)])
async def test_the_cap_is_less_where_the_model_makes_less(own_maximum: int | None, cap: int) -> None:
    plan = await planned(turn(budget(), bound=bound(max_output_tokens=own_maximum)))

    assert plan.worst.output_tokens == cap
    assert plan.worst.chat_micros == PROMPT_TOKENS + 2 * cap


async def test_a_model_that_is_free_of_charge_has_a_worst_case_of_nothing() -> None:
    plan = await planned(turn(budget(spent_micros=10_000), bound=bound(prices=Prices(0, 0))))

    assert plan.worst.micros == 0


@pytest.mark.parametrize(
    ("over", "obstacle"),
    [
        ({"provider": Provider.OPENAI}, StrictObstacle.UNBOUNDED_PROVIDER),
        ({"is_priced": False, "prices": Prices(0, 0)}, StrictObstacle.UNPRICED_MODEL),
        ({"max_output_tokens": 15}, StrictObstacle.SHORT_MODEL),
    ],
)
async def test_what_has_no_worst_case_does_not_run_on_a_strict_budget(
    over: dict[str, Any], obstacle: StrictObstacle
) -> None:
    session = budget(scope=BudgetScope.SESSION, spent_micros=4_000)

    failure = await refused(turn(budget(is_strict=False), session, bound=bound(**over)))

    assert failure.obstacle is obstacle
    assert failure.provider is bound(**over).provider
    assert (failure.budget, failure.left_micros) == (BudgetScope.SESSION, 6_000)


async def test_what_does_not_fit_is_refused_with_figures() -> None:
    needed = PROMPT_TOKENS + 200
    fits = budget(spent_micros=5_000, held_micros=5_000 - needed)
    short = budget(scope=BudgetScope.SESSION, spent_micros=5_000, held_micros=5_001 - needed)

    failure = await refused(turn(fits, short))

    assert (failure.needed_micros, failure.left_micros) == (needed, needed - 1)
    assert failure.budget is BudgetScope.SESSION
    assert (await planned(turn(fits))).refused_by(short) == failure


@pytest.mark.parametrize("body_bytes", [1_000, 10**7])
async def test_a_long_request_is_measured_as_a_short_one_is(body_bytes: int) -> None:
    messages = [Said("assistant", "é" * 1_000, tool_calls=[ACall("f", None, {"a": [1, "é"]})])]

    plan = await planned(
        turn(
            budget(limit_micros=10**6),
            messages=messages,
            tools=tools("ler"),
            body_bytes=body_bytes,
            bound=bound(prices=Prices(1_000_000, 0)),
        )
    )

    assert plan.worst.chat_micros == 16 + 2_000 + 128 + len("f") + len('{"a":[1,"é"]}') + 1 + 128 + 3 + 2
