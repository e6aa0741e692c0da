"""Everything odd that a provider is known to send, one row each, over a loopback server of bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from adapters.openai_compatible.profiles import provider_table
from adapters.openai_compatible.provider import Clocks, OpenAICompatibleProvider
from adapters.transport.way_out import WayOut
from application.ports.llm_provider import ChatCall, ChatOutcome
from domain.failure import FailureCode
from domain.provider import Provider
from domain.secret import Secret
from tests.support.raw_upstream import Act, RawUpstream, Wire, chunked, head

KEY: Final = "sk-or-v1-0123456789abcdef"
NOW: Final = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
DONE: Final = b"data: [DONE]\n\n"

type_of: Final = {"sse": "text/event-stream", "json": "application/json", "html": "text/html; charset=utf-8"}


@dataclass(frozen=True, kw_only=True)
class Row:
    oddity: str
    body: bytes
    status: str = "200 OK"
    type: str | None = "text/event-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    end: str = "whole"
    """`whole`, `cut` (closed before its end), `silent`, `comments` or `drip` (no end of them), `raw`, `bodiless`."""
    provider: Provider = Provider.OPENROUTER
    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    ids: Sequence[str] | None = None
    truncated: bool = False
    code: FailureCode | None = None
    failure_status: int | None = None
    detail: str | None = None
    retry_after_ms: int | None = None
    tokens: tuple[int, int] | None = None
    cost: str | None = None
    charged: bool = True
    dropped: int = 0
    expect: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the outcome."""


def event(frame: Any) -> bytes:
    return b"data: " + json.dumps(frame, ensure_ascii=False).encode() + b"\n\n"


def choice(
    delta: Any = None, finish: str | None = None, native: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "id": "gen-1",
        "provider": "Azure",
        "model": "m-2026",
        "object": "chat.completion.chunk",
        "choices": [
            {"index": 0, "delta": delta or {}, "finish_reason": finish, "native_finish_reason": native}
        ],
        **more,
    }


def said(text: str, **more: Any) -> bytes:
    return event(choice({"role": "assistant", "content": text}, **more))


def parts(*pieces: Any, finish: str = "tool_calls", native: str | None = None) -> bytes:
    """A stream whose frames bring these lists of tool-call pieces."""
    frames = b"".join(event(choice({"content": None, "tool_calls": piece})) for piece in pieces)
    return frames + event(choice({"content": ""}, finish, native)) + DONE


def part(index: Any = None, call_id: Any = None, name: Any = None, args: Any = None) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not None}
    piece: dict[str, Any] = {"type": "function", "function": function}
    return piece | {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}


