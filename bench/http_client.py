"""A light HTTP/1.1 client, and a server that does nothing: what a measurement costs must not hide what it measures."""

import asyncio
from typing import Final, cast

import httptools


class Connection(asyncio.Protocol):
    """One kept connection; requests go out one after the other."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answered: asyncio.Future[bytes] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> "Connection":
        """Connect. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    async def send(self, request: bytes) -> bytes:
        """The body of the answer, once it has ended. Raises ConnectionError: cut, or a status that is not 2xx."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        """Close it; a request under way fails."""
        if self._transport is not None:
            self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionError(f"cut before the answer ended ({exc})"))

    # httptools

    def on_message_begin(self) -> None:
        self._body = []

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        if self._answered is None or self._answered.done():
            return
        status, body = self._parser.get_status_code(), b"".join(self._body)
        if 200 <= status < 300:
            self._answered.set_result(body)
        else:
            self._answered.set_exception(ConnectionError(f"status {status}: {body[:300]!r}"))


def post(path: str, body: bytes, **headers: str) -> bytes:
    """A whole request, ready to be written."""
    named = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"POST {path} HTTP/1.1"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in {**named, **headers}.items()]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


class BareServer(asyncio.Protocol):
    """Answers every request with the same few bytes: the least that an HTTP call over loopback can cost."""

    _ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._transport is not None:
            self._transport.write(self._ANSWER)
