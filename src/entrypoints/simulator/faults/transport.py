"""Faults of connection, time and bytes. They do not care what the body says."""

from collections.abc import Callable, Iterator
from typing import Any

from entrypoints.simulator.faults.fault import (
    CALLS,
    CHAT,
    DOCUMENTS,
    EVERYTHING,
    STREAM,
    Arrival,
    Fault,
    Parameters,
)
from entrypoints.simulator.reply import Cut, End, Frame, Reply

_KEEP_ALIVE = b": OPENROUTER PROCESSING"


def _set(**fields: Any) -> Callable[[Reply, Parameters], None]:
    """A hook that sets these fields of the reply."""

    def apply(reply: Reply, _p: Parameters) -> None:
        for name, value in fields.items():
            setattr(reply, name, value)

    return apply


def _delay_accept(arrival: Arrival, p: Parameters) -> None:
    arrival.wait_ms += p["ms"]


def _silence_accept(arrival: Arrival, _p: Parameters) -> None:
    arrival.end = "silence"


def _reset_accept(arrival: Arrival, _p: Parameters) -> None:
    arrival.end = "reset"


def _delay_headers(reply: Reply, p: Parameters) -> None:
    reply.headers_wait_ms += p["ms"]


def _lost(end: End) -> Callable[[Reply, Parameters], None]:
    """The call is accepted and charged, and no byte of an answer comes."""
    return _set(before_headers=end, charge="full")


def _delay_first_token(reply: Reply, p: Parameters) -> None:
    next(frame for frame in reply.frames if frame.kind != "comment").wait_ms += p["ms"]


def _delay_between(reply: Reply, p: Parameters) -> None:
    for frame in [frame for frame in reply.frames if frame.kind in ("content", "finish")][1:]:
        frame.wait_ms += p["ms"]


def _cut(end: End, mid_frame: bool = False, charge: str | None = None) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, p: Parameters) -> None:
        reply.cut = Cut(after=p.get("after", 0), end=end, mid_frame=mid_frame)
        if charge == "full":
            reply.charge = "full"

    return apply


def _drip(reply: Reply, p: Parameters) -> None:
    reply.piece_bytes, reply.piece_wait_ms = max(1, p["bytes"]), p["ms"]


def _content_type(reply: Reply, p: Parameters) -> None:
    reply.content_type = p["type"]


def _no_generation_id(reply: Reply, _p: Parameters) -> None:
    reply.headers = [(name, value) for name, value in reply.headers if name != "x-generation-id"]


def _oversized(reply: Reply, p: Parameters) -> None:
    reply.document = {**reply.document, "padding": "x" * p["bytes"]}


def _not_json(reply: Reply, _p: Parameters) -> None:
    reply.document = reply.encoded()[:-1] + b",}"


def _bad_utf8(reply: Reply, _p: Parameters) -> None:
    reply.document = reply.encoded()[:-1] + b',"padding":"\xff\xfe"}'


def _comments_for_ever(reply: Reply, p: Parameters) -> None:
    """In place of tokens; `count` bounds it, and silence follows."""
    comments = [Frame("comment", _KEEP_ALIVE, wait_ms=p["ms"]) for _ in range(p["count"])]
    reply.frames = comments
    reply.end = "silence"


def _silence_after_finish(reply: Reply, _p: Parameters) -> None:
    at = next(at for at, frame in enumerate(reply.frames) if frame.kind == "finish")
    del reply.frames[at + 1 :]
    reply.end = "silence"


