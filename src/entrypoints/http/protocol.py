"""HTTP/1.1 as uvicorn reads it, with a limit to what may come before a request has a head."""

from typing import Final

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from entrypoints.http.problems import MEDIA_TYPE, problem_body

MAX_HEAD_BYTES: Final = 64 * 1024
_LINGER_S: Final = 1.0
"""A peer that is still sending reads our answer only if what it sends is taken."""

_log: Final = structlog.get_logger("brabo.http")


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head is over the limit, and what is no HTTP, with a problem; then it hangs up.

    Trailers and the framing of chunks count as a head does: the parser keeps them until they end.
    """

    _held_bytes = 0
    """What the parser took in since it last gave something out."""
    _is_refused = False
    _is_head_whole = False

    def data_received(self, data: bytes) -> None:
        """Parse it, in parts small enough that none exceeds the limit unseen."""
        while data and not self._is_refused:
            part = data[: MAX_HEAD_BYTES - self._held_bytes]
            if not part:
                _log.warning("head_refused", peer=self.client[0] if self.client else None)
                self._refuse(431, "The head of the request is over 64 KiB: send fewer or shorter headers.")
                return
            self._held_bytes += len(part)
            super().data_received(part)
            data = data[len(part) :]

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_head_whole = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after the body is none: nobody in front of us has looked at it."""
        if not self._is_head_whole:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._held_bytes = 0
        self._is_head_whole = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body came."""
        self._held_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """What comes next is another request."""
        self._held_bytes = 0
        super().on_message_complete()

    def _unsupported_upgrade_warning(self) -> None:
        # The parser takes what follows such a head for another protocol, body and all: it must not be read as requests.
        self._is_refused = True
        self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Called for what the parser does not take."""
        self._refuse(400, f"{msg} Only HTTP/1.1 and HTTP/1.0 are spoken here.")

    def _refuse(self, status: int, detail: str) -> None:
        self._is_refused = True
        cycle = self.cycle
        if self.pipeline or (cycle is not None and cycle.response_started and not cycle.response_complete):
            self.transport.close()  # a head of ours would be taken for a part of the answer under way
            return
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        body = problem_body(status, detail)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", MEDIA_TYPE),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)
