"""What an operator sees and does: metrics, logs, tokens that change, a database that is held up or dies."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import API_KEY, MASTER_KEY, World
from tests.support.database_proxy import free_port
from tests.support.engine import TOOLS, http_client, ledger, post, request_body, take_turn
from tests.support.live import HEADERS, SERVICE_TOKEN, LiveApi, environment, live_api
from tests.support.served import served_api
from tests.support.statement_log import statement_log

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
SECRET_TEXT = "segredo-que-so-a-mensagem-tem"
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-")
SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


def samples(text: str) -> dict[str, float]:
    """Values by name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = [SAMPLE.fullmatch(line) for line in lines]
    return {
        f"{one['name']}{{{one['labels'] or ''}}}": float(one["value"]) for one in found if one is not None
    }


async def test_metrics_are_served_on_an_address_of_their_own_and_name_nobody(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    metrics_port = free_port()
    async with (
        served_api(
            tmp_path,
            DATABASE_URL=database_url,
            OPENROUTER_API_BASE=simulator.base_url,
            BRABO_METRICS_ADDR=f"127.0.0.1:{metrics_port}",
        ) as api,
        http_client() as client,
    ):
        url = f"http://127.0.0.1:{metrics_port}/metrics"
        before = samples((await client.get(url)).text)
        simulator.script(
            {"reply": {"text": SECRET_TEXT}}, {"fault": "malformed-json"}, {"fault": "server-error"}
        )
        for _ in range(3):
            await post(api.turn_url(world.session_id), said(world, SECRET_TEXT))
        text = (await client.get(url)).text
        after = samples(text)
        elsewhere = await client.get(f"{api.url}/metrics")

    moved = {name: value - before.get(name, 0) for name, value in after.items()}
    assert elsewhere.status_code == 404
    assert moved['brabo_turns_total{error_code=""}'] == 2
    assert moved['brabo_turns_total{error_code="upstream"}'] == 1
    assert moved["brabo_turn_seconds_count{}"] == 3
    assert moved['brabo_provider_frames_dropped_total{provider="openrouter"}'] == 1
    assert moved["brabo_usage_unrecorded_total{}"] == 0
    assert UUID.search(text) is None
    for secret in (SECRET_TEXT, API_KEY, SERVICE_TOKEN, world.model_name, world.user_email):
        assert secret not in text


async def test_logs_are_json_with_ids_and_without_secrets(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    traced = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    wrong_token = "um-token-errado-que-ninguem-deve-ver"
    content = said(world, SECRET_TEXT)
    reply = {
        "text": SECRET_TEXT,
        "tool_calls": [{"name": "read_file", "arguments": {"path": SECRET_TEXT}}],
    }
    faults = ("moderation", "malformed-json", "reset", "truncated", "provider-refusal", "error-frame", "html")
    async with (
        served_api(tmp_path, DATABASE_URL=database_url, OPENROUTER_API_BASE=simulator.base_url) as api,
        http_client(timeout=30) as client,
    ):
        url = api.turn_url(world.session_id)
        answered = []
        for stream in (False, True):
            simulator.script({"reply": reply}, *({"reply": reply, "fault": fault} for fault in faults))
            for _ in range(len(faults) + 1):
                turn_url = api.turn_url(world.session_id, stream=stream)
                answered.append(await post(turn_url, content, headers=traced))
        untraced = await post(url, content)
        bad_body = await client.post(url, content=content.replace(b'"role"', b'"rule"'), headers=HEADERS)
        unknown = await client.post(
            api.turn_url(world.project_id), content=content, headers={**HEADERS, **traced}
        )
        refused = await client.post(url, content=content, headers={"X-Brabo-Service-Token": wrong_token})
        with psycopg.connect(database_url) as lock:
            lock.execute("SELECT 1 FROM budgets FOR UPDATE")
            unrecorded = await post(url, content, headers=traced)
        api.process.terminate()
        api.process.wait(15)

    text = api.log.read_text(encoding="utf-8")
    lines = api.lines()
    by_event: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_event.setdefault(line["event"], []).append(line)
    print(f"\n{len(lines)} lines: { {event: len(found) for event, found in by_event.items()} }")
    assert [answer.status_code for answer in (bad_body, unknown, refused)] == [400, 404, 403]
    assert answered[0].answer["message"]["content"] == SECRET_TEXT
    for secret in (SECRET_TEXT, API_KEY, SERVICE_TOKEN, MASTER_KEY, wrong_token, "jwt-secret-of-the-tests"):
        assert secret not in text

    ended = {line["turn_id"]: line for line in by_event["turn_ended"]}
    for got in (*answered, unrecorded):
        assert ended[got.answer["turnId"]]["trace_id"] == trace_id
    assert ended[untraced.answer["turnId"]]["trace_id"] is None
    assert [line["status"] for line in by_event["turn_refused"]] == [400, 404]
    assert by_event["turn_refused"][1]["trace_id"] == trace_id
    (kept,) = by_event["usage_kept_for_later"]
    assert (kept["id"], kept["trace_id"]) == (unrecorded.answer["turnId"], trace_id)
    (intruder,) = by_event["service_token_refused"]
    assert (intruder["peer"], intruder["path"]) == ("127.0.0.1", httpx.URL(url).path)
    of_turns = [
        line
        for line in lines
        if line["event"] not in ("draining", "library_warning", "usage_recorded_late", "starts_unwritten")
    ]
    assert [line for line in of_turns if not re.fullmatch("[0-9a-f]{16}", line.get("request_id", ""))] == []
    assert len({line["request_id"] for line in by_event["turn_ended"]}) == len(ended)


def said(world: World, text: str) -> bytes:
    """A body that holds the text wherever text can be."""
    call = {"id": "c1", "name": "read_file", "arguments": {"path": text}}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "toolCalls": [call]},
        {"role": "tool", "toolCallId": "c1", "name": "read_file", "content": text},
    ]
    tools = [{**TOOLS[0], "description": text}]
    return json.dumps(request_body(world, messages=messages, tools=tools)).encode()


