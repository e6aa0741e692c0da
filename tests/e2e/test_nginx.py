"""The sample configuration, driven by a real nginx between an engine's connection and two backends."""

import asyncio
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest

SAMPLE = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

SESSION = "0196f2d4-2f6b-7c3e-9a53-5a1c7b8d9e0f"
TURN = f"/internal/sessions/{SESSION}/llm-turn"
STREAM = f"/internal/sessions/{SESSION}/llm-turn-stream"
SWITCH = f"/workspaces/{SESSION}/tool-router"
PATIENCE_S = 10

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed here")


@dataclass
class Call:
    """A request as a backend received it, and the connection to answer it on."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def send_chunk(self, piece: bytes) -> None:
        await self.send(b"%x\r\n%b\r\n" % (len(piece), piece))


Answer = Callable[[Call], Awaitable[None]]


async def answer_ok(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


@dataclass
class Backend:
    """An api behind the proxy: records what arrives, and answers as the test says."""

    answer: Answer = answer_ok
    calls: list[Call] = field(default_factory=list)
    connections: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """The head of a request has arrived; its body may still be coming."""

    @property
    def paths(self) -> list[str]:
        return [call.line.split(" ")[1] for call in self.calls]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = self.connections
        try:
            while (head := await read_head(reader)) is not None:
                self.begun.set()
                line, headers = head
                body = await read_body(reader, headers)
                call = Call(line, headers, body, connection, reader, writer)
                self.calls.append(call)
                await self.answer(call)
        except ConnectionError:
            pass  # the proxy hung up, which is what some tests are about
        finally:
            writer.close()


async def read_head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]] | None:
    """First line and headers (names in lower case); None when the connection has ended."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    line, *fields = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return line, {
        name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)
    }


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        pieces = []
        while piece := await read_chunk(reader):
            pieces.append(piece)
        return b"".join(pieces)
    return await reader.readexactly(int(headers.get("content-length", "0")))


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    piece = await reader.readexactly(size)
    await reader.readexactly(2)
    return piece