def document(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def error(code: Any = None, message: Any = "no", **fields: Any) -> dict[str, Any]:
    named = {key: value for key, value in (("code", code), ("message", message)) if value is not None}
    return {"error": named | fields}


STOP: Final = event(choice({"content": ""}, "stop", "stop"))
USAGE: Final = {"prompt_tokens": 14, "completion_tokens": 3, "total_tokens": 17, "cost": 0.5}
COUNTED: Final[dict[str, Any]] = {"tokens": (14, 3), "cost": "0.5"}
PLAIN: Final = said("Pong") + STOP + DONE
ARGS: Final = '{"path": "a.ts"}'
READ: Final = ("read_file", {"path": "a.ts"})


def _refused(oddity: str, status: str, fields: Any, code: FailureCode, **expected: Any) -> Row:
    """An error status and its body."""
    return Row(
        oddity=oddity,
        status=status,
        type=expected.pop("type", "application/json"),
        body=fields if isinstance(fields, bytes) else json.dumps(fields).encode(),
        code=code,
        failure_status=int(status[:3]),
        charged=False,
        **expected,
    )


FRAMING: Final = [
    Row(
        oddity="comment lines before the first frame",
        body=b": OPENROUTER PROCESSING\n\n" * 3 + PLAIN,
        text="Pong",
    ),
    Row(
        oddity="comment lines between frames",
        body=said("Po") + b": OPENROUTER PROCESSING\n\n" + said("ng") + STOP + DONE,
        text="Pong",
    ),
    Row(
        oddity="comment lines after the last frame",
        body=said("Pong") + STOP + b": x\n\n" + DONE + b": y\n\n",
        text="Pong",
    ),
    Row(
        oddity="a comment line inside an event",
        body=b"data: "
        + json.dumps(choice({"content": "Pong"})).encode()
        + b"\n: OPENROUTER PROCESSING\n\n"
        + STOP
        + DONE,
        text="Pong",
    ),
    Row(oddity="a bare comment", body=b": \n\n:\n\n" + PLAIN, text="Pong"),
    Row(oddity="lines that end with CRLF", body=PLAIN.replace(b"\n", b"\r\n"), text="Pong"),
    Row(oddity="lines that end with LF", body=PLAIN, text="Pong"),
    Row(oddity="lines that end with CR alone", body=PLAIN.replace(b"\n", b"\r"), text="Pong"),
    Row(
        oddity="line ends of all kinds in one stream",
        body=said("Po").replace(b"\n", b"\r\n") + said("ng") + STOP.replace(b"\n", b"\r") + DONE,
        text="Pong",
    ),
    Row(oddity="data: without the space", body=PLAIN.replace(b"data: ", b"data:"), text="Pong"),
    Row(oddity="data: with two spaces", body=PLAIN.replace(b"data: ", b"data:  "), text="Pong"),
    Row(
        oddity="several data: lines an event",
        body=b"".join(
            b"data: %s\n" % line
            for line in json.dumps(choice({"content": "Pong"}), indent=1).encode().split(b"\n")
        )
        + b"\n"
        + STOP
        + DONE,
        text="Pong",
    ),
    Row(oddity="frames that only a line end parts", body=PLAIN.replace(b"\n\n", b"\n"), text="Pong"),
    Row(oddity="event, id and retry fields", body=b"event: message\nid: 7\nretry: 10\n" + PLAIN, text="Pong"),
    Row(oddity="an empty data: frame", body=b"data:\n\ndata: \n\ndata\n\n" + PLAIN, text="Pong"),
    Row(oddity="a byte order mark at the start", body=b"\xef\xbb\xbf" + PLAIN, text="Pong"),
    Row(oddity="blank lines at the start", body=b"\n\r\n\n" + PLAIN, text="Pong"),
    Row(
        oddity="U+2028, U+2029 and U+0085 inside JSON",
        body=said("a\u2028b\u2029c\u0085d\x0b") + STOP + DONE,
        text="a\u2028b\u2029c\u0085d\x0b",
    ),
    Row(oddity="the last event without its blank line", body=said("Pong") + STOP.rstrip(b"\n"), text="Pong"),
    Row(oddity="[DONE] without any line end", body=said("Pong") + STOP + b"data: [DONE]", text="Pong"),
    Row(oddity="no content type", type=None, body=PLAIN, text="Pong"),
    Row(oddity="a stream called application/json", type=type_of["json"], body=PLAIN, text="Pong"),
    Row(oddity="a stream called text/plain", type="text/plain", body=PLAIN, text="Pong"),
    Row(
        oddity="malformed JSON in one frame",
        body=said("Po") + b'data: {"choices":[{"del\n\n' + said("ng") + STOP + DONE,
        text="Pong",
        dropped=1,
    ),
    Row(
        oddity="a frame that is no object",
        body=b'data: "hello"\n\ndata: 7\n\n' + PLAIN,
        text="Pong",
        dropped=2,
    ),
    Row(
        oddity="a frame nested 20,000 deep",
        body=b'data: {"x":' + b"[" * 20000 + b"]" * 20000 + b"}\n\n" + PLAIN,
        text="Pong",
        dropped=1,
    ),
    Row(
        oddity="broken UTF-8 inside a frame",
        body=said("Po").replace(b"Po", b"P\xff\xc3") + STOP + DONE,
        text="P\ufffd\ufffd",
    ),
    Row(
        oddity="a raw tab inside a JSON string",
        body=said("A-B").replace(b"A-B", b"A\tB") + STOP + DONE,
        text="A\tB",
    ),
    Row(
        oddity="a surrogate pair cut over two pieces",
        body=event("X").replace(b'"X"', json.dumps(choice({"content": "a\ud83d"})).encode())
        + event("X").replace(b'"X"', json.dumps(choice({"content": "\ude0ab"})).encode())
        + STOP
        + DONE,
        text="a😊b",
    ),
    Row(
        oddity="half a surrogate pair that stays alone",
        body=b"data: "
        + json.dumps(choice({"content": "a\ud83d"})).encode()
        + b"\n\n"
        + said("b")
        + STOP
        + DONE,
        text="a\ufffdb",
    ),
    Row(
        oddity="half a surrogate pair at the end",
        body=b"data: " + json.dumps(choice({"content": "a\ud83d"})).encode() + b"\n\n" + STOP + DONE,
        text="a\ufffd",
    ),
    Row(
        oddity="wrong types in fields that are not needed",
        body=event(choice({"role": 7, "content": "Pong", "images": {}}, created="x", system_fingerprint=[1]))
        + STOP
        + DONE,
        text="Pong",
    ),
    Row(
        oddity="wrong types in fields that are needed",
        body=event(
            {
                "id": 7,
                "model": ["m"],
                "provider": 3,
                "usage": "x",
                "choices": [
                    {"index": "0", "delta": {"content": "Pong", "reasoning": 4}, "finish_reason": False}
                ],
            }
        )
        + STOP
        + DONE,
        text="Pong",
    ),
    Row(
        oddity="content as a list of parts",
        body=event(choice({"content": [{"type": "text", "text": "Po"}, {"text": "ng"}]})) + STOP + DONE,
        text="Pong",
    ),
    Row(
        oddity="a second choice nobody asked for",
        body=event({"choices": [{"index": 1, "delta": {"content": "other"}}]}) + PLAIN,
        text="Pong",
    ),
]

ENDS: Final = [
    Row(oddity="an end without [DONE], after a finish reason", body=said("Pong") + STOP, text="Pong"),
    Row(oddity="[DONE] without a finish reason", body=said("Pong") + DONE, text="Pong"),
    Row(
        oddity="an end with neither a finish reason nor [DONE]",
        body=said("Pong"),
        text="Pong",
        code=FailureCode.CONNECTION,
    ),
    Row(
        oddity="a connection cut in mid-stream",
        body=said("Pong"),
        end="cut",
        text="Pong",
        code=FailureCode.CONNECTION,
    ),
    Row(
        oddity="a connection cut in the middle of a frame",
        body=said("Pong") + b'data: {"choi',
        end="cut",
        text="Pong",
        code=FailureCode.CONNECTION,
    ),
    Row(oddity="a connection cut before any frame", body=b"", end="cut", code=FailureCode.CONNECTION),
    Row(
        oddity="only comments, and the end", body=b": OPENROUTER PROCESSING\n\n", code=FailureCode.CONNECTION
    ),
    Row(oddity="a connection cut after the finish reason", body=said("Pong") + STOP, end="cut", text="Pong"),
    Row(
        oddity="a cut that drops the calls that were whole",
        body=said("Pong") + event(choice({"tool_calls": [part(0, "c1", "read_file", ARGS)]})),
        end="cut",
        text="Pong",
        code=FailureCode.CONNECTION,
    ),
    Row(oddity="silence after the finish reason", body=said("Pong") + STOP, end="silent", text="Pong"),
    Row(
        oddity="silence after the usage",
        body=said("Pong") + STOP + event({"choices": [], "usage": USAGE}),
        end="silent",
        text="Pong",
        **COUNTED,
    ),
    Row(
        oddity="a flood of comments is no life",
        body=said("Pong"),
        end="comments",
        text="Pong",
        code=FailureCode.TIMEOUT,
    ),
    Row(
        oddity="half a frame, and again half a frame, is no life",
        body=said("Pong") + b"data: ",
        end="drip",
        text="Pong",
        code=FailureCode.TIMEOUT,
    ),
    Row(oddity="an empty body", body=b"", code=FailureCode.BAD_ANSWER, charged=False),
    Row(
        oddity="an empty body with a generation id",
        body=b"",
        headers={"X-Generation-Id": "gen-7"},
        code=FailureCode.BAD_ANSWER,
        expect={"generation_id": "gen-7"},
    ),
    Row(
        oddity="no content at all (204)",
        status="204 No Content",
        body=b"",
        end="bodiless",
        code=FailureCode.BAD_ANSWER,
        charged=False,
    ),
    Row(oddity="blanks only", body=b" \n \r\n", code=FailureCode.BAD_ANSWER, charged=False),
    Row(
        oddity="HTML from a proxy",
        type=type_of["html"],
        body=b"<!DOCTYPE html><title>hi</title>",
        code=FailureCode.BAD_ANSWER,
        charged=False,
    ),
    Row(oddity="HTML called an event stream", body=b"\n<html>", code=FailureCode.BAD_ANSWER, charged=False),
    Row(
        oddity="plain prose under 200",
        type="text/plain",
        body=b"upstream connect error",
        code=FailureCode.BAD_ANSWER,
        charged=False,
    ),
    Row(
        oddity="JSON that is cut",
        type=type_of["json"],
        body=b'{"choices": [',
        code=FailureCode.BAD_ANSWER,
        charged=False,
        dropped=1,
    ),
    Row(oddity="[DONE] and nothing else", body=DONE, code=FailureCode.BAD_ANSWER, charged=False),
    Row(oddity="a finish reason and nothing in it", body=STOP + DONE),
    Row(
        oddity="a redirect",
        status="302 Found",
        headers={"Location": "/elsewhere"},
        body=b"",
        code=FailureCode.UPSTREAM,
        failure_status=302,
        charged=False,
    ),
    Row(
        oddity="a status line that is no HTTP",
        body=b"SSH-2.0-OpenSSH\r\n\r\n",
        end="raw",
        code=FailureCode.CONNECTION,
    ),
]

WHOLE: Final = [
    Row(
        oddity="a whole reply though a stream was asked",
        type=type_of["json"],
        body=document(
            id="gen-2",
            model="m",
            provider="P",
            usage=USAGE,
            object="chat.completion",
            choices=[
                {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Pong"}}
            ],
        ),
        text="Pong",
        **COUNTED,
        expect={"generation_id": "gen-2", "resolved_model": "m", "upstream_provider": "P"},
    ),
    Row(
        oddity="a whole reply after blanks",
        type=type_of["json"],
        body=b"\n   \n" + document(choices=[{"finish_reason": None, "message": {"content": "Pong"}}]),
        text="Pong",
    ),
    Row(
        oddity="a whole reply as an event",
        body=event({"choices": [{"message": {"content": "Pong"}, "finish_reason": "stop"}]}),
        text="Pong",
    ),
    Row(
        oddity="a whole reply repeated after its pieces",
        body=said("Pong")
        + event({"choices": [{"message": {"content": "Pong"}, "finish_reason": "stop"}]})
        + DONE,
        text="Pong",
    ),
    Row(
        oddity="tool calls that carry index in a whole reply",
        type=type_of["json"],
        body=document(
            choices=[
                {
                    "finish_reason": "tool_calls",
                    "message": {
                        "content": None,
                        "tool_calls": [part(0, "a", "read_file", ARGS), part(0, "b", "list", "{}")],
                    },
                }
            ]
        ),
        calls=[READ, ("list", {})],
        ids=["a", "b"],
    ),
    Row(
        oddity="arguments missing in a whole reply",
        type=type_of["json"],
        body=document(choices=[{"message": {"content": "", "tool_calls": [part(call_id="a", name="list")]}}]),
        calls=[("list", {})],
        ids=["a"],
    ),
    Row(
        oddity="a bare body error under 200",
        type=type_of["json"],
        body=document(**error(429, "slow down"), user_id="user_abcdef"),
        code=FailureCode.RATE_LIMIT,
        failure_status=429,
        detail="slow down",
        charged=False,
    ),
    Row(
        oddity="an error with id null and choices null under 200",
        type=type_of["json"],
        body=document(id=None, choices=None, **error(502, "down")),
        code=FailureCode.UPSTREAM,
        failure_status=502,
        charged=False,
    ),
    Row(
        oddity="choices null with no error",
        type=type_of["json"],
        body=document(id=None, choices=None),
        code=FailureCode.BAD_ANSWER,
        charged=False,
    ),
    Row(
        oddity="choices null with no error, but an id",
        type=type_of["json"],
        body=document(id="gen-3", choices=None),
        code=FailureCode.BAD_ANSWER,
    ),
    Row(
        oddity="finish_reason error with an error in the choice, and partial content",
        type=type_of["json"],
        body=document(
            choices=[{"finish_reason": "error", "message": {"content": "Po"}, **error(524, "late")}]
        ),
        text="Po",
        code=FailureCode.TIMEOUT,
        failure_status=524,
    ),
    Row(
        oddity="finish_reason error and only a native reason that tells why",
        type=type_of["json"],
        body=document(
            choices=[
                {"finish_reason": "error", "native_finish_reason": "MALFORMED_FUNCTION_CALL", "message": {}}
            ]
        ),
        code=FailureCode.UPSTREAM,
        detail="MALFORMED_FUNCTION_CALL",
        charged=False,
    ),
    Row(
        oddity="everything nested under provider",
        type=type_of["json"],
        body=document(id=None, provider=error(401, "User not found") | {"choices": None}),
        code=FailureCode.AUTH,
        failure_status=401,
        charged=False,
    ),
    Row(
        oddity="an error that is a string",
        type=type_of["json"],
        body=document(error="model exploded"),
        code=FailureCode.UPSTREAM,
        detail="model exploded",
        charged=False,
    ),
    Row(
        oddity="a bare body without error and choices",
        type=type_of["json"],
        body=document(detail="Not Found"),
        code=FailureCode.BAD_ANSWER,
        charged=False,
    ),
]

CALLS: Final = [
    Row(
        oddity="id and name first, arguments in pieces",
        calls=[READ],
        ids=["c1"],
        body=parts([part(0, "c1", "read_file", "")], [part(0, args='{"path": ')], [part(0, args='"a.ts"}')]),
    ),
    Row(
        oddity="parallel calls by index",
        calls=[READ, ("list", {"n": 1})],
        ids=["c1", "c2"],
        body=parts(
            [part(0, "c1", "read_file", ARGS)], [part(1, "c2", "list", "")], [part(1, args='{"n": 1}')]
        ),
    ),
    Row(
        oddity="parallel calls, interleaved",
        calls=[READ, ("list", {"n": 1})],
        ids=["c1", "c2"],
        body=parts(
            [part(0, "c1", "read_file", ""), part(1, "c2", "list", "")],
            [part(1, args='{"n"'), part(0, args=ARGS)],
            [part(1, args=": 1}")],
        ),
    ),
    Row(oddity="an index that begins at 1", calls=[READ], body=parts([part(1, "c1", "read_file", ARGS)])),
    Row(
        oddity="a zero-argument tool that ends as {}",
        calls=[("ping", {})],
        body=parts([part(0, "c1", "ping", "")], [part(0, args="")], [part(0, args="{}")]),
    ),
    Row(
        oddity='arguments that stay "" for the whole stream',
        calls=[("ping", {})],
        body=parts([part(0, "c1", "ping", "")], [part(0, args="")]),
    ),
    Row(
        oddity="arguments null",
        calls=[("ping", {})],
        body=parts([{"index": 0, "id": "c1", "function": {"name": "ping", "arguments": None}}]),
    ),
    Row(oddity="arguments that say null", calls=[("ping", {})], body=parts([part(0, "c1", "ping", "null")])),
    Row(oddity="arguments missing", calls=[("ping", {})], body=parts([part(0, "c1", "ping")])),
    Row(
        oddity="arguments as an object",
        calls=[READ],
        body=parts([part(0, "c1", "read_file", {"path": "a.ts"})]),
    ),
    Row(
        oddity="a name in pieces",
        calls=[READ],
        body=parts([part(0, "c1", "read_")], [part(0, name="file", args=ARGS)]),
    ),
    Row(
        oddity="a name repeated with every piece",
        calls=[READ],
        body=parts([part(0, "c1", "read_file", '{"path": ')], [part(0, "c1", "read_file", '"a.ts"}')]),
    ),
    Row(
        oddity="an id repeated with every piece",
        calls=[READ],
        ids=["c1"],
        body=parts([part(0, "c1", "read_file", '{"path": ')], [part(0, "c1", args='"a.ts"}')]),
    ),
    Row(
        oddity="the id after the name",
        calls=[READ],
        ids=["c1"],
        body=parts([part(0, name="read_file")], [part(0, "c1", args=ARGS)]),
    ),
    Row(
        oddity="an id empty in later pieces",
        calls=[READ],
        ids=["c1"],
        body=parts([part(0, "c1", "read_file", "")], [part(0, "", "", ARGS)]),
    ),
    Row(
        oddity="a missing index, by id",
        calls=[READ, ("list", {})],
        ids=["c1", "c2"],
        body=parts(
            [part(call_id="c1", name="read_file", args='{"path": ')],
            [part(call_id="c1", args='"a.ts"}')],
            [part(call_id="c2", name="list", args="{}")],
        ),
    ),
    Row(
        oddity="a missing index and a missing id, in pieces",
        calls=[READ],
        body=parts([part(name="read_file", args="")], [part(args='{"path": ')], [part(args='"a.ts"}')]),
    ),
    Row(
        oddity="whole calls without index and id, in one frame",
        calls=[("list", {}), ("list", {})],
        body=parts([part(name="list", args="{}"), part(name="list", args="{}")]),
    ),
    Row(
        oddity="whole calls without index and id, frame by frame",
        calls=[READ, READ, ("list", {})],
        body=parts(
            [part(name="read_file", args=ARGS)],
            [part(name="read_file", args=ARGS)],
            [part(name="list", args="{}")],
        ),
    ),
    Row(
        oddity="a new id on a used index",
        calls=[READ, ("list", {})],
        ids=["c1", "c2"],
        body=parts([part(0, "c1", "read_file", ARGS)], [part(0, "c2", "list", "{}")]),
    ),
    Row(
        oddity="a new name on a used index, without ids",
        calls=[READ, ("list", {})],
        body=parts([part(0, name="read_file", args=ARGS)], [part(0, name="list", args="{}")]),
    ),
    Row(
        oddity="one id for two calls",
        calls=[READ, ("list", {"n": 1})],
        body=parts(
            [part(0, "c1", "read_file", ARGS)], [part(1, "c1", "list", '{"n"')], [part(1, "c1", args=": 1}")]
        ),
    ),
    Row(
        oddity="the index as a string",
        calls=[READ],
        body=parts([part("0", "c1", "read_file", "")], [part("0", args=ARGS)]),
    ),
    Row(oddity="a missing id", calls=[READ], body=parts([part(0, name="read_file", args=ARGS)])),
    Row(
        oddity="a tool call cut by length",
        calls=[READ, ("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "read_file", ARGS)], [part(1, "c2", "list", '{"n": ')], native="length"),
    ),
    Row(
        oddity="arguments that do not parse",
        calls=[("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "list", '{"n": ')]),
    ),
    Row(
        oddity="arguments that parse to a list",
        calls=[("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "list", "[1]")]),
    ),
    Row(
        oddity="arguments that are a number",
        calls=[("list", {})],
        truncated=True,
        body=parts([{"index": 0, "id": "c1", "function": {"name": "list", "arguments": 7}}]),
    ),
    Row(
        oddity="arguments with NaN",
        calls=[("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "list", '{"n": NaN}')]),
    ),
    Row(
        oddity="arguments nested 5,000 deep",
        calls=[("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "list", '{"n":' + "[" * 5000 + "]" * 5000 + "}")]),
    ),
    Row(
        oddity="arguments nested 400 deep",
        calls=[("list", {})],
        truncated=True,
        body=parts([part(0, "c1", "list", '{"n":' + "[" * 400 + "]" * 400 + "}")]),
    ),
    Row(
        oddity="half a surrogate pair in arguments",
        calls=[("list", {"n": "a\ufffd"})],
        body=parts([part(0, "c1", "list", '{"n": "a\\ud83d"}')]),
    ),
    Row(
        oddity="half a surrogate pair in the id and the name of a call, and in a key of its arguments",
        body=b"".join(
            b"data: " + json.dumps(choice({"tool_calls": [piece]})).encode() + b"\n\n"
            for piece in (
                part(0, "c\ud800", "li\udc00st", '{"\ud800": ["\udc00", '),
                part(0, "c\ud800", args='{"a\\ud83d": 1}]}'),
            )
        )
        + DONE,
        calls=[("li\ufffdst", {"\ufffd": ["\ufffd", {"a\ufffd": 1}]})],
        ids=["c\ufffd"],
    ),
    Row(
        oddity="two ids that differ in half a surrogate pair",
        body=b"".join(
            b"data: "
            + json.dumps(choice({"tool_calls": [part(i, f"c{half}", "list", "{}")]})).encode()
            + b"\n\n"
            for i, half in enumerate(("\ud800", "\ud801"))
        )
        + DONE,
        calls=[("list", {}), ("list", {})],
    ),
    Row(
        oddity="a surrogate pair cut over two pieces of arguments",
        calls=[("list", {"n": "😊"})],
        body=b"".join(
            b"data: " + json.dumps(choice({"tool_calls": [piece]})).encode() + b"\n\n"
            for piece in (part(0, "c1", "list", '{"n": "\ud83d'), part(0, args='\ude0a"}'))
        )
        + STOP
        + DONE,
    ),
    Row(
        oddity="a call cut before its name",
        truncated=True,
        body=parts([part(0, "c1", args="")], finish="length"),
    ),
    Row(
        oddity="finish_reason stop though there are calls",
        calls=[READ],
        body=parts([part(0, "c1", "read_file", ARGS)], finish="stop"),
    ),
    Row(
        oddity="finish_reason twice gives the calls once",
        calls=[READ],
        body=parts([part(0, "c1", "read_file", ARGS)])[: -len(DONE)]
        + event(choice({}, "tool_calls", "completed", usage=USAGE))
        + DONE,
        **COUNTED,
    ),
    Row(
        oddity="text and calls together",
        text="Let me see.",
        calls=[READ],
        body=said("Let me see.") + parts([part(0, "c1", "read_file", ARGS)]),
    ),
]

USAGES: Final = [
    Row(
        oddity="usage on a frame with a choice that repeats finish_reason",
        text="Pong",
        **COUNTED,
        body=said("Pong") + STOP + event(choice({"content": ""}, "stop", "stop", usage=USAGE)) + DONE,
    ),
    Row(
        oddity="usage on a frame with a choice whose finish_reason is null",
        text="Pong",
        **COUNTED,
        body=said("Pong") + STOP + event(choice({"content": ""}, usage=USAGE)) + DONE,
    ),
    Row(
        oddity="usage on a frame without choices",
        text="Pong",
        **COUNTED,
        body=said("Pong") + STOP + event({"choices": [], "usage": USAGE}) + DONE,
    ),
    Row(
        oddity="usage on a frame that has no choices key",
        text="Pong",
        **COUNTED,
        body=said("Pong") + STOP + event({"usage": USAGE}) + DONE,
    ),
    Row(
        oddity="usage twice: the last one wins",
        text="Pong",
        tokens=(14, 3),
        cost="0.5",
        body=said("Pong", usage={"prompt_tokens": 14, "completion_tokens": 1, "cost": 0.1})
        + STOP
        + event(choice({}, "stop", usage=USAGE))
        + DONE,
    ),
    Row(
        oddity="usage null on every frame but the last",
        text="Pong",
        **COUNTED,
        body=said("Pong", usage=None) + event(choice({}, "stop", usage=USAGE)) + DONE,
    ),
    Row(oddity="usage missing", text="Pong", body=PLAIN),
    Row(oddity="usage empty", text="Pong", body=said("Pong") + event(choice({}, "stop", usage={})) + DONE),
    Row(
        oddity="usage zero is zero",
        text="Pong",
        tokens=(0, 0),
        cost="0",
        body=said("Pong")
        + event(choice({}, "stop", usage={"prompt_tokens": 0, "completion_tokens": 0, "cost": 0}))
        + DONE,
    ),
    Row(
        oddity="cost absent",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong")
        + event(choice({}, "stop", usage={"prompt_tokens": 14, "completion_tokens": 3}))
        + DONE,
    ),
    Row(
        oddity="cost null",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": None})) + DONE,
    ),
    Row(
        oddity="cost in scientific notation",
        text="Pong",
        tokens=(14, 3),
        cost="0.0000039",
        body=(said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "X"})) + DONE).replace(
            b'"X"', b"3.9e-6"
        ),
    ),
    Row(
        oddity="cost with more digits than a float holds",
        text="Pong",
        tokens=(14, 3),
        cost="0.12345678901234567890123",
        body=(said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "X"})) + DONE).replace(
            b'"X"', b"0.12345678901234567890123"
        ),
    ),
    Row(
        oddity="the same in a frame that the fast decoder refuses",
        text="Pong",
        tokens=(14, 3),
        cost="0.12345678901234567890123",
        body=(
            said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "X", "is_byok": "no"})) + DONE
        ).replace(b'"X"', b"0.12345678901234567890123"),
    ),
    Row(
        oddity="cost negative",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": -0.1})) + DONE,
    ),
    Row(
        oddity="cost as a string",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "0.1"})) + DONE,
    ),
    Row(
        oddity="cost not finite",
        text="Pong",
        tokens=(14, 3),
        body=(said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "X"})) + DONE).replace(
            b'"X"', b"NaN"
        ),
    ),
    Row(
        oddity="cost beyond all bounds",
        text="Pong",
        tokens=(14, 3),
        body=(said("Pong") + event(choice({}, "stop", usage=USAGE | {"cost": "X"})) + DONE).replace(
            b'"X"', b"1e999999999"
        ),
    ),
    Row(
        oddity="is_byok: what the key is charged is not said",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage=USAGE | {"is_byok": True})) + DONE,
    ),
    Row(
        oddity="a cost of a provider whose cost is no charge",
        provider=Provider.DEEPINFRA,
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage=USAGE | {"estimated_cost": 0.2})) + DONE,
    ),
    Row(
        oddity="counts as whole floats",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong")
        + event(choice({}, "stop", usage={"prompt_tokens": 14.0, "completion_tokens": 3.0}))
        + DONE,
    ),
    Row(
        oddity="counts that are none",
        text="Pong",
        body=said("Pong")
        + event(choice({}, "stop", usage={"prompt_tokens": -1, "completion_tokens": 2.5}))
        + DONE,
    ),
    Row(
        oddity="a count beyond the database's integer",
        text="Pong",
        tokens=(0, 3),
        body=said("Pong")
        + event(choice({}, "stop", usage={"prompt_tokens": 2**31, "completion_tokens": 3}))
        + DONE,
    ),
    Row(
        oddity="one count missing beside the total",
        text="Pong",
        tokens=(14, 3),
        body=said("Pong") + event(choice({}, "stop", usage={"prompt_tokens": 14, "total_tokens": 17})) + DONE,
    ),
    Row(
        oddity="reasoning_tokens that exceed completion_tokens",
        text="Pong",
        tokens=(14, 3),
        cost="0.5",
        body=said("Pong")
        + event(
            choice(
                {},
                "stop",
                usage=USAGE
                | {
                    "completion_tokens_details": {"reasoning_tokens": 11},
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
            )
        )
        + DONE,
        expect={"reasoning": 11, "cached_input": 8},
    ),
    Row(
        oddity="details null",
        text="Pong",
        **COUNTED,
        body=said("Pong")
        + event(
            choice(
                {},
                "stop",
                usage=USAGE
                | {"completion_tokens_details": None, "prompt_tokens_details": None, "cost_details": None},
            )
        )
        + DONE,
    ),
    Row(
        oddity="usage and nothing else",
        **COUNTED,
        body=event({"choices": [], "usage": USAGE}) + DONE,
        code=FailureCode.BAD_ANSWER,
    ),
]

