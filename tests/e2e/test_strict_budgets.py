"""Strict budgets through a live server: no more is sent than the limit is worth, whatever becomes of it."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import Answered, http_client, parse_frames, request_body, select, take_turn
from tests.support.live import HEADERS, LiveApi, environment, live_api
from tests.support.owners import bearer

CAP = 500
FITTING = 40
TURNS = 500
NEVER_MS = 10**7
FIGURES = re.compile(r"de (\d+\.\d+) USD\. Restam (\d+\.\d+) USD\.")
LONG = {"text": ["palavra "] * (2 * CAP)}
"""An answer that the cap cuts."""


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    """The provider's records stay unknown, so that nothing is settled by reconciliation meanwhile."""
    async with Simulator.start(generation_delay_ms=NEVER_MS) as running:
        yield running


@pytest.fixture
async def api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    environ = environment(
        tmp_path, OPENROUTER_API_BASE=simulator.base_url, BRABO_STRICT_OUTPUT_TOKENS=str(CAP)
    )
    async with live_api(database_url, environ) as running:
        yield running


@pytest.fixture
async def client(api: LiveApi) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=TURNS, max_keepalive_connections=TURNS)
    async with http_client(base_url=api.url, timeout=120, limits=limits) as client:
        yield client


async def set_budget(api: LiveApi, client: httpx.AsyncClient, world: World, **body: Any) -> dict[str, Any]:
    path = f"/projects/{world.project_id}/budget"
    answer = await client.put(path, headers=bearer(api, world.user_id), json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def read_budget(api: LiveApi, client: httpx.AsyncClient, world: World) -> dict[str, Any]:
    path = f"/projects/{world.project_id}/budget"
    read: dict[str, Any] = (await client.get(path, headers=bearer(api, world.user_id))).json()
    return read


def figures(answer: dict[str, Any]) -> tuple[int, int]:
    """What was needed and what is left, in micro-USD, as a refusal says it."""
    assert answer["errorCode"] == "budget_exhausted"
    assert answer["errorOrigin"] == "politica"
    found = FIGURES.search(answer["error"])
    assert found is not None, answer["error"]
    needed, left = (int(Decimal(usd) * 10**6) for usd in found.groups())
    return needed, left


async def worst_case_of(api: LiveApi, client: httpx.AsyncClient, world: World, **over: Any) -> int:
    """What a turn needs at most, by what a budget that nothing fits in says."""
    await set_budget(api, client, world, limitMicros=1, strict=True)
    needed, left = figures((await take_turn(api, world, **over)).answer)
    assert left == 1
    return needed


async def budget_for(api: LiveApi, client: httpx.AsyncClient, world: World, turns: int) -> int:
    """Set the budget to exactly so many worst cases; the worst case."""
    worst = await worst_case_of(api, client, world)
    await set_budget(api, client, world, limitMicros=turns * worst)
    return worst


async def post_turn(api: LiveApi, client: httpx.AsyncClient, world: World) -> dict[str, Any]:
    answer = await client.post(api.turn_url(world.session_id), json=request_body(world), headers=HEADERS)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def settled(api: LiveApi, client: httpx.AsyncClient, world: World, held_micros: int) -> dict[str, Any]:
    """The budget once so much is held."""
    async with asyncio.timeout(20):
        while (budget := await read_budget(api, client, world))["heldMicros"] != held_micros:
            await asyncio.sleep(0.05)
    return budget


def billed_micros(simulator: Simulator) -> Decimal:
    return Decimal(simulator.bill()["total"]) * 10**6


async def test_of_500_turns_at_once_as_many_reach_the_upstream_as_have_room(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World
) -> None:
    worst = await budget_for(api, client, world, FITTING)
    simulator.script({"times": FITTING, "reply": {"text": "oi", "first_token_ms": 12_000}})
    turns = [asyncio.create_task(post_turn(api, client, world)) for _ in range(TURNS)]

    async with asyncio.timeout(60):
        while sum(turn.done() for turn in turns) < TURNS - FITTING:
            await asyncio.sleep(0.02)
    at_the_same_time = simulator.bill()["in_flight"]
    refused = [turn.result() for turn in turns if turn.done()]
    held = await read_budget(api, client, world)
    answered = [turn for turn in await asyncio.gather(*turns) if turn["error"] is None]

    assert len(refused) == TURNS - FITTING
    assert at_the_same_time == simulator.bill()["peak_in_flight"] == simulator.bill()["count"] == FITTING
    assert {figures(turn) for turn in refused} == {(worst, 0)}
    assert {turn["usage"]["costMicros"] for turn in refused} == {0}
    assert (held["heldMicros"], held["spentMicros"]) == (FITTING * worst, 0)
    assert len(answered) == FITTING

    freed = await settled(api, client, world, 0)
    spent = sum(turn["usage"]["costMicros"] for turn in answered)
    assert (freed["spentMicros"], freed["excess"]) == (spent, {"turns": 0, "micros": 0})
    fitting_now = (FITTING * worst - spent) // worst
    simulator.script({"times": None, "reply": {"text": "oi", "first_token_ms": 5_000}})
    after = await asyncio.gather(*(post_turn(api, client, world) for _ in range(100)))
    assert Counter(turn["error"] is None for turn in after) == {True: fitting_now, False: 100 - fitting_now}
    assert {figures(turn)[1] for turn in after if turn["error"]} == {
        FITTING * worst - spent - fitting_now * worst
    }


async def test_turns_that_a_provider_cuts_and_bills_in_full_free_nothing(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    worst = await budget_for(api, client, world, FITTING)
    simulator.script({"times": None, "fault": "charged-cut;after=2", "reply": LONG})

    answers = await asyncio.gather(*(post_turn(api, client, world) for _ in range(TURNS)))
    later = [await post_turn(api, client, world) for _ in range(5)]

    codes = Counter(answer["errorCode"] for answer in (*answers, *later))
    assert codes == {"connection": FITTING, "budget_exhausted": TURNS + 5 - FITTING}
    bill = simulator.bill()
    assert bill["count"] == FITTING
    assert {entry["completion_tokens"] for entry in bill["entries"]} == {CAP}
    assert billed_micros(simulator) <= FITTING * worst
    budget = await read_budget(api, client, world)
    assert budget["spentMicros"] + budget["heldMicros"] == FITTING * worst
    assert 0 < budget["spentMicros"] < billed_micros(simulator)
    states = select(database_url, "SELECT state, count(*) FROM budget_holds GROUP BY state")
    assert states == [{"state": "unsettled", "count": FITTING}]


async def test_engines_that_leave_mid_stream_free_nothing_where_the_provider_cannot_stop(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World
) -> None:
    fitting = 10
    worst = await budget_for(api, client, world, fitting)
    simulator.script({"times": None, "fault": "cancel-unsupported", "reply": {**LONG, "between_ms": 20}})
    left = refused = 0
    for _ in range(3):
        for outcome in await asyncio.gather(*(leave_mid_stream(api, client, world) for _ in range(20))):
            left += outcome is None
            refused += outcome is not None and figures(outcome)[1] < worst

    assert (left, refused) == (fitting, 60 - fitting)
    await settled_to_the_last(api, client, world, fitting * worst)
    assert simulator.bill()["count"] == fitting
    async with asyncio.timeout(60):
        while simulator.bill()["in_flight"]:
            await asyncio.sleep(0.1)
    assert billed_micros(simulator) <= fitting * worst


async def leave_mid_stream(api: LiveApi, client: httpx.AsyncClient, world: World) -> dict[str, Any] | None:
    """Read to the first delta and go; the final frame of a turn that was refused."""
    url, raw = api.turn_url(world.session_id, stream=True), b""
    async with client.stream("POST", url, json=request_body(world), headers=HEADERS) as response:
        async for piece in response.aiter_raw():
            raw += piece
            if b'"type":"delta"' in raw:
                return None
    (final,) = parse_frames(raw)
    return final


async def settled_to_the_last(
    api: LiveApi, client: httpx.AsyncClient, world: World, limit_micros: int
) -> None:
    """All of the limit is either spent or held."""
    async with asyncio.timeout(20):
        while True:
            budget = await read_budget(api, client, world)
            if budget["spentMicros"]:
                assert budget["spentMicros"] + budget["heldMicros"] == limit_micros
                return
            await asyncio.sleep(0.05)


async def test_the_cap_and_the_prices_go_to_the_provider_and_what_the_cap_cuts_is_truncated(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World
) -> None:
    await set_budget(api, client, world, limitUsd=1, strict=True)
    simulator.script({"reply": LONG})

    got = await take_turn(api, world)
    (request,) = simulator.requests()
    budget = await settled(api, client, world, 0)

    assert request["body"]["max_tokens"] == CAP
    assert request["body"]["provider"] == {"max_price": {"prompt": 0.4, "completion": 1.6}}
    assert got.answer["truncated"] is True
    assert got.answer["usage"]["outputTokens"] == CAP
    assert budget["spentMicros"] == got.answer["usage"]["costMicros"]


async def test_without_a_strict_budget_neither_goes_along(
    api: LiveApi, simulator: Simulator, world: World
) -> None:
    await take_turn(api, world)

    (request,) = simulator.requests()
    assert not {"max_tokens", "provider"} & request["body"].keys()


async def test_an_upstream_that_became_dearer_does_not_answer_and_costs_nothing(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE models SET output_price_per_million_micros = 1599999")
    await set_budget(api, client, world, limitUsd=1, strict=True)

    got = await take_turn(api, world)
    budget = await settled(api, client, world, 0)

    assert got.answer["errorCode"] == "model_not_found"
    assert (budget["spentMicros"], simulator.bill()["total"]) == (0, "0")


async def test_both_budgets_hold_and_the_narrower_refuses(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    worst = await budget_for(api, client, world, 5)
    path = f"/projects/{world.project_id}/sessions/{world.session_id}/budget"
    body = {"limitMicros": 3 * worst + 1, "strict": True}
    await client.put(path, json=body, headers=bearer(api, world.user_id))
    simulator.script({"times": None, "fault": "charged-cut;after=2", "reply": LONG})

    answers = await asyncio.gather(*(post_turn(api, client, world) for _ in range(20)))

    refused = [answer for answer in answers if answer["errorCode"] == "budget_exhausted"]
    assert len(refused) == 17
    assert {(figures(answer), "da sessão" in answer["error"]) for answer in refused} == {((worst, 1), True)}
    budgets = select(database_url, "SELECT spent_micros + held_micros AS taken FROM budgets")
    assert budgets == [{"taken": 3 * worst}] * 2


async def test_what_the_router_may_take_is_held_and_settled_with_its_row(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    tools = [
        {"name": name, "description": name, "parameters": {"type": "object"}} for name in ("ler", "editar")
    ]
    routed = await worst_case_of(api, client, world, agentId="dev-api", tools=tools)
    unrouted = await worst_case_of(api, client, world, agentId="dev-api", tools=tools, catalogoCompleto=True)
    await set_budget(api, client, world, limitMicros=routed)
    simulator.script({"path": "decisions", "fault": "silence-headers"})

    got = await take_turn(api, world, agentId="dev-api", tools=tools)

    assert routed - unrouted == 2_688
    assert got.answer["toolRouting"]["motivoDaQueda"] == "timeout"
    (hold,) = select(database_url, "SELECT state, chat_micros, router_micros FROM budget_holds")
    assert hold == {"state": "unsettled", "chat_micros": 0, "router_micros": 2_688}
    assert (await settled(api, client, world, 2_688))["strict"] is True


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE models SET input_price_per_million_micros = 0, output_price_per_million_micros = 0",
         "não tem preço"),
        ("UPDATE models SET max_output_tokens = 15", "não chega a responder 16 tokens"),
    ],
)  # fmt: skip
async def test_a_model_without_a_worst_case_does_not_run_on_a_strict_budget(
    api: LiveApi,
    client: httpx.AsyncClient,
    simulator: Simulator,
    world: World,
    database_url: str,
    change: str,
    said: str,
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(change.encode())
    lax = await take_turn(api, world)
    await set_budget(api, client, world, limitUsd=1, strict=True)

    assert_refused(await take_turn(api, world), said)
    assert lax.answer["error"] is None
    assert simulator.bill()["count"] == 1


async def test_a_models_own_maximum_is_the_cap_where_it_is_less(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE models SET max_output_tokens = 16")
    await set_budget(api, client, world, limitUsd=1, strict=True)
    simulator.script({"reply": LONG})

    got = await take_turn(api, world)

    assert got.answer["usage"]["outputTokens"] == 16
    assert simulator.requests()[0]["body"]["max_tokens"] == 16


async def test_a_provider_that_keeps_to_neither_does_not_run_on_a_strict_budget(
    database_url: str, simulator: Simulator, tmp_path: Path
) -> None:
    world = create_world(database_url, provider="openai", model_name="openai/gpt-4.1-mini")
    environ = environment(tmp_path, OPENAI_BASE_URL=f"{simulator.base_url}/v1")
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE budgets SET strict = true")
    async with live_api(database_url, environ) as api:
        assert_refused(await take_turn(api, world), "openai não aceita um teto")
    assert simulator.bill()["count"] == 0


def assert_refused(got: Answered, said: str) -> None:
    assert got.answer["errorCode"] == "budget_exhausted"
    assert said in got.answer["error"]
    assert "orçamento do projeto é estrito" in got.answer["error"]
    assert got.answer["modelName"]
    assert "Restam" in got.answer["error"]


async def test_a_budget_that_somebody_else_has_locked_is_a_503_and_nothing_is_sent_or_held(
    api: LiveApi, client: httpx.AsyncClient, simulator: Simulator, world: World, database_url: str
) -> None:
    await set_budget(api, client, world, limitUsd=1, strict=True)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT id FROM budgets FOR UPDATE")
        refused = await client.post(api.turn_url(world.session_id), json=request_body(world), headers=HEADERS)
    got = await take_turn(api, world)
    await settled(api, client, world, 0)

    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert got.answer["error"] is None
    assert simulator.bill()["count"] == 1