def transport_faults() -> Iterator[Fault]:
    """Every fault of this file."""
    # fmt: off
    yield Fault("delay-accept", "accept", EVERYTHING, "waits before accepting: nothing is billed while it waits",
                {"ms": 1000.0}, arrival=_delay_accept)
    yield Fault("silence-accept", "accept", EVERYTHING, "never accepts, never answers", arrival=_silence_accept)
    yield Fault("reset-accept", "accept", EVERYTHING, "connection reset before accepting", arrival=_reset_accept)

    yield Fault("delay-headers", "headers", EVERYTHING, "accepted, then waits before the headers",
                {"ms": 1000.0}, reply=_delay_headers)
    yield Fault("silence-headers", "headers", EVERYTHING, "accepted, charged, and never answers",
                reply=_lost("silence"))
    yield Fault("reset-headers", "headers", EVERYTHING, "accepted, charged, then reset without a byte",
                reply=_lost("reset"))
    yield Fault("close-headers", "headers", EVERYTHING, "accepted, charged, then closed without a byte",
                reply=_lost("close"))
    yield Fault("bad-http", "headers", EVERYTHING, "accepted, charged, and what comes is not HTTP",
                reply=_set(bad_head=b"\x15\x03\x01\x00\x02\x02\x28 this is not HTTP\r\n\r\n", charge="full"))
    yield Fault("wrong-content-type", "headers", CALLS, "the right body under another content type",
                {"type": "text/plain; charset=utf-8"}, reply=_content_type)
    yield Fault("no-generation-id", "headers", CALLS, "no X-Generation-Id header", reply=_no_generation_id)

    yield Fault("delay-first-token", "first-token", STREAM, "headers and comments at once, the first token later",
                {"ms": 1000.0}, reply=_delay_first_token)
    yield Fault("silence-first-token", "first-token", STREAM, "headers and comments, then nothing",
                reply=_cut("silence"))
    yield Fault("comments-only", "first-token", STREAM, "keep-alive comments instead of tokens, then silence",
                {"ms": 100.0, "count": 100_000}, reply=_comments_for_ever)
    yield Fault("reset-first-token", "first-token", STREAM, "headers and comments, then reset", reply=_cut("reset"))
    yield Fault("end-first-token", "first-token", STREAM, "headers and comments, then a proper end of the body",
                reply=_cut("complete"))

    yield Fault("delay-between", "tokens", STREAM, "waits between tokens", {"ms": 200.0}, reply=_delay_between)
    yield Fault("silence", "tokens", STREAM, "some frames, then nothing", {"after": 2}, reply=_cut("silence"))
    yield Fault("reset", "tokens", STREAM, "some frames, then reset; charged for what was generated",
                {"after": 2}, reply=_cut("reset"))
    yield Fault("truncated", "tokens", STREAM, "closed in the middle of a frame; charged for what was generated",
                {"after": 2}, reply=_cut("close", mid_frame=True))
    yield Fault("truncated-cleanly", "tokens", STREAM, "the body ends properly in the middle of a frame",
                {"after": 2}, reply=_cut("complete", mid_frame=True))
    yield Fault("drip", "tokens", EVERYTHING, "the body in small pieces, each after a pause",
                {"bytes": 8, "ms": 20.0}, reply=_drip)
    yield Fault("split-bytes", "tokens", EVERYTHING, "the body in pieces of a few bytes, each in a write of its own",
                {"bytes": 1, "ms": 0.2}, reply=_drip)

    yield Fault("silence-after-finish", "end", STREAM, "the finish frame, then silence with the body left open",
                reply=_silence_after_finish)
    yield Fault("open-after-done", "end", STREAM, "[DONE], and the body is left open", reply=_set(end="silence"))
    yield Fault("close-after-done", "end", STREAM, "[DONE], then closed without ending the body",
                reply=_set(end="close"))
    yield Fault("charged-cut", "charge", CALLS, "the answer is cut (a stream after some frames), and charged in full",
                {"after": 2}, reply=_cut("close", mid_frame=True, charge="full"))
    yield Fault("cancel-unsupported", "charge", STREAM,
                "the provider does not support cancellation: who leaves is charged in full",
                reply=_set(stops_when_left=False))

    yield Fault("document-silence", "document", DOCUMENTS, "headers, then nothing", reply=_cut("silence"))
    yield Fault("document-half-silence", "document", DOCUMENTS, "half the document, then nothing",
                reply=_cut("silence", mid_frame=True))
    yield Fault("document-reset", "document", DOCUMENTS, "half the document, then reset",
                reply=_cut("reset", mid_frame=True))
    yield Fault("document-truncated", "document", DOCUMENTS, "half the document, then closed",
                reply=_cut("close", mid_frame=True))
    yield Fault("oversized", "document", DOCUMENTS, "a valid document of more than 1 MiB",
                {"bytes": 1_100_000}, reply=_oversized)
    yield Fault("malformed-document", "document", DOCUMENTS, "a document that is almost JSON", reply=_not_json)
    yield Fault("bad-utf8", "document", DOCUMENTS, "a document with bytes that are no UTF-8", reply=_bad_utf8)
    yield Fault("byte-order-mark", "tokens", CHAT | DOCUMENTS, "the body begins with a UTF-8 byte order mark",
                reply=_set(prologue=b"\xef\xbb\xbf"))
    # fmt: on