@dataclass
class Engine:
    """One connection of an engine to the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, path: str, body: bytes = b"{}", headers: str = "", method: str = "POST") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: brabo\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()

    async def hear_head(self) -> tuple[int, dict[str, str]]:
        head = await read_head(self.reader)
        assert head is not None, "the proxy closed the connection instead of answering"
        line, headers = head
        return int(line.split(" ")[1]), headers

    async def hear_answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.hear_head()
        return status, headers, await read_body(self.reader, headers)


@dataclass
class Proxy:
    turns: Backend
    rest: Backend
    port: int
    stack: AsyncExitStack

    async def connect(self) -> Engine:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.stack.callback(writer.close)
        return Engine(reader, writer)


@asynccontextmanager
async def running_nginx(folder: Path, sample: str) -> AsyncIterator[None]:
    """nginx as a distribution sets it up, gzip on, with the sample as a file of conf.d."""
    (folder / "brabo.conf").write_text(sample)
    temporary = "".join(
        f"{kind}_temp_path {kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "main.conf").write_text(
        ("user root;\n" if os.geteuid() == 0 else "")
        + "daemon off;\nworker_processes 1;\npid nginx.pid;\nerror_log stderr;\nevents {}\n"
        + f"http {{\naccess_log off;\ngzip on;\ngzip_types *;\ngzip_min_length 1;\n{temporary}include brabo.conf;\n}}\n"
    )
    assert NGINX is not None
    arguments = ["-p", f"{folder}/", "-c", "main.conf", "-e", "stderr"]
    with (folder / "error.log").open("wb") as log:
        nginx = await asyncio.create_subprocess_exec(NGINX, *arguments, stdout=log, stderr=log)
    try:
        yield
    finally:
        if nginx.returncode is None:
            nginx.terminate()
        await asyncio.wait_for(nginx.wait(), PATIENCE_S)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    turns, rest = Backend(), Backend()
    async with AsyncExitStack() as stack:
        sample = SAMPLE.read_text()
        for address, backend in (("127.0.0.1:3000", turns), ("127.0.0.1:3001", rest)):
            server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
            stack.callback(server.close)
            sample = with_port(sample, address, server.sockets[0].getsockname()[1])
        port = free_port()
        await stack.enter_async_context(running_nginx(tmp_path, with_port(sample, "127.0.0.1:8080", port)))
        await until_listening(port, tmp_path / "error.log")
        # Connections of the engines close before nginx does.
        yield Proxy(turns, rest, port, await stack.enter_async_context(AsyncExitStack()))


def with_port(sample: str, address: str, port: int) -> str:
    assert sample.count(address) == 1, f"{address} should stand once in the sample"
    return sample.replace(address, f"127.0.0.1:{port}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


async def until_listening(port: int, log: Path) -> None:
    for _ in range(200):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    fail_with(log)


def fail_with(log: Path) -> NoReturn:
    pytest.fail(f"nginx did not start:\n{log.read_text()}")


@pytest.mark.parametrize("path", [TURN, STREAM, f"{TURN}?trace=1"])
async def test_turns_go_to_us(proxy: Proxy, path: str) -> None:
    engine = await proxy.connect()
    await engine.ask(
        path, b'{"messages": []}', "X-Brabo-Service-Token: t0ken\r\ntraceparent: 00-ab-cd-01\r\n"
    )

    status, _, body = await engine.hear_answer()

    assert (status, body) == (200, b"{}")
    assert (proxy.turns.paths, proxy.rest.paths) == ([path], [])
    [call] = proxy.turns.calls
    assert call.body == b'{"messages": []}'
    assert call.headers["x-brabo-service-token"] == "t0ken"
    assert call.headers["traceparent"] == "00-ab-cd-01"


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
async def test_the_tool_routers_switch_goes_to_us(proxy: Proxy, method: str) -> None:
    engine = await proxy.connect()
    await engine.ask(
        SWITCH,
        b'{"enabled": false}',
        "Authorization: Bearer a.b.c\r\nOrigin: https://app.example.com\r\n",
        method,
    )

    status, _, _ = await engine.hear_answer()

    assert status == 200
    assert (proxy.turns.paths, proxy.rest.paths) == ([SWITCH], [])
    [call] = proxy.turns.calls
    assert call.line.startswith(f"{method} ")
    assert call.body == b'{"enabled": false}'
    assert (call.headers["authorization"], call.headers["origin"]) == (
        "Bearer a.b.c",
        "https://app.example.com",
    )


@pytest.mark.parametrize(
    "path",
    [
        "/",
        f"/internal/sessions/{SESSION}/events?limit=5&types=a%2Cb",
        f"/internal/sessions/{SESSION}/llm-turns",
        f"/internal/sessions/{SESSION}/llm-turn/again",
        f"/internal/sessions/{SESSION}/x/llm-turn",
        f"/elsewhere{TURN}",
        f"{SWITCH}/again",
        f"/elsewhere{SWITCH}",
        f"/workspaces/{SESSION}/x/tool-router",
        f"/workspaces/{SESSION}/model-binding",
        "/workspaces/tool-router",
        "/.well-known/jwks.json",
    ],
)
async def test_everything_else_goes_to_the_existing_api(proxy: Proxy, path: str) -> None:
    engine = await proxy.connect()
    await engine.ask(path)

    status, _, _ = await engine.hear_answer()

    assert status == 200
    assert (proxy.turns.paths, proxy.rest.paths) == ([], [path])


async def test_each_frame_passes_alone_uncompressed_and_unchanged(proxy: Proxy) -> None:
    frames = [b'data: {"type": "delta", "text": "%d"}\n\n' % n for n in range(5)] + [b":\n\n"]
    taken = asyncio.Semaphore(0)

    async def stream(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for frame in frames:
            await call.send_chunk(frame)
            await taken.acquire()  # the next one only once this one has reached the engine
        await call.send_chunk(b"")

    proxy.turns.answer = stream
    engine = await proxy.connect()
    await engine.ask(STREAM, headers="Accept-Encoding: gzip\r\n")
    async with asyncio.timeout(PATIENCE_S):
        status, headers = await engine.hear_head()
        heard = []
        for _ in frames:
            heard.append(await read_chunk(engine.reader))
            taken.release()
        end = await read_chunk(engine.reader)

    assert status == 200
    assert headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in headers
    assert heard == frames
    assert end == b""


async def test_blanks_before_a_slow_json_answer_pass_at_once(proxy: Proxy) -> None:
    heard_blank = asyncio.Event()

    async def answer_slowly(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        await call.send_chunk(b" ")
        await heard_blank.wait()
        await call.send_chunk(b"{}")
        await call.send_chunk(b"")

    proxy.turns.answer = answer_slowly
    engine = await proxy.connect()
    await engine.ask(TURN)
    async with asyncio.timeout(PATIENCE_S):
        await engine.hear_head()
        assert await read_chunk(engine.reader) == b" "
        heard_blank.set()
        assert await read_body(engine.reader, {"transfer-encoding": "chunked"}) == b"{}"


async def test_connections_are_kept_on_both_sides(proxy: Proxy) -> None:
    engine = await proxy.connect()
    for _ in range(5):
        await engine.ask(TURN)
        status, headers, _ = await engine.hear_answer()
        assert status == 200
        assert headers["connection"] == "keep-alive"

    assert [call.connection for call in proxy.turns.calls] == [1] * 5
    assert {call.line.rsplit(" ", 1)[1] for call in proxy.turns.calls} == {"HTTP/1.1"}
    assert {call.headers.get("connection") for call in proxy.turns.calls} == {None}


async def test_a_turn_whose_api_dies_is_answered_once_and_never_sent_again(proxy: Proxy) -> None:
    async def die_on_the_second(call: Call) -> None:
        if len(proxy.turns.calls) == 1:
            await answer_ok(call)
        else:
            raise ConnectionAbortedError

    proxy.turns.answer = die_on_the_second
    engine = await proxy.connect()
    await engine.ask(TURN)
    assert (await engine.hear_answer())[0] == 200
    await engine.ask(TURN)  # goes out on the kept connection, where a proxy would be most ready to try again

    status, _, _ = await engine.hear_answer()

    assert status == 502
    assert len(proxy.turns.calls) == 2


@pytest.mark.parametrize("begun", [False, True], ids=["before the answer", "amid the stream"])
async def test_an_engine_that_leaves_is_noticed_by_the_api(proxy: Proxy, begun: bool) -> None:
    left = asyncio.Event()

    async def wait_for_the_end(call: Call) -> None:
        if begun:
            await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await call.send_chunk(b":\n\n")
        arrived.set()
        assert await call.reader.read() == b""
        left.set()

    arrived = asyncio.Event()
    proxy.turns.answer = wait_for_the_end
    engine = await proxy.connect()
    await engine.ask(STREAM if begun else TURN)
    async with asyncio.timeout(PATIENCE_S):
        await arrived.wait()
        if begun:
            await engine.hear_head()
        engine.writer.close()
        await left.wait()


async def test_a_reader_that_takes_nothing_is_felt_by_the_api(proxy: Proxy) -> None:
    stalled = asyncio.Event()

    async def stream_64_mib(call: Call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(64):
                async with asyncio.timeout(1):
                    await call.send_chunk(b" " * (1 << 20))
        except TimeoutError:
            stalled.set()

    proxy.turns.answer = stream_64_mib
    engine = await proxy.connect()
    await engine.ask(STREAM)
    async with asyncio.timeout(PATIENCE_S):
        await stalled.wait()


async def test_a_body_passes_while_it_comes(proxy: Proxy) -> None:
    engine = await proxy.connect()
    engine.writer.write(f"POST {TURN} HTTP/1.1\r\nHost: brabo\r\nContent-Length: 2\r\n\r\n{{".encode())
    async with asyncio.timeout(PATIENCE_S):
        await proxy.turns.begun.wait()
        engine.writer.write(b"}")
        status, _, _ = await engine.hear_answer()

    assert status == 200
    assert proxy.turns.calls[0].body == b"{}"


async def test_a_body_of_32_mib_passes(proxy: Proxy) -> None:
    engine = await proxy.connect()
    await engine.ask(TURN, b" " * (32 << 20))

    assert (await engine.hear_answer())[0] == 200
    assert len(proxy.turns.calls[0].body) == 32 << 20


async def test_a_refusal_passes_as_it_is(proxy: Proxy) -> None:
    problem = b'{"status": 503}'

    async def refuse(call: Call) -> None:
        await call.send(
            b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 3\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(problem), problem)
        )

    proxy.turns.answer = refuse
    engine = await proxy.connect()
    await engine.ask(TURN)

    status, headers, body = await engine.hear_answer()

    assert (status, body) == (503, problem)
    assert headers["content-type"] == "application/problem+json"
    assert headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("directive", "at_least_s"),
    [("keepalive_timeout", 600), ("proxy_read_timeout", 620), ("proxy_send_timeout", 620)],
)
def test_waits_are_as_long_as_a_turn_may_be(directive: str, at_least_s: int) -> None:
    """Too long to be waited for here, so read from the sample."""
    engines_side = SAMPLE.read_text().split("server {\n", 1)[1]
    [seconds] = re.findall(rf"\b{directive} (\d+)s;", engines_side)

    assert int(seconds) >= at_least_s
