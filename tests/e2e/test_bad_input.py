"""What is not a turn gets its status, costs nothing and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import TOOLS, ledger, post, request_body, take_turn
from tests.support.live import LiveApi, environment, live_api

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def bodies(world: World) -> dict[str, tuple[bytes, int, str]]:
    def body(**over: Any) -> bytes:
        return json.dumps(request_body(world, **over)).encode()

    def raw(messages: str = "[]", rest: str = "") -> bytes:
        return f'{{"projectId":"{world.project_id}","messages":{messages}{rest}}}'.encode()

    return {
        "no body": (b"", 400, "JSON"),
        "wrong JSON": (b'{"projectId"', 400, "JSON"),
        "a byte order mark": (b"\xef\xbb\xbf" + body(), 400, "JSON"),
        "NaN": (raw(rest=',"n":NaN'), 400, "JSON"),
        "not UTF-8": (raw('[{"role":"user","content":"').replace(b"}", b"") + b'\xff"}]}', 400, "UTF-8"),
        "a list": (b"[]", 400, "object"),
        "wrong type": (body(messages="oi"), 400, "$.messages"),
        "unknown role": (body(messages=[{"role": "robot", "content": "oi"}]), 400, "role"),
        "null content of a user": (body(messages=[{"role": "user", "content": None}]), 400, "content"),
        "a call without a name": (
            body(
                messages=[{"role": "assistant", "content": "", "toolCalls": [{"id": "1", "arguments": {}}]}]
            ),
            400,
            "name",
        ),
        "arguments that are a string": (
            body(
                messages=[
                    {"role": "assistant", "content": "", "toolCalls": [{"name": "a", "arguments": "{}"}]}
                ]
            ),
            400,
            "arguments",
        ),
        "a lone surrogate": (raw('[{"role":"user","content":"\\ud83d"}]'), 400, "surrogate"),
        "a lone surrogate in parameters": (
            raw(rest=',"tools":[{"name":"a","parameters":{"d":"\\udc00"}}]'),
            400,
            "surrogate",
        ),
        "deep nesting": (raw(rest=f',"x":{deep(20_000)}'), 400, "deeper"),
        "deep nesting in parameters": (
            raw(rest=f',"tools":[{{"name":"a","parameters":{{"x":{deep(20_000)}}}}}]'),
            400,
            "deeper",
        ),
        "901 levels in parameters": (
            raw(rest=f',"tools":[{{"name":"a","parameters":{{"x":{deep(897)}}}}}]'),
            400,
            "deeper",
        ),
        "an agent id of 10 KB": (body(agentId="a" * 10_240), 400, "agentId"),
        "NUL in the agent id": (body(agentId="dev\0"), 400, "agentId"),
        "NUL in the project id": (body(projectId="a\0"), 404, "project"),
        "a project id that is no uuid": (body(projectId="projeto"), 404, "project"),
        "an unknown project": (body(projectId=str(uuid4())), 404, "project"),
    }


@ROUTES
async def test_each_bad_body_gets_its_status_and_spends_nothing(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    url = api.turn_url(world.session_id, stream=stream)
    for name, (content, status, says) in bodies(world).items():
        got = await post(url, content)
        assert got.status == status, name
        assert got.headers["content-type"] == "application/problem+json", name
        assert says in got.answer["detail"], (name, got.answer)
        assert b"data:" not in got.raw
    assert simulator.requests() == []
    assert ledger(database_url, world) == []


@ROUTES
@pytest.mark.parametrize("session", ["sessao", "a%00b", str(uuid4()), "{" + str(uuid4()) + "}", "%2e%2e"])
async def test_a_session_that_is_not_there_is_404(
    api: LiveApi, world: World, stream: bool, session: str
) -> None:
    got = await post(api.turn_url(session, stream=stream), json.dumps(request_body(world)).encode())

    assert got.status == 404


@ROUTES
async def test_a_session_of_another_project_is_404(
    api: LiveApi, world: World, database_url: str, stream: bool
) -> None:
    other = create_world(database_url)

    got = await post(api.turn_url(world.session_id, stream=stream), json.dumps(request_body(other)).encode())

    assert got.status == 404


@ROUTES
async def test_what_looks_odd_and_is_legal_works(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    parameters: Any = {"type": "object"}
    for _ in range(60):
        parameters = {"type": "object", "properties": {"x": parameters}}
    odd: list[dict[str, Any]] = [
        {"agentId": None, "tools": None, "catalogoCompleto": None},
        {"agentId": "", "unknown": {"a": [1]}},
        {"tools": [*TOOLS, *TOOLS]},
        {"tools": [{"name": 'a\n"b', "description": "", "parameters": parameters}]},
        {"messages": [{"role": "assistant", "content": None}, {"role": "user", "content": "a\0b\u2028"}]},
        {"messages": [{"role": "tool", "content": "r", "toolCallId": None, "name": None}]},
        {"messages": [{"role": "user", "content": str(at)} for at in range(10_000)]},
    ]
    for over in odd:
        got = await take_turn(api, world, stream=stream, **over)
        assert (got.status, got.answer["error"]) == (200, None), over
    assert len(ledger(database_url, world)) == len(odd)


@ROUTES
async def test_a_message_of_20_mib_works(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    prose = "O rato roeu a roupa do rei de Roma. " * (20 * 2**20 // 36)

    got = await take_turn(api, world, stream=stream, messages=[{"role": "user", "content": prose}])

    assert got.answer["error"] is None
    assert simulator.requests()[0]["body_bytes"] > 20_000_000
    assert len(ledger(database_url, world)) == 1


@ROUTES
async def test_a_body_over_the_limit_is_413_and_read_to_its_end(
    api: LiveApi, world: World, stream: bool
) -> None:
    content = json.dumps(
        request_body(world, messages=[{"role": "user", "content": "x" * (40 * 2**20)}])
    ).encode()

    got = await post(api.turn_url(world.session_id, stream=stream), content)

    assert got.status == 413


@ROUTES
async def test_without_a_database_a_turn_is_503_and_nothing_is_sent(
    simulator: Simulator, world: World, tmp_path: Path, stream: bool
) -> None:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url)
    async with live_api("postgresql://nobody:secreta@127.0.0.1:1/none", environ) as api:
        got = await take_turn(api, world, stream=stream)

    assert got.status == 503
    assert int(got.headers["retry-after"]) > 0
    assert "secreta" not in got.raw.decode()
    assert simulator.requests() == []