CONTENT: Final = [
    Row(
        oddity="role on every chunk, content empty or null",
        text="Pong",
        body=said("") + event(choice({"role": "assistant", "content": None})) + said("Pong") + STOP + DONE,
    ),
    Row(
        oddity="refusal fragments are text",
        text="I cannot.",
        body=event(choice({"content": None, "refusal": "I can"}))
        + event(choice({"refusal": "not."}))
        + STOP
        + DONE,
    ),
    Row(
        oddity="reasoning twice, and a signature in a late fragment of its own",
        text="4",
        body=event(
            choice(
                {
                    "content": "",
                    "reasoning": "hm",
                    "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
                }
            )
        )
        + event(
            choice({"content": "", "reasoning_details": [{"type": "reasoning.text", "signature": "Et0="}]})
        )
        + said("4")
        + STOP
        + DONE,
        expect={"generated": ("hm", "4")},
    ),
    Row(
        oddity="reasoning in details alone",
        text="4",
        body=event(
            choice(
                {
                    "reasoning_details": [
                        {"type": "reasoning.summary", "summary": "hm"},
                        {"type": "reasoning.encrypted", "data": "AAAA"},
                    ]
                }
            )
        )
        + said("4")
        + STOP
        + DONE,
        expect={"generated": ("hm", "4")},
    ),
    Row(
        oddity="reasoning_content in place of reasoning",
        provider=Provider.TOGETHER,
        text="4",
        body=event(choice({"reasoning": None, "reasoning_content": "hm"})) + said("4") + STOP + DONE,
        expect={"generated": ("hm", "4")},
    ),
    Row(
        oddity="half a surrogate pair in reasoning of all kinds",
        text="4",
        body=b"data: "
        + json.dumps(choice({"reasoning": "h\ud83d"})).encode()
        + b"\n\ndata: "
        + json.dumps(choice({"reasoning_details": [{"text": "m\udc00"}, {"summary": "\ud800"}]})).encode()
        + b"\n\n"
        + said("4")
        + STOP
        + DONE,
        expect={"generated": ("h\ufffd", "m\ufffd", "\ufffd", "4")},
    ),
    Row(
        oddity="reasoning that brings no text and no usage, and is cut",
        body=event(choice({"reasoning": "hm"})),
        end="cut",
        code=FailureCode.CONNECTION,
    ),
    Row(
        oddity='finish_reason "eos"',
        provider=Provider.TOGETHER,
        text="Pong",
        body=said("Pong") + event(choice({}, "eos")),
    ),
    Row(
        oddity="a finish_reason nobody knows",
        text="Pong",
        body=said("Pong") + event(choice({}, "because")) + DONE,
    ),
    Row(
        oddity="content_filter is an end",
        text="Pong",
        body=said("Pong") + event(choice({}, "content_filter")) + DONE,
    ),
    Row(
        oddity="finish_reason length",
        text="Pong",
        truncated=True,
        body=said("Pong") + event(choice({}, "length", "MAX_TOKENS")) + DONE,
    ),
    Row(
        oddity="native_finish_reason length alone",
        text="Pong",
        truncated=True,
        body=said("Pong") + event(choice({}, "stop", "length")) + DONE,
    ),
    Row(
        oddity="native_finish_reason completed",
        text="Pong",
        body=said("Pong") + event(choice({}, "stop", "completed")) + DONE,
    ),
    Row(oddity="finish_reason twice", text="Pong", body=said("Pong") + STOP + STOP + DONE),
    Row(
        oddity="the generation id with the headers",
        headers={"X-Generation-Id": "gen-h"},
        text="Pong",
        body=PLAIN,
        expect={"generation_id": "gen-h"},
    ),
    Row(
        oddity="the dated slug of the model that served",
        text="Pong",
        body=PLAIN,
        expect={"resolved_model": "m-2026", "upstream_provider": "Azure", "generation_id": "gen-1"},
    ),
    Row(
        oddity="names with NUL, surrogates and 10,000 characters",
        text="Pong",
        body=b"data: "
        + json.dumps({"id": "g\x00n", "model": "m\ud800x", "provider": "p" * 10_000}).encode()
        + b"\n\n"
        + event({"choices": [{"delta": {"content": "Pong"}, "finish_reason": "stop"}]}),
        expect={"generation_id": "gn", "resolved_model": "mx", "upstream_provider": "p" * 200},
    ),
]

