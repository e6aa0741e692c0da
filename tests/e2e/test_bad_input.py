"""What is not a turn gets its status, costs nothing and leaves nothing behind."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from entrypoints.http.protocol import MAX_HEAD_BYTES
from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import TOOLS, ledger, post, request_body, take_turn
from tests.support.live import HEADERS, LiveApi, environment, live_api

NOBODYS = "7957ba72-0c3c-431f-9a92-ae290f04612e"
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
@pytest.mark.parametrize("session", ["sessao", "a%00b", NOBODYS, "{" + NOBODYS + "}", "%2e%2e"])
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


def head_of(size_bytes: int) -> bytes:
    """A request for `healthz` with a head of that size."""
    start = b"GET /healthz HTTP/1.1\r\nHost: brabo\r\nX: "
    return start + b"x" * (size_bytes - len(start) - 4) + b"\r\n\r\n"


async def exchanged(api: LiveApi, *parts: bytes, pause_s: float = 0.01) -> bytes:
    """Everything that comes back for these bytes until the api hangs up, or for a second."""
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    received = bytearray()
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)
        async with asyncio.timeout(1):
            while piece := await reader.read(65536):
                received += piece
        received += b"(hung up)"
    except TimeoutError:
        pass
    finally:
        writer.close()
    return bytes(received)


def is_problem(received: bytes, status: int) -> bool:
    head, _, rest = received.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0].startswith(b"HTTP/1.1 %d " % status), received[:500]
    assert b"content-type: application/problem+json" in lines
    assert b"connection: close" in lines
    assert any(line.startswith(b"date: ") for line in lines)
    body = rest.removesuffix(b"(hung up)")
    assert b"content-length: %d" % len(body) in lines
    assert json.loads(body)["status"] == status
    return rest.endswith(b"(hung up)")


@pytest.mark.parametrize("cut", [1, 30_000, MAX_HEAD_BYTES])
async def test_a_head_has_64_kib_at_most(api: LiveApi, cut: int) -> None:
    largest, larger = head_of(MAX_HEAD_BYTES), head_of(MAX_HEAD_BYTES + 1)

    assert (await exchanged(api, largest[:cut], largest[cut:])).startswith(b"HTTP/1.1 200 ")
    # the second request of a connection as well, and the head right before a body
    assert (await exchanged(api, largest, largest)).count(b"HTTP/1.1 200 ") == 2
    assert is_problem(await exchanged(api, larger[:cut], larger[cut:]), 431)
    second = await exchanged(api, largest, larger)
    assert is_problem(second[second.rindex(b"HTTP/1.1") :], 431)


@pytest.mark.parametrize(
    "start", [b"GET /healthz HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\n" + b"a: b\r\n"]
)
async def test_a_head_without_end_is_431_and_not_kept(api: LiveApi, start: bytes) -> None:
    repeated = b"x" * 2**20 if not start.endswith(b"\r\n") else b"a: b\r\n" * 200_000

    assert is_problem(await exchanged(api, start, *[repeated] * 8, pause_s=0), 431)


async def test_what_follows_a_request_for_another_protocol_is_no_request(api: LiveApi) -> None:
    first = (
        b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nhi"
    )
    second = b"POST /y HTTP/1.1\r\nHost: x\r\nContent-Length: 37\r\n\r\n"
    inner = b"GET /healthz HTTP/1.1\r\nHost: brabo\r\n\r\n"

    answer = await exchanged(api, first + second, inner)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 404")
    assert answer.endswith(b"(hung up)")


async def test_a_trailer_is_no_header(api: LiveApi, world: World) -> None:
    content = json.dumps(request_body(world)).encode()
    path = api.turn_url(world.session_id).removeprefix(api.url)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"
        "Trailer: X-Brabo-Service-Token\r\n\r\n"
    ).encode()
    token = HEADERS["X-Brabo-Service-Token"].encode()
    body = b"%x\r\n%b\r\n0\r\nX-Brabo-Service-Token: %b\r\n\r\n" % (len(content), content, token)

    assert is_problem(await exchanged(api, head + body), 403)


async def test_trailers_and_the_framing_of_chunks_are_bounded_too(api: LiveApi, world: World) -> None:
    url = api.turn_url(world.session_id).removeprefix(api.url)
    head = f"POST {url} HTTP/1.1\r\nHost: brabo\r\nTransfer-Encoding: chunked\r\n".encode()
    head += "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode() + b"\r\n"
    content = json.dumps(request_body(world)).encode()
    chunk = b"%x\r\n%b\r\n" % (len(content) // 2, content[: len(content) // 2])

    for endless in (b"0\r\nX: ", b"5;"):
        assert is_problem(await exchanged(api, head + chunk + endless, b"x" * 2**20), 431)


async def test_a_large_body_right_behind_its_head_is_no_head(
    api: LiveApi, simulator: Simulator, world: World
) -> None:
    url = api.turn_url(world.session_id).removeprefix(api.url)
    content = json.dumps(request_body(world, messages=[{"role": "user", "content": "x" * 300_000}])).encode()
    head = f"POST {url} HTTP/1.1\r\nHost: brabo\r\nContent-Length: {len(content)}\r\n".encode()
    head += "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode() + b"\r\n"

    assert (await exchanged(api, head + content)).startswith(b"HTTP/1.1 200 ")
    assert len(simulator.requests()) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nX\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" * 9,
    ],
)
async def test_what_is_no_http_is_a_400(api: LiveApi, content: bytes) -> None:
    assert is_problem(await exchanged(api, content), 400)


async def test_a_broken_body_is_a_400_and_ends_its_request(
    api: LiveApi, world: World, database_url: str
) -> None:
    url = api.turn_url(world.session_id).removeprefix(api.url)
    head = f"POST {url} HTTP/1.1\r\nHost: brabo\r\nTransfer-Encoding: chunked\r\n".encode()
    head += "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items()).encode() + b"\r\n"

    assert is_problem(await exchanged(api, head + b"2\r\n{}\r\n", b"zzz\r\n"), 400)
    assert ledger(database_url, world) == []
