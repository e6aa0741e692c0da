"""What a turn asks of the database for the router, by PostgreSQL's own log of statements."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import take_turn
from tests.support.live import LiveApi, environment, live_api
from tests.support.routed_turns import MODEL, after, routed
from tests.support.statement_log import StatementLog, statement_log

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
COLUMN = "tool_router_enabled"

BEFORE_THE_SWITCH: Mapping[str, Mapping[str, Any]] = {
    "one tool": {"tools": routed()["tools"][:1]},
    "no tools": {"tools": None},
    "no agent": {"agentId": None},
    "an empty agent": {"agentId": ""},
    "anamnese": {"agentId": "anamnese"},
    "context-manager": {"agentId": "context-manager"},
    "the whole catalogue is wanted": {"catalogoCompleto": True},
}


@pytest.fixture
async def log(database_url: str) -> AsyncIterator[StatementLog]:
    async with statement_log(database_url) as running:
        yield running


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator.start() as running:
        yield running


@pytest.fixture
async def api(log: StatementLog, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    bases = {"OPENROUTER_API_BASE": simulator.base_url, "OPENAI_BASE_URL": f"{simulator.base_url}/v1"}
    async with live_api(log.url, environment(tmp_path, **bases)) as running:
        yield running


async def statements_of(
    log: StatementLog, api: LiveApi, world: World, stream: bool, **over: Any
) -> list[str]:
    """What the log gains by this turn."""
    before = log.of_turns()
    got = await take_turn(api, world, stream=stream, **routed(**over))
    assert (got.status, got.answer["error"]) == (200, None)
    gained = log.of_turns()
    for text in before:
        gained.remove(text)
    assert gained, "PostgreSQL logged nothing"
    return gained


@pytest.mark.parametrize("over", BEFORE_THE_SWITCH.values(), ids=BEFORE_THE_SWITCH)
async def test_a_condition_that_comes_before_the_switch_adds_no_statement(
    log: StatementLog, api: LiveApi, database_url: str, over: Mapping[str, Any]
) -> None:
    world = create_world(database_url, model_name=MODEL)
    for stream in (False, True):
        plain = await statements_of(log, api, world, stream, messages=after(None), agentId=None, tools=None)

        gained = await statements_of(log, api, world, stream, **over)

        assert gained == plain
        assert_one_read_one_settle(plain)
    assert not [text for text in log.statements() if COLUMN in text]


@ROUTES
async def test_another_provider_adds_no_statement(
    log: StatementLog, api: LiveApi, database_url: str, stream: bool
) -> None:
    world = create_world(database_url, model_name=MODEL, provider="openai")

    assert_one_read_one_settle(await statements_of(log, api, world, stream))
    assert not [text for text in log.statements() if COLUMN in text]


@ROUTES
async def test_a_missing_key_and_a_spent_budget_are_one_read_and_no_more(
    log: StatementLog, api: LiveApi, database_url: str, stream: bool
) -> None:
    keyless = create_world(database_url, model_name=MODEL, api_key=None)
    spent = create_world(database_url, model_name=MODEL, project_limit_micros=1)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE budgets SET spent_micros = 1 WHERE project_id = %s", (spent.project_id,))

    for world, code in ((keyless, "no_credential"), (spent, "budget_exhausted")):
        got = await take_turn(api, world, stream=stream, **routed())
        assert got.answer["errorCode"] == code
        assert "toolRouting" not in got.answer

    statements = log.of_turns()
    assert len(statements) == 2, statements
    assert all(is_context_read(text) for text in statements)


@ROUTES
async def test_the_switch_is_one_statement_more_and_off_it_is_the_only_one(
    log: StatementLog, api: LiveApi, simulator: Simulator, database_url: str, stream: bool
) -> None:
    world = create_world(database_url, model_name=MODEL)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE workspaces SET tool_router_enabled = false WHERE id = %s", (world.workspace_id,)
        )

    gained = await statements_of(log, api, world, stream)

    (switch,) = [text for text in gained if COLUMN in text]
    assert "workspaces.tool_router_enabled" in switch
    gained.remove(switch)
    assert_one_read_one_settle(gained)
    assert [request["path"] for request in simulator.requests()] == ["/api/v1/chat/completions"]


@ROUTES
async def test_a_router_that_is_asked_adds_the_switch_and_its_row(
    log: StatementLog, api: LiveApi, simulator: Simulator, database_url: str, stream: bool
) -> None:
    # Slower than a settle, so that the two rows are two statements and not one batch.
    simulator.script({"path": "chat", "reply": {"text": "oi", "first_token_ms": 300}})
    world = create_world(database_url, model_name=MODEL)

    gained = await statements_of(log, api, world, stream)

    assert len([text for text in gained if COLUMN in text]) == 1
    assert len([text for text in gained if is_context_read(text)]) == 1
    assert len([text for text in gained if is_settle(text)]) == 2
    assert len(gained) == 4, gained


def is_context_read(text: str) -> bool:
    return text.startswith("SELECT") and "JOIN sessions ON" in text


def is_settle(text: str) -> bool:
    return text.lstrip().startswith("WITH") and "INSERT INTO token_usage" in text


def assert_one_read_one_settle(statements: list[str]) -> None:
    assert len(statements) == 2, statements
    assert is_context_read(statements[0])
    assert is_settle(statements[1])