async def test_a_service_token_can_be_changed_at_either_end_first(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    environ = environment(
        tmp_path, OPENROUTER_API_BASE=simulator.base_url, BRABO_SERVICE_TOKEN_PREVIOUS="the-token-before"
    )
    async with live_api(database_url, environ) as api, http_client(timeout=30) as client:
        statuses = []
        for token in (SERVICE_TOKEN, "the-token-before", "the-token-before-that", ""):
            answer = await client.post(
                api.turn_url(world.session_id),
                json=request_body(world),
                headers={"X-Brabo-Service-Token": token},
            )
            statuses.append(answer.status_code)

    assert statuses == [200, 200, 403, 403]


async def test_a_context_that_cannot_be_read_is_a_503_within_seconds_and_sends_nothing(
    api: LiveApi, simulator: Simulator, world: World, database_url: str
) -> None:
    """More turns than the pool has connections: those that read time out, and the others get none."""
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE workspaces IN ACCESS EXCLUSIVE MODE")
        started_s = time.monotonic()
        got = await asyncio.gather(*(take_turn(api, world, stream=at % 2 == 1) for at in range(20)))
        took_s = time.monotonic() - started_s
    afterwards = await take_turn(api, world)

    print(f"\n20 turns without a context were answered within {took_s:.2f} s")
    assert {one.status for one in got} == {503}
    assert {one.headers["content-type"] for one in got} == {"application/problem+json"}
    assert all(int(one.headers["retry-after"]) > 0 for one in got)
    assert 1.5 < took_s < 4
    assert (afterwards.status, afterwards.answer["error"]) == (200, None)
    assert len(simulator.requests()) == len(ledger(database_url, world)) == 1


@ROUTES
async def test_connections_that_the_database_has_closed_cost_no_turn(
    api: LiveApi, world: World, database_url: str, stream: bool
) -> None:
    await take_turn(api, world)
    with psycopg.connect(database_url, autocommit=True) as connection:
        closed = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert closed is not None
    assert closed[0] > 0

    got = await take_turn(api, world, stream=stream)

    assert (got.status, got.answer["error"]) == (200, None)
    assert len(ledger(database_url, world)) == 2


async def test_a_turn_is_one_read_and_one_settle(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url)
    async with statement_log(database_url) as log, live_api(log.url, environ) as api:
        for stream in (False, True) * 5:
            got = await take_turn(api, world, stream=stream, agentId="dev-api", tools=TOOLS)
            assert got.answer["error"] is None

    statements, housekeeping = log.of_turns(), log.of_pools()
    reads = [text for text in statements if text.startswith("SELECT") and "JOIN sessions ON" in text]
    settles = [
        text for text in statements if text.lstrip().startswith("WITH") and "INSERT INTO token_usage" in text
    ]
    print(
        f"\n{len(statements)} statements: {len(reads)} reads, {len(settles)} settles; of the pools "
        f"themselves: {len(housekeeping)}, one a connection of {log.accepted}"
    )
    assert statements, "PostgreSQL logged nothing"
    assert (len(reads), len(settles)) == (10, 10)
    assert len(housekeeping) == log.accepted
    assert len(statements) == 20, statements
    assert len(ledger(database_url, world)) == 10
