"""A reply as data: what goes on the socket, when, and how it ends. Faults edit it before a byte is sent."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

import msgspec

from entrypoints.simulator.bill import Entry

# Decimals become JSON numbers of exactly that value; msgspec.Raw carries what no encoder would write.
ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

_REASONS: Final = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
}

FrameKind = Literal["comment", "content", "finish", "usage", "done", "raw"]
End = Literal["complete", "close", "reset", "silence"]


@dataclass(slots=True)
class Frame:
    """One piece of a body. A dict is a data event; bytes are an event's text, or (comment, raw) sent as they are."""

    kind: FrameKind
    payload: dict[str, Any] | bytes
    wait_ms: float = 0.0
    """Pause before it."""
    tokens: int = 0
    """Completion tokens generated once it is sent, counted from the beginning."""


@dataclass(slots=True)
class Cut:
    """Where a body stops short: after so many frames (comments not counted), inside the next one if `mid_frame`."""

    after: int
    end: End
    mid_frame: bool = False


class Step(NamedTuple):
    """Bytes for the socket, after a pause."""

    wait_ms: float
    data: bytes
    tokens: int


@dataclass(slots=True)
class Reply:
    """An HTTP answer. `frames` is the body when streamed, `document` otherwise."""

    status: int = 200
    content_type: str = "application/json"
    headers: list[tuple[str, str]] = field(default_factory=list)
    document: Any = None
    frames: list[Frame] = field(default_factory=list)
    streamed: bool = False
    entry: Entry | None = None
    """The call's entry on the bill; None for look-ups and control routes."""

    # How events are written.
    eol: bytes = b"\n"
    data_prefix: bytes = b"data: "
    multi_line: bool = False
    """One event's JSON goes over several data: lines."""
    prologue: bytes = b""
    """Put before the first byte of the body."""

    # Timing and ends.
    headers_wait_ms: float = 0.0
    before_headers: End = "complete"
    """Anything else: the connection ends that way instead of answering."""
    bad_head: bytes | None = None
    """Sent in place of status line, headers and body."""
    cut: Cut | None = None
    end: End = "complete"
    piece_bytes: int = 0
    """Above 0: the body goes out in pieces of this size, each in a write of its own."""
    piece_wait_ms: float = 0.0
    split_characters: bool = False
    """Every multi-byte UTF-8 character is cut after its first byte."""

    # Charging.
    charge: Literal["generated", "full", "nothing"] = "generated"
    stops_when_left: bool = True
    """The generation stops when the client leaves."""
    billed_cost: Decimal | None = None
    """Charged in place of the price table's amount, once the call has ended by itself."""

    def encoded(self) -> bytes:
        """The document's bytes."""
        return self.document if isinstance(self.document, bytes) else ENCODER.encode(self.document)

    def goes_on(self) -> bool:
        """Whether the generation is still running when the last step has been written and silence follows."""
        unfinished = self.cut is not None or not any(frame.kind == "finish" for frame in self.frames)
        return self.end == "silence" and self.charge == "generated" and unfinished

    def steps(self) -> list[Step]:
        """All that is written, in order, head first. What follows the last step is `self.end`."""
        if self.before_headers != "complete":
            self.end = self.before_headers
            return []
        if self.bad_head is not None:
            self.end = "close"
            return [Step(self.headers_wait_ms, self.bad_head, 0)]
        document = b"" if self.streamed else self.prologue + self.encoded()
        body = list(self._stream_steps()) if self.streamed else self._document_steps(document)
        if self.piece_bytes or self.split_characters:
            body = [piece for step in body for piece in self._pieces(step)]
        if self.streamed:
            body = [Step(step.wait_ms, _chunk(step.data), step.tokens) for step in body if step.data]
            if self.end == "complete":
                body.append(Step(0, b"0\r\n\r\n", body[-1].tokens if body else 0))
        return [Step(self.headers_wait_ms, self._head(len(document)), 0), *body]

    def _head(self, length: int) -> bytes:
        lines = [
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}",
            f"content-type: {self.content_type}",
        ]
        lines.extend(f"{name}: {value}" for name, value in self.headers)
        if self.streamed:
            lines.append("cache-control: no-cache\r\ntransfer-encoding: chunked")
        else:
            lines.append(f"content-length: {length}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _document_steps(self, data: bytes) -> list[Step]:
        tokens = self.entry.all_completion_tokens if self.entry else 0
        if self.cut is None:
            return [Step(0, data, tokens)]
        self.end = self.cut.end
        return [Step(0, data[: len(data) // 2], tokens)] if self.cut.mid_frame else []

    def _stream_steps(self) -> Iterator[Step]:
        cut = self.cut
        last = len(self.frames)
        if cut is not None:
            # A short answer is cut before its finish frame, so that the fault always shows.
            self.end = cut.end
            counted = [i for i, frame in enumerate(self.frames) if frame.kind != "comment"]
            limit = next((n for n, i in enumerate(counted) if self.frames[i].kind == "finish"), len(counted))
            after = min(cut.after, limit)
            last = counted[after] if after < len(counted) else len(self.frames)
        before = self.prologue
        for frame in self.frames[:last]:
            yield Step(frame.wait_ms, before + self._written(frame), frame.tokens)
            before = b""
        if cut is not None and cut.mid_frame and last < len(self.frames):
            whole = self._written(self.frames[last])
            tokens = self.frames[last - 1].tokens if last else 0
            yield Step(self.frames[last].wait_ms, whole[: len(whole) // 2], tokens)

    def _written(self, frame: Frame) -> bytes:
        payload, eol = frame.payload, self.eol
        if frame.kind == "raw":
            assert isinstance(payload, bytes)
            return payload
        if frame.kind == "comment":
            assert isinstance(payload, bytes)
            return payload + eol + eol
        data = payload if isinstance(payload, bytes) else ENCODER.encode(payload)
        if self.multi_line and isinstance(payload, dict):
            data = (eol + self.data_prefix).join(msgspec.json.format(data, indent=1).split(b"\n"))
        return self.data_prefix + data + eol + eol

    def _pieces(self, step: Step) -> Iterator[Step]:
        wait_ms = step.wait_ms
        for piece in (
            _cut_characters(step.data) if self.split_characters else _slices(step.data, self.piece_bytes)
        ):
            yield Step(wait_ms, piece, step.tokens)
            wait_ms = self.piece_wait_ms


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _slices(data: bytes, size: int) -> Iterator[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


def _cut_characters(data: bytes) -> Iterator[bytes]:
    start = 0
    for at, byte in enumerate(data):
        if byte >= 0xC0:  # the first byte of a multi-byte character
            yield data[start : at + 1]
            start = at + 1
    yield data[start:]