IN_STREAM: Final = [
    Row(
        oddity="an error beside an empty delta and finish_reason error",
        text="Po",
        code=FailureCode.UPSTREAM,
        failure_status=502,
        body=said("Po") + event(choice({"content": ""}, "error", **error(502, "Provider disconnected"))),
    ),
    Row(
        oddity="an error as the first and only event",
        code=FailureCode.RATE_LIMIT,
        failure_status=429,
        charged=False,
        body=event(choice({"content": ""}, "error", **error(429))),
    ),
    Row(
        oddity="an error with a 200 that was committed before any token",
        code=FailureCode.UPSTREAM,
        failure_status=503,
        charged=False,
        body=b": OPENROUTER PROCESSING\n\n" + event(error(503)) + DONE,
    ),
    Row(
        oddity="an error on the usage frame, with finish_reason null",
        text="Po",
        code=FailureCode.CONTEXT_LENGTH,
        failure_status=400,
        truncated=True,
        tokens=(14, 3),
        cost="0.5",
        body=said("Po")
        + event(choice({}, "length", "length"))
        + event(choice({}, usage=USAGE, **error(400, "Token limit reached")))
        + DONE,
    ),
    Row(
        oddity="an error with usage and no content",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        tokens=(14, 3),
        cost="0.5",
        body=event(choice({}, "error", usage=USAGE, **error(500))),
    ),
    Row(
        oddity="an error chunk with choices []",
        text="Po",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        body=said("Po") + event({"choices": [], **error(500)}),
    ),
    Row(
        oddity="a bare data: error",
        text="Po",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        body=said("Po") + event(error(500)),
    ),
    Row(
        oddity="an error named by its event",
        text="Po",
        code=FailureCode.UPSTREAM,
        failure_status=529,
        body=said("Po") + b"event: error\n" + event(error(529)),
    ),
    Row(
        oddity="an error in the middle, and text after it",
        text="Pong",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        body=said("Po") + event(error(500)) + said("ng") + DONE,
    ),
    Row(
        oddity="an error, and the calls that were whole are dropped",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        body=event(choice({"tool_calls": [part(0, "c1", "read_file", ARGS)]})) + event(error(500)),
    ),
    Row(
        oddity="an error, and the connection cut after it",
        text="Po",
        end="cut",
        code=FailureCode.UPSTREAM,
        failure_status=500,
        body=said("Po") + event(error(500)),
    ),
    Row(
        oddity="two errors: the first counts",
        text="Po",
        code=FailureCode.RATE_LIMIT,
        failure_status=429,
        body=said("Po") + event(error(429)) + event(error(500)),
    ),
    Row(
        oddity="a code as a numeric string",
        charged=False,
        code=FailureCode.UPSTREAM,
        failure_status=503,
        body=event(error("503")),
    ),
    Row(
        oddity="a code as a word", charged=False, code=FailureCode.UPSTREAM, body=event(error("server_error"))
    ),
    Row(
        oddity="a code as a word that means more",
        charged=False,
        code=FailureCode.RATE_LIMIT,
        body=event(error("rate_limit_exceeded")),
    ),
    Row(
        oddity="no code",
        charged=False,
        code=FailureCode.UPSTREAM,
        detail="boom",
        body=event(error(None, "boom")),
    ),
    Row(
        oddity="no code but an error_type",
        charged=False,
        code=FailureCode.CONTEXT_LENGTH,
        body=event(error(None, metadata={"error_type": "context_length_exceeded"})),
    ),
    Row(
        oddity="no code but an http_status",
        charged=False,
        code=FailureCode.AUTH,
        failure_status=401,
        body=event(error(None, http_status=401)),
    ),
    Row(oddity="a code that is no status", charged=False, code=FailureCode.UPSTREAM, body=event(error(7))),
    Row(
        oddity="an in-flight 402 inside the stream",
        charged=False,
        code=FailureCode.RATE_LIMIT,
        failure_status=402,
        body=event(error(402, metadata={"reason": "in_flight_budget_exhausted"})),
    ),
    Row(
        oddity="an error null, false or empty is none",
        text="Pong",
        body=said("Po", error=None) + said("ng", error={}) + event(choice({}, "stop", error=False)) + DONE,
    ),
    Row(
        oddity="an error that is true", charged=False, code=FailureCode.UPSTREAM, body=event({"error": True})
    ),
    Row(
        oddity="half a surrogate pair in an error",
        charged=False,
        code=FailureCode.UPSTREAM,
        detail="a b — ?",
        body=b"data: " + json.dumps(error(None, "a\ud800b", metadata={"raw": "\ud800"})).encode() + b"\n\n",
    ),
    Row(
        oddity="finish_reason error without an error object",
        text="Po",
        code=FailureCode.UPSTREAM,
        detail="MALFORMED_FUNCTION_CALL",
        body=said("Po") + event(choice({}, "error", "MALFORMED_FUNCTION_CALL")) + DONE,
    ),
    Row(
        oddity="error_type timeout",
        charged=False,
        code=FailureCode.TIMEOUT,
        body=event(error(None, error_type="timeout")),
    ),
    Row(
        oddity="error_type content_policy_violation",
        charged=False,
        code=FailureCode.MODERATION,
        body=event(error("content_policy_violation")),
    ),
    Row(
        oddity="error_type payment_required",
        charged=False,
        code=FailureCode.INSUFFICIENT_CREDIT,
        body=event(error("payment_required")),
    ),
    Row(
        oddity="error_type image_too_large",
        charged=False,
        code=FailureCode.INVALID_REQUEST,
        body=event(error("image_too_large")),
    ),
    Row(
        oddity="error_type unmapped", charged=False, code=FailureCode.UPSTREAM, body=event(error("unmapped"))
    ),
]

