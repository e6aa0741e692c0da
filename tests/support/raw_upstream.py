"""A provider made of bytes: a loopback server that sends exactly what a test tells it to."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request as it came; header names in lower case."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection it came over, counted from 1."""

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """The server's end of one exchange."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Each part in a packet of its own."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()
            await asyncio.sleep(pause_s)

    async def gone(self) -> float:
        """Wait for the client to close the connection; the moment on the loop's clock."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass
        return asyncio.get_running_loop().time()

    def reset(self) -> None:
        """Break the connection with an RST."""
        self._writer.transport.abort()


Act = Callable[[Wire], Awaitable[bool | None]]
"""What the server does with a request. True: it goes on with the connection; else it closes it."""


def chunked(*parts: bytes, is_ended: bool = True) -> bytes:
    """The parts as HTTP chunks."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts if part)
    return chunks + (b"0\r\n\r\n" if is_ended else b"")


def head(status: str = "200 OK", content_type: str | None = "text/event-stream", **headers: str) -> bytes:
    """The head of a chunked response."""
    lines = [f"HTTP/1.1 {status}", "Transfer-Encoding: chunked"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def whole(
    body: bytes, status: str = "200 OK", content_type: str | None = "text/event-stream", **headers: str
) -> Act:
    """A response that ends as it should; the connection stays."""

    async def act(wire: Wire) -> bool:
        await wire.send(head(status, content_type, **headers) + chunked(body))
        return True

    return act


class RawUpstream:
    """The server. Requests beyond the script break their connection."""

    def __init__(self) -> None:
        self.requests: list[RawRequest] = []
        self.connections = 0
        self._acts: deque[Act] = deque()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def will(self, *acts: Act) -> None:
        """What the next requests meet."""
        self._acts.extend(acts)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        connection = self.connections
        try:
            while await self._exchange(reader, writer, connection):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> bool | None:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(RawRequest(line, headers, body, connection))
        return await self._acts.popleft()(Wire(reader, writer)) if self._acts else None
