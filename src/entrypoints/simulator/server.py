"""HTTP/1.1 over a bare asyncio protocol: quick, and able to break a connection in every way a network does.

No tasks: a reply is a list of steps, and a timer leads from one pause to the next.
"""

import asyncio
import socket
import struct
from collections import deque
from decimal import Decimal
from typing import Final, cast
from urllib.parse import parse_qsl

import httptools

from entrypoints.simulator.bill import Status
from entrypoints.simulator.call import Call, Request
from entrypoints.simulator.faults import Arrival
from entrypoints.simulator.refusal import Refusal, error_body
from entrypoints.simulator.reply import End, Reply, Step
from entrypoints.simulator.routes import answered, received
from entrypoints.simulator.state import State

_MOST_AT_ONCE_BYTES: Final = 64 * 1024
_BEFORE_RESET_S: Final = 0.02  # a reset discards what the peer has not read yet; let it read


class Connection(asyncio.Protocol):
    """One client connection. Requests are answered one after the other."""

    def __init__(self, state: State, open_connections: set["Connection"]) -> None:
        self._state = state
        self._open = open_connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is no more."""
        self._write_paused = False
        self._timer: asyncio.TimerHandle | None = None
        # The request being read
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        # Requests read and not yet begun, each with whether the connection stays open after it
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._busy = False
        self._keep_alive = True
        # The reply being written
        self._reply: Reply | None = None
        self._steps: list[Step] = []
        self._at = 0
        self._due_s = 0.0
        self._waited = False

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._open.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keep_alive = False
            self._waiting.clear()
            if not self._busy:
                self._busy = True
                self._play(Refusal(400, error_body(400, "this is not an HTTP/1.1 request")).reply())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio names it
        self._transport = None
        self._open.discard(self)
        self.gone.set_result(None)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reply, self._reply = self._reply, None
        if reply is not None:
            self._settle(reply, client_left=True)

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._reply is not None and self._timer is None:
            self._advance()

    # httptools

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("ascii"),
            path=path,
            query=dict(parse_qsl(query)) if query else {},
            headers=self._headers,
            body=b"".join(self._body),
        )
        self._waiting.append((request, self._parser.should_keep_alive()))
        if not self._busy:
            self._begin_next()

    # A request's life

    def _begin_next(self) -> None:
        self._busy = bool(self._waiting)
        if not self._busy:
            return
        request, self._keep_alive = self._waiting.popleft()
        call = received(self._state, request)
        if isinstance(call, Reply):
            self._play(call)
            return
        arrival = Arrival()
        for chosen in call.faults:
            chosen.on_arrival(arrival)
        if arrival.end != "complete":
            self._break(arrival.end)
        elif arrival.wait_ms > 0:
            self._timer = self._loop.call_later(arrival.wait_ms / 1000, self._answer, call)
        else:
            self._answer(call)

    def _answer(self, call: Call) -> None:
        self._timer = None
        self._play(answered(self._state, call))

    def _play(self, reply: Reply) -> None:
        self._reply = reply
        self._steps = reply.steps()
        self._at = 0
        self._due_s = self._loop.time()
        self._waited = False
        self._advance()

    def _advance(self) -> None:
        """Writes steps up to the next pause, to a full socket, or to the end.

        A pause is counted from when the one before it was due, so that a late timer does not slow the pace.
        """
        assert self._reply is not None
        pending: list[bytes] = []
        size = 0
        while self._at < len(self._steps):
            step = self._steps[self._at]
            if step.wait_ms > 0 and not self._waited:
                self._write(pending)
                self._due_s += step.wait_ms / 1000
                self._waited = True
                self._timer = self._loop.call_at(self._due_s, self._on_time)
                return
            self._waited = False
            self._at += 1
            pending.append(step.data)
            size += len(step.data)
            if size >= _MOST_AT_ONCE_BYTES:
                self._write(pending)
                pending, size = [], 0
                if self._write_paused:
                    return
        self._write(pending)
        self._finish(self._reply)

    def _on_time(self) -> None:
        self._timer = None
        if not self._write_paused:
            self._advance()

    def _write(self, pending: list[bytes]) -> None:
        if not pending or self._transport is None or self._reply is None:
            return
        self._transport.write(pending[0] if len(pending) == 1 else b"".join(pending))
        entry = self._reply.entry
        if entry is not None and entry.status is not Status.REFUSED:
            entry.headers_sent = True
            entry.completion_tokens = self._steps[self._at - 1].tokens

    def _finish(self, reply: Reply) -> None:
        wrote = bool(self._steps)
        if not reply.goes_on():
            if reply.entry is not None and wrote:
                reply.entry.headers_sent = True
                reply.entry.delivered = reply.cut is None
            self._settle(reply, client_left=False)
            self._reply = None
        if reply.end == "complete" and self._keep_alive:
            self._begin_next()
        elif reply.end == "complete" or not wrote:
            self._break("close" if reply.end == "complete" else reply.end)
        elif reply.end == "reset":
            self._timer = self._loop.call_later(_BEFORE_RESET_S, self._break, "reset")
        else:
            self._break(reply.end)

    def _break(self, end: End) -> None:
        """Ends the connection that way; after `silence` it stays, and nothing more is said on it."""
        self._timer = None
        if self._transport is None or end == "silence":
            return
        if end == "reset":
            connection = self._transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def _settle(self, reply: Reply, *, client_left: bool) -> None:
        """Enters the charge: in full, for what was generated, or none."""
        entry, bill = reply.entry, self._state.bill
        if entry is None or entry.status is not Status.ACCEPTED:
            return
        entry.client_left = client_left
        if reply.charge == "nothing":
            bill.finish(entry, in_full=False, cost=Decimal(0))
        elif client_left and reply.stops_when_left and reply.charge == "generated":
            bill.cancel(entry)
        elif reply.charge == "full" or client_left or reply.cut is None:
            bill.finish(entry, in_full=True, cost=reply.billed_cost)
        else:
            # The provider failed. With no token and no finish reason the service charges nothing.
            entry.finish_reason = entry.native_finish_reason = None
            bill.finish(entry, in_full=False, cost=None if entry.completion_tokens else Decimal(0))

    def abort(self) -> None:
        """Drops the connection; a call that runs is settled as if the client had left."""
        if self._transport is not None:
            self._transport.abort()