REFUSED: Final = [
    _refused(
        "400 invalid request",
        "400 Bad Request",
        error(400, "bad field"),
        FailureCode.INVALID_REQUEST,
        detail="bad field",
    ),
    _refused(
        "400 for an unknown model",
        "400 Bad Request",
        error(400, "x/y is not a valid model ID"),
        FailureCode.MODEL_NOT_FOUND,
    ),
    _refused(
        "400 for a model that does not exist",
        "400 Bad Request",
        error(400, "Model x/y does not exist"),
        FailureCode.MODEL_NOT_FOUND,
    ),
    _refused(
        "400 with the provider's refusal as a JSON document in a string",
        "400 Bad Request",
        error(
            400,
            "Provider returned error",
            metadata={
                "provider_name": "X",
                "raw": json.dumps(
                    {"error": {"message": "tools[0] is wrong", "type": "invalid_request_error"}}
                ),
            },
        ),
        FailureCode.INVALID_REQUEST,
        detail="Provider returned error — tools[0] is wrong",
    ),
    _refused(
        "400 whose raw says the context is too long",
        "400 Bad Request",
        error(
            400,
            "Provider returned error",
            metadata={
                "raw": json.dumps(
                    {"error": {"message": "This model's maximum context length is 8192 tokens"}}
                )
            },
        ),
        FailureCode.CONTEXT_LENGTH,
    ),
    _refused(
        "400 with OpenAI's worded code",
        "400 Bad Request",
        error("context_length_exceeded", "no", type="invalid_request_error"),
        FailureCode.CONTEXT_LENGTH,
    ),
    _refused(
        "400 with error_type max_tokens_exceeded and no message",
        "400 Bad Request",
        {"error": "max_tokens_exceeded"},
        FailureCode.CONTEXT_LENGTH,
    ),
    _refused("401", "401 Unauthorized", error(401, "User not found"), FailureCode.AUTH),
    _refused(
        "402 insufficient credit",
        "402 Payment Required",
        error(402, "requires more credits", metadata={"limit_source": "openrouter_credits"}),
        FailureCode.INSUFFICIENT_CREDIT,
    ),
    _refused(
        "402 of an in-flight budget, with Retry-After",
        "402 Payment Required",
        error(
            402,
            metadata={"limit_source": "openrouter_in_flight_budget", "reason": "in_flight_budget_exhausted"},
        ),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "7"},
        retry_after_ms=7000,
    ),
    _refused(
        "403 moderation, whose flagged input is hidden",
        "403 Forbidden",
        error(
            403,
            "Flagged: my private words",
            metadata={"reasons": ["violence"], "flagged_input": "my private words"},
        ),
        FailureCode.MODERATION,
        detail="Flagged: […]",
    ),
    _refused(
        "403 with flagged input alone",
        "403 Forbidden",
        error(403, metadata={"flagged_input": "x"}),
        FailureCode.MODERATION,
    ),
    _refused(
        "403 of a guardrail", "403 Forbidden", error(403, metadata={"patterns": ["p"]}), FailureCode.FORBIDDEN
    ),
    _refused(
        "403 of a spent guardrail budget",
        "403 Forbidden",
        error(403, metadata={"limit_source": "openrouter_guardrail_budget", "limit_usd": 5}),
        FailureCode.FORBIDDEN,
    ),
    _refused("404", "404 Not Found", error(404, "No endpoints found"), FailureCode.MODEL_NOT_FOUND),
    _refused("408", "408 Request Timeout", error(408), FailureCode.TIMEOUT),
    _refused("413", "413 Payload Too Large", error(413), FailureCode.CONTEXT_LENGTH),
    _refused("422", "422 Unprocessable Entity", error(422, "context length"), FailureCode.INVALID_REQUEST),
    _refused(
        "429 of OpenRouter's own",
        "429 Too Many Requests",
        error(429, "Rate limit exceeded", metadata={"error_type": "rate_limit_exceeded"}),
        FailureCode.RATE_LIMIT,
        headers={"X-RateLimit-Remaining": "0"},
    ),
    _refused(
        "429 upstream, from a shared pool",
        "429 Too Many Requests",
        error(
            429,
            "Provider returned error",
            metadata={
                "raw": "busy",
                "provider_error_code": "429",
                "limit_source": "upstream_provider_shared_pool",
            },
        ),
        FailureCode.RATE_LIMIT,
        detail="Provider returned error — busy",
    ),
    _refused(
        "500 with a masked message",
        "500 Internal Server Error",
        error(500, "Internal Server Error"),
        FailureCode.UPSTREAM,
    ),
    _refused("502", "502 Bad Gateway", error(502), FailureCode.UPSTREAM),
    _refused(
        "503 with Retry-After",
        "503 Service Unavailable",
        error(503),
        FailureCode.UPSTREAM,
        headers={"Retry-After": "1.5"},
        retry_after_ms=1500,
    ),
    _refused(
        "429 with a Retry-After date beyond all calendars",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"},
    ),
    _refused("504", "504 Gateway Timeout", error(504), FailureCode.UPSTREAM),
    _refused("524", "524 A Timeout Occurred", error(524), FailureCode.TIMEOUT),
    _refused("529", "529 Overloaded", error(529), FailureCode.UPSTREAM),
    _refused("a status nobody lists", "418 I'm a teapot", error(418), FailureCode.UPSTREAM),
    _refused(
        "Retry-After as an HTTP date",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "Fri, 20 Nov 2026 12:00:30 GMT"},
        retry_after_ms=30_000,
    ),
    _refused(
        "Retry-After as a date that is past",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "Fri, 20 Nov 2026 11:00:00 GMT"},
        retry_after_ms=0,
    ),
    _refused(
        "retry-after-ms",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"retry-after-ms": "250", "Retry-After": "9"},
        retry_after_ms=250,
    ),
    _refused(
        "Retry-After without end",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "99999999999"},
        retry_after_ms=86_400_000,
    ),
    _refused(
        "Retry-After that is no time",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"Retry-After": "soon"},
    ),
    _refused(
        "Retry-After infinite or negative",
        "429 Too Many Requests",
        error(429),
        FailureCode.RATE_LIMIT,
        headers={"retry-after-ms": "inf", "Retry-After": "-3"},
        retry_after_ms=0,
    ),
    _refused(
        "availability with retry_after and no code",
        "429 Too Many Requests",
        error(None, availability={"code": "capacity_exhausted", "retry_after": 4}),
        FailureCode.RATE_LIMIT,
        retry_after_ms=4000,
    ),
    _refused(
        "error_type and http_status, but no code",
        "503 Service Unavailable",
        error(None, error_type="provider_unavailable", http_status=503),
        FailureCode.UPSTREAM,
    ),
    _refused("metadata null", "400 Bad Request", error(400, metadata=None), FailureCode.INVALID_REQUEST),
    _refused(
        "an account id in the message is hidden",
        "401 Unauthorized",
        error(401, "account user_2abcDEF9 is gone") | {"user_id": "user_2abcDEF9"},
        FailureCode.AUTH,
        detail="account […] is gone",
    ),
    _refused(
        "a key in the message is hidden",
        "401 Unauthorized",
        error(401, f"Incorrect API key provided: {KEY}. Sent: Bearer abc.def, sk-proj-****1234"),
        FailureCode.AUTH,
        detail="Incorrect API key provided: […]. Sent: […] […]",
    ),
    _refused(
        "a message without end",
        "500 Internal Server Error",
        error(500, "x" * 100_000),
        FailureCode.UPSTREAM,
        detail="x" * 300,
    ),
    _refused(
        "a message that is no text",
        "500 Internal Server Error",
        error(500, {"a": 1}),
        FailureCode.UPSTREAM,
        detail="",
    ),
    _refused(
        "HTML from Cloudflare",
        "502 Bad Gateway",
        b"<html><title>502</title>",
        FailureCode.UPSTREAM,
        type=type_of["html"],
        detail="",
    ),
    _refused(
        "plain text",
        "503 Service Unavailable",
        b"no healthy upstream",
        FailureCode.UPSTREAM,
        type="text/plain",
        detail="no healthy upstream",
    ),
    _refused(
        "an empty body under an error status",
        "500 Internal Server Error",
        b"",
        FailureCode.UPSTREAM,
        detail="",
    ),
    _refused(
        "a body without the error object",
        "404 Not Found",
        {"message": "gone", "detail": "away"},
        FailureCode.MODEL_NOT_FOUND,
        detail="gone — away",
    ),
    _refused(
        "an error body that is cut",
        "500 Internal Server Error",
        b'{"error": {"mess',
        FailureCode.UPSTREAM,
        end="cut",
    ),
    _refused(
        "an error body that never ends",
        "500 Internal Server Error",
        b'{"error"',
        FailureCode.UPSTREAM,
        end="silent",
    ),
    _refused(
        "an error body in another encoding",
        "400 Bad Request",
        b'{"error":{"message":"n\xe3o"}}',
        FailureCode.INVALID_REQUEST,
        detail="n\ufffdo",
    ),
    _refused(
        "an error body nested 20,000 deep",
        "400 Bad Request",
        b'{"error":' + b"[" * 20000,
        FailureCode.INVALID_REQUEST,
    ),
    _refused(
        "a second-hand code that differs from the status",
        "502 Bad Gateway",
        error(429, metadata={"provider_code": 429}),
        FailureCode.UPSTREAM,
    ),
]

