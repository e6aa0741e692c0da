"""Whole turns over HTTP: what the engine gets, what the provider got, what the ledger holds."""

import json
from decimal import ROUND_HALF_UP, Decimal
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from entrypoints.http.wire_routing import WireRouting
from entrypoints.simulator import Simulator
from tests.support.brabo_data import API_KEY, World
from tests.support.engine import TOOLS, http_client, ledger, request_body, select, spent_micros, take_turn
from tests.support.live import HEADERS, LiveApi

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


def micros(usd: str) -> int:
    return int((Decimal(usd) * 1_000_000).to_integral_value(ROUND_HALF_UP))


@ROUTES
async def test_a_turn_is_answered_and_every_token_is_in_the_ledger(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    simulator.script(
        {
            "reply": {
                "text": ["Vou ", "ler.", " 😀"],
                "tool_calls": [{"name": "read_file", "arguments": {"path": "a.ts"}}],
            }
        }
    )

    got = await take_turn(api, world, stream=stream, agentId="dev-api", tools=TOOLS)

    (entry,) = simulator.bill()["entries"]
    (row,) = ledger(database_url, world)
    answer = got.answer
    assert got.status == 200
    assert answer["message"]["content"] == "Vou ler. 😀"
    (call,) = answer["message"]["toolCalls"]
    assert (call["name"], call["arguments"]) == ("read_file", {"path": "a.ts"})
    assert set(answer) == {"message", "usage", "error", "modelName", "turnId"}
    assert set(answer["message"]) == {"role", "content", "toolCalls"}
    assert (answer["error"], answer["modelName"]) == (None, world.model_name)
    assert answer["usage"] == {
        "inputTokens": entry["prompt_tokens"],
        "outputTokens": entry["completion_tokens"],
        "costMicros": micros(entry["cost"]),
        "estimated": False,
    }
    if stream:
        assert got.deltas == ["Vou ", "ler.", " 😀"]
    assert row["id"] == UUID(answer["turnId"])
    assert row["generation_id"] == entry["id"]
    assert row["cost_micros"] == micros(entry["cost"]) == spent_micros(database_url, world)
    assert (row["input_tokens"], row["output_tokens"]) == (entry["prompt_tokens"], entry["completion_tokens"])
    assert (row["actor_kind"], row["actor_id"], row["provider"]) == ("agent", "dev-api", "openrouter")
    assert (row["model_id"], row["model_name"]) == (world.model_id, world.model_name)
    assert (row["price_implicit"], row["estimated"], row["binding_origin"]) == (True, False, "workspace")
    assert row["catalog_cost_micros"] is not None
    assert row["cached_input_tokens"] is not None
    assert row["reasoning_tokens"] is not None
    area = select(database_url, "SELECT spent_micros FROM agent_areas WHERE id = %s", world.area_ids["dev"])
    assert area[0]["spent_micros"] == row["cost_micros"]


@ROUTES
async def test_the_provider_is_sent_what_the_contract_says(
    api: LiveApi, simulator: Simulator, world: World, stream: bool
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await take_turn(api, world, stream=stream, tools=TOOLS, headers={"traceparent": trace})

    (request,) = simulator.requests()
    sent = request["body"]
    assert sent["model"] == world.model_name
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert sent["usage"] == {"include": True}
    assert sent["plugins"] == [{"id": "context-compression", "enabled": False}]
    assert request["tools"] == ["read_file"]
    assert request["headers"]["authorization"].endswith(API_KEY[-4:])
    assert request["headers"]["http-referer"] == api.url
    assert request["headers"]["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert request["headers"]["traceparent"] != trace


@ROUTES
async def test_answers_are_never_compressed_or_negotiated(api: LiveApi, world: World, stream: bool) -> None:
    got = await take_turn(
        api, world, stream=stream, headers={"accept-encoding": "gzip", "accept": "text/html"}
    )

    assert "content-encoding" not in got.headers
    assert got.headers["content-type"] == ("text/event-stream" if stream else "application/json")


async def test_the_row_is_committed_before_the_final_frame(
    api: LiveApi, world: World, database_url: str
) -> None:
    url = api.turn_url(world.session_id, stream=True)
    async with (
        http_client() as client,
        client.stream("POST", url, json=request_body(world), headers=HEADERS) as response,
    ):
        seen = b""
        async for piece in response.aiter_raw():
            seen += piece
            if b'"type":"final"' in seen:
                assert len(ledger(database_url, world)) == 1
    assert b'"type":"final"' in seen


@ROUTES
async def test_one_connection_carries_one_turn_after_another(
    api: LiveApi, world: World, stream: bool
) -> None:
    async with http_client() as client:
        ports = set()
        for _ in range(3):
            url = api.turn_url(world.session_id, stream=stream)
            async with client.stream("POST", url, json=request_body(world), headers=HEADERS) as response:
                await response.aread()
                ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
    assert len(ports) == 1


@ROUTES
async def test_both_routes_decide_alike(
    api: LiveApi, simulator: Simulator, world: World, stream: bool
) -> None:
    simulator.script({"fault": "call-cut"})

    got = await take_turn(api, world, stream=stream, tools=TOOLS)

    assert got.answer["truncated"] is True
    assert all(call["arguments"] == {} for call in got.answer["message"]["toolCalls"])
    assert "truncated" not in got.answer["message"]


def break_world(database_url: str, world: World, how: str) -> None:
    statements = {
        "no binding": "DELETE FROM model_bindings",
        "model gone": "UPDATE models SET availability = 'unavailable'",
        "no tool calling": "UPDATE models SET supports_tool_calling = false",
        "project budget": "UPDATE budgets SET spent_micros = limit_micros",
        "area budget": "UPDATE agent_areas SET spent_micros = budget_micros WHERE key = 'dev'",
        "no credential": "DELETE FROM user_credentials",
        "damaged credential": "UPDATE user_credentials SET api_key_auth_tag = 'AAAAAAAAAAAAAAAAAAAAAA=='",
        "no provider": "UPDATE models SET provider = 'anthropic'",
        "revoked key": "SELECT 1",
    }
    with psycopg.connect(database_url) as connection:
        connection.execute(statements[how].encode())


REFUSALS = [
    ("no binding", "no_model", "politica", "modelo vinculado", None),
    ("no tool calling", "no_model", "politica", "modelo vinculado", None),
    ("model gone", "model_gone", "politica", "modelo vinculado", None),
    ("project budget", "budget_exhausted", "politica", "orçamento", "model"),
    ("area budget", "budget_exhausted", "politica", "orçamento", "model"),
    ("no credential", "no_credential", "politica", "credencial", "model"),
    ("damaged credential", "no_credential", "politica", "credencial", "model"),
    ("no provider", "no_provider", "politica", "provider anthropic", "model"),
]


@ROUTES
@pytest.mark.parametrize(("how", "code", "origin", "word", "model"), REFUSALS)
async def test_a_turn_that_may_not_start_is_an_answer_and_sends_nothing(
    api: LiveApi,
    simulator: Simulator,
    world: World,
    database_url: str,
    stream: bool,
    how: str,
    code: str,
    origin: str,
    word: str,
    model: str | None,
) -> None:
    break_world(database_url, world, how)

    got = await take_turn(api, world, stream=stream, agentId="dev-api", tools=TOOLS)

    answer = got.answer
    assert got.status == 200
    assert (answer["errorCode"], answer["errorOrigin"]) == (code, origin)
    assert word in answer["error"]
    assert answer["message"] == {"role": "assistant", "content": "", "toolCalls": []}
    assert answer["usage"] == {"inputTokens": 0, "outputTokens": 0, "costMicros": 0, "estimated": True}
    assert answer["modelName"] == (world.model_name if model else None)
    assert simulator.requests() == []
    assert ledger(database_url, world) == []


FAILURES = [
    ("user-not-found", "auth", "credencial", "(401)"),
    ("credits-exhausted", "insufficient_credit", "(402)", "provider openrouter"),
    ("in-flight-budget", "rate_limit", "provider openrouter", ""),
    ("rate-limit", "rate_limit", "provider openrouter", "(429)"),
    ("moderation", "moderation", "provider openrouter", "(403)"),
    ("guardrail", "forbidden", "provider openrouter", "(403)"),
    ("unknown-model", "model_not_found", "provider openrouter", "(400)"),
    ("context-length", "context_length", "provider openrouter", "(400)"),
    ("server-error", "upstream", "provider openrouter", "(500)"),
    ("overloaded", "upstream", "provider openrouter", "(529)"),
    ("timeout-408", "timeout", "provider openrouter", "(408)"),
    ("html", "upstream", "provider openrouter", ""),
    ("html-200", "bad_answer", "provider openrouter", ""),
    ("error-200", "upstream", "provider openrouter", ""),
    ("error-first", "upstream", "provider openrouter", "(502)"),
    ("reset-headers", "connection", "provider openrouter", ""),
]


@ROUTES
@pytest.mark.parametrize(("fault", "code", "word", "other"), FAILURES)
async def test_a_provider_that_fails_is_an_answer(
    api: LiveApi,
    simulator: Simulator,
    world: World,
    stream: bool,
    fault: str,
    code: str,
    word: str,
    other: str,
) -> None:
    simulator.script({"fault": fault})

    got = await take_turn(api, world, stream=stream)

    assert got.status == 200
    assert got.answer["errorCode"] == code
    assert word in got.answer["error"]
    assert other in got.answer["error"]
    assert got.answer["modelName"] == world.model_name
    if fault == "in-flight-budget":
        assert got.answer["retryAfterMs"] == 1000


@ROUTES
async def test_text_that_came_before_a_failure_stays_and_is_paid_for(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    simulator.script({"reply": {"text": ["um ", "dois ", "três"]}, "fault": "truncated;after=2"})

    got = await take_turn(api, world, stream=stream)

    (row,) = ledger(database_url, world)
    assert got.answer["errorCode"] == "connection"
    assert got.answer["message"]["content"].startswith("um ")
    assert got.answer["message"]["toolCalls"] == []
    assert (row["estimated"], got.answer["usage"]["estimated"]) == (True, True)
    assert row["output_tokens"] > 0
    assert row["input_tokens"] > 0
    assert row["generation_id"] == simulator.bill()["entries"][0]["id"]
    if stream:
        assert "".join(got.deltas) == got.answer["message"]["content"]


async def test_thresholds_carry_the_trace(
    api: LiveApi, simulator: Simulator, world: World, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE budgets SET limit_micros = 100")
    simulator.script({"reply": {"text": "oi", "cost": "0.0001"}})

    await take_turn(
        api, world, headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    )

    events = select(
        database_url, "SELECT event_type, payload, metadata FROM outbox_events ORDER BY payload->'threshold'"
    )
    assert [event["payload"]["threshold"] for event in events] == [70, 90, 100]
    assert {event["event_type"] for event in events} == {"budget.threshold_crossed"}
    assert events[0]["payload"] == {
        "scope": "project",
        "scopeId": str(world.project_id),
        "threshold": 70,
        "spentMicros": 100,
        "limitMicros": 100,
    }
    assert events[0]["metadata"]["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    refused = await take_turn(api, world)
    assert refused.answer["errorCode"] == "budget_exhausted"


async def test_a_user_token_opens_no_engine_route_and_the_log_says_who_came(
    api: LiveApi, world: World, simulator: Simulator, capfd: pytest.CaptureFixture[str]
) -> None:
    url = api.turn_url(world.session_id)
    async with http_client() as client:
        for headers in (
            {},
            {"X-Brabo-Service-Token": "wrong"},
            {"X-Brabo-Service-Token": b"t\xf6ken"},
            {"Authorization": f"Bearer {HEADERS['X-Brabo-Service-Token']}"},
        ):
            sent: Any = headers
            response = await client.post(url, json=request_body(world), headers=sent)
            assert response.status_code == 403
            assert response.headers["content-type"] == "application/problem+json"
            assert response.json()["status"] == 403
    assert simulator.requests() == []


async def test_health_and_description(api: LiveApi) -> None:
    async with http_client(base_url=api.url) as client:
        alive = await client.get("/healthz")
        ready = await client.get("/readyz")
        schema = (await client.get("/schema/openapi.json")).json()
        missing = await client.get("/nowhere")

    assert (alive.status_code, ready.status_code) == (200, 200)
    assert missing.status_code == 404
    assert missing.headers["content-type"] == "application/problem+json"
    for path in ("llm-turn", "llm-turn-stream"):
        operation = schema["paths"][f"/internal/sessions/{{session_id}}/{path}"]["post"]
        assert set(operation["responses"]) == {"200", "400", "403", "404", "413", "431", "503"}
        (media,) = operation["responses"]["200"]["content"].values()
        assert media["examples"]
        assert operation["requestBody"]["content"]["application/json"]["examples"]
        assert {parameter["name"] for parameter in operation["parameters"]} == {"session_id"}
        assert operation["security"] == [{"serviceToken": []}]
    assert schema["components"]["securitySchemes"]["serviceToken"]["name"] == "X-Brabo-Service-Token"
    answer = schema["paths"]["/internal/sessions/{session_id}/llm-turn"]["post"]["responses"]["200"]
    media = answer["content"]["application/json"]
    routing = media["schema"]["properties"]["toolRouting"]
    on_the_wire = {field.encode_name for field in msgspec.structs.fields(WireRouting)}
    assert set(routing["properties"]) == set(routing["required"]) == on_the_wire
    example = media["examples"]["call"]["value"]
    assert example["error"] is None
    assert set(example["toolRouting"]) == on_the_wire
    assert json.dumps(schema)