ROWS: Final = [*FRAMING, *ENDS, *WHOLE, *CALLS, *USAGES, *CONTENT, *IN_STREAM, *REFUSED]


def play(row: Row) -> Act:
    async def act(wire: Wire) -> bool:
        if row.end == "raw":
            await wire.send(row.body)
            return False
        if row.end == "bodiless":
            await wire.send(f"HTTP/1.1 {row.status}\r\n\r\n".encode())
            return True
        await wire.send(
            head(row.status, row.type, **row.headers) + chunked(row.body, is_ended=row.end == "whole")
        )
        if row.end in ("comments", "drip"):
            for _ in range(40):
                await wire.send(
                    chunked(b": x\n\n" if row.end == "comments" else b"x", is_ended=False), pause_s=0.02
                )
        if row.end in ("silent", "comments", "drip"):
            await wire.gone()
        return row.end == "whole"

    return act


@pytest.fixture
async def upstream() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


async def outcome_of(row: Row, upstream: RawUpstream) -> tuple[ChatOutcome, int]:
    dropped: list[Provider] = []
    async with WayOut() as way_out:
        provider = OpenAICompatibleProvider(
            provider_table({row.provider: upstream.url}, "http://localhost"),
            way_out,
            now=lambda: NOW,
            clocks=Clocks(after_finish_s=0.1, idle_s=0.3),
            on_dropped_frame=dropped.append,
        )
        stream = provider.chat(
            ChatCall(
                provider=row.provider,
                model="m",
                messages=[],
                tools=[],
                api_key=Secret(KEY),
                routing_preference=None,
                deadline_s=asyncio.get_running_loop().time() + 20,
            )
        )
        pieces = [piece async for pieces in stream for piece in pieces]
        assert "" not in pieces
        assert "".join(pieces) == stream.outcome().text
        return stream.outcome(), len(dropped)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.oddity)
async def test_reads(row: Row, upstream: RawUpstream) -> None:
    upstream.will(play(row))
    outcome, dropped = await outcome_of(row, upstream)
    failure = outcome.failure
    assert (failure and failure.code) == row.code
    assert outcome.text == row.text
    assert [(call.name, call.arguments) for call in outcome.tool_calls] == list(row.calls)
    assert len({call.id for call in outcome.tool_calls} - {""}) == len(row.calls)
    assert row.ids is None or [call.id for call in outcome.tool_calls] == list(row.ids)
    assert outcome.is_truncated == row.truncated
    usage = outcome.usage
    assert (usage and (usage.tokens.input, usage.tokens.output)) == row.tokens
    assert (usage and usage.charged_usd) == (Decimal(row.cost) if row.cost is not None else None)
    assert outcome.may_be_charged == row.charged
    assert dropped == row.dropped
    if failure is not None:
        assert failure.provider is row.provider
        assert failure.status == row.failure_status
        assert failure.retry_after_ms == row.retry_after_ms
        assert row.detail is None or failure.detail == row.detail
    for name, value in row.expect.items():
        assert getattr(usage.tokens if usage and hasattr(usage.tokens, name) else outcome, name) == value
    assert msgspec.json.encode(outcome)
    assert len(upstream.requests) == 1


def test_each_oddity_is_named_once_and_counted(summarise: Callable[[str], None]) -> None:
    assert len({row.oddity for row in ROWS}) == len(ROWS)
    summarise(f"wire oddities: {len(ROWS)} rows")
