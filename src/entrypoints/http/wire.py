"""The engines' JSON: requests in, answers out (contract, section 2)."""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import msgspec
import structlog

from application.turn import TurnFinished
from domain.failure import FailureCode, TurnFailure
from entrypoints.http.sentences import sentence_for
from entrypoints.http.wire_routing import WireRouting

_log: Final = structlog.get_logger("brabo.http")

MAX_DEPTH: Final = 900
_MAX_AGENT_CHARACTERS: Final = 200
_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
_SLICE_CHARACTERS: Final = 1 << 20
"""A longer text is encoded in slices, so that no single step holds the event loop."""
_SLICE_BYTES: Final = 128 * 1024
"""Looked through at once; nothing but brackets takes 5 ms."""
_NO_BRACKETS_OR_QUOTES: Final = bytes(set(range(256)) - set(b'[]{}"'))
_AS_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""A level down is 1, and a level up, as a signed byte, -1."""

# The decoder recurses once a level and shares Python's limit with the frames above it: the default of 1,000 would
# refuse bodies of the 900 levels that are legal, at a depth that depends on who calls.
sys.setrecursionlimit(max(sys.getrecursionlimit(), 3_000))


class BadBody(Exception):  # noqa: N818 - it names what happened
    """The body does not decode. The text says which field and why, and holds nothing of the body's contents."""


class _Unseen(msgspec.Struct, frozen=True):
    """Its repr names the type alone: what engines send belongs in no log."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class WireToolCall(_Unseen, frozen=True):
    """A call as the model made it in an earlier step."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class WireMessage(_Unseen, frozen=True, rename={"_content": "content", "_tool_calls": "toolCalls"}):
    """A message; null content and null calls read as empty."""

    role: str
    _content: str | None
    _tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = msgspec.field(default=None, name="toolCallId")
    name: str | None = None

    def __post_init__(self) -> None:
        # Not an enum of the decoder's: it would quote what came instead, whatever and however long that is.
        if self.role not in _ROLES:
            raise ValueError("`role` is none of system, user, assistant and tool")
        if self._content is None and self.role != "assistant":
            raise ValueError(f"`content` of a message of role {self.role} may not be null")

    @property
    def content(self) -> str:
        """The text; `""` where an assistant sent null."""
        return self._content or ""

    @property
    def tool_calls(self) -> Sequence[WireToolCall]:
        """The calls, none where there were none."""
        return self._tool_calls or ()


class WireTool(_Unseen, frozen=True, rename={"_description": "description", "_parameters": "parameters"}):
    """A tool of the catalogue. Its parameters are passed on, not read."""

    name: str
    _description: str | None = None
    _parameters: dict[str, Any] | None = None

    @property
    def description(self) -> str:
        """What the tool is for; may be empty."""
        return self._description or ""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments."""
        return self._parameters or {}


class TurnBody(_Unseen, frozen=True, kw_only=True, rename="camel"):
    """The body of both turn routes; fields that are not named here are ignored."""

    project_id: str
    messages: list[WireMessage]
    agent_id: str | None = None
    tools: list[WireTool] | None = None
    catalogo_completo: bool | None = None

    def __post_init__(self) -> None:
        if self.agent_id is None:
            return
        if len(self.agent_id) > _MAX_AGENT_CHARACTERS:
            raise ValueError(f"`agentId` has more than {_MAX_AGENT_CHARACTERS} characters")
        if "\0" in self.agent_id:
            raise ValueError("`agentId` holds a NUL character")


_decoder: Final = msgspec.json.Decoder(TurnBody)
_ESCAPED_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def decode_turn(body: bytes | bytearray) -> TurnBody:
    """The request in `body`. Raises BadBody. Linear in its size."""
    try:
        turn = _decoder.decode(body)
    except RecursionError:
        raise BadBody(f"The body nests deeper than {MAX_DEPTH} levels.") from None
    except msgspec.ValidationError as error:
        raise BadBody(f"{error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if "truncated" in str(error) and _ESCAPED_SURROGATE.search(body):
            raise BadBody(
                "The body holds half a surrogate pair (\\ud800 to \\udfff standing alone)."
            ) from None
        raise BadBody(f"The body is not JSON: {error}.") from None
    return turn


async def refuse_too_deep(body: bytes | bytearray) -> None:
    """Raise BadBody if the JSON in `body` has more than MAX_DEPTH levels, in what is passed on or ignored as well.

    Only a body with enough brackets to be that deep is looked through; few have. It is done in slices, with the event
    loop's other work in between.
    """
    if not _has_more_brackets(body, MAX_DEPTH):
        return
    depth = _Depth()
    for start in range(0, len(body), _SLICE_BYTES):
        await asyncio.sleep(0)
        if depth.deepest_after(body[start : start + _SLICE_BYTES]) > MAX_DEPTH:
            raise BadBody(f"The body nests deeper than {MAX_DEPTH} levels.")


def _has_more_brackets(body: bytes | bytearray, limit: int) -> bool:
    """Whether more than `limit` containers begin in it, or seem to: finding them is ten times as quick as counting."""
    found = 0
    for bracket in (b"{", b"["):
        at = body.find(bracket)
        while at >= 0:
            found += 1
            if found > limit:
                return True
            at = body.find(bracket, at + 1)
    return False


class _Depth:
    """How deep JSON nests, read from its brackets alone, slice by slice. Of what is no JSON it says anything."""

    def __init__(self) -> None:
        self._level = 0
        self._is_within_string = False
        self._backslash = b""
        """One that stands at the end of the last slice: what it escapes is in the next."""

    def deepest_after(self, part: bytes | bytearray) -> int:
        """The deepest level within this slice."""
        if b"\\" in part or self._backslash:
            part = (self._backslash + part).replace(rb"\\", b"").replace(rb"\"", b"")
            self._backslash = b"\\" if part.endswith(b"\\") else b""
        runs = part.translate(None, _NO_BRACKETS_OR_QUOTES).split(b'"')
        outside = b"".join(runs[self._is_within_string :: 2])
        self._is_within_string ^= len(runs) % 2 == 0
        steps = memoryview(outside.translate(_AS_STEPS)).cast("b")
        levels = list(accumulate(steps, initial=self._level))
        self._level = levels[-1]
        return max(levels)


class _WireUsage(msgspec.Struct, rename="camel"):
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0
    estimated: bool = True


class _WireCalledTool(msgspec.Struct):
    id: str
    name: str
    arguments: Mapping[str, Any]


class _RestOfAnswer(msgspec.Struct, rename="camel"):
    """Everything of an answer but its message."""

    usage: _WireUsage
    error: str | None
    model_name: str | None
    turn_id: str
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    error_code: str | msgspec.UnsetType = msgspec.UNSET
    error_origin: str | msgspec.UnsetType = msgspec.UNSET
    retry_after_ms: int | msgspec.UnsetType = msgspec.UNSET
    tool_routing: WireRouting | msgspec.UnsetType = msgspec.UNSET


ROUTING_STARTED: Final = b'data: {"type":"tool_routing_started"}\n\n'
"""The SSE frame that comes before any delta when the router is about to be asked."""

_encode: Final = msgspec.json.Encoder().encode


def encode_deltas(pieces: Sequence[str]) -> bytes | Iterator[bytes]:
    """One SSE frame for each piece of text: all at once, or, when there is much, slice by slice."""
    if sum(map(len, pieces)) > _SLICE_CHARACTERS:
        return _encoded_deltas(pieces)
    return b"".join([b'data: {"type":"delta","text":' + _encode(text) + b"}\n\n" for text in pieces])


def _encoded_deltas(pieces: Sequence[str]) -> Iterator[bytes]:
    for text in pieces:
        yield b'data: {"type":"delta","text":"'
        yield from _encoded_slices(text)
        yield b'"}\n\n'


def encode_final(answer: TurnFinished) -> Iterator[bytes]:
    """The last SSE frame, in pieces when the answer is long."""
    return _answer(answer, b'data: {"type":"final",', b"}\n\n")


def encode_answer(answer: TurnFinished) -> Iterator[bytes]:
    """The JSON answer, in pieces when it is long."""
    return _answer(answer, b"{", b"}")


def _answer(answer: TurnFinished, opening: bytes, closing: bytes) -> Iterator[bytes]:
    opening += b'"message":{"role":"assistant","content":"'
    text = answer.text
    try:
        calls = _encode([_WireCalledTool(call.id, call.name, call.arguments) for call in answer.tool_calls])
    except (UnicodeEncodeError, RecursionError):
        # No adapter should let such a call through; the turn is paid for, and an answer beats a cut.
        _log.error("answer_not_encodable", turn_id=str(answer.turn_id))
        answer = replace(answer, tool_calls=(), failure=TurnFailure(FailureCode.INTERNAL))
        calls = b"[]"
    ending = b'","toolCalls":' + calls + b"}," + _encode(_rest(answer))[1:-1] + closing
    if len(text) <= _SLICE_CHARACTERS:
        yield opening + _encode(text)[1:-1] + ending
        return
    yield opening
    yield from _encoded_slices(text)
    yield ending


def _encoded_slices(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), _SLICE_CHARACTERS):
        yield _encode(text[start : start + _SLICE_CHARACTERS])[1:-1]


def _rest(answer: TurnFinished) -> _RestOfAnswer:
    usage, failure = answer.usage, answer.failure
    rest = _RestOfAnswer(
        usage=_WireUsage()
        if usage is None
        else _WireUsage(usage.tokens.input, usage.tokens.output, usage.cost.micros, usage.is_estimated),
        error=None,
        model_name=answer.model,
        turn_id=str(answer.turn_id),
    )
    if answer.is_truncated:
        rest.truncated = True
    if failure is not None:
        rest.error = sentence_for(failure)
        rest.error_code = failure.code.value
        rest.error_origin = failure.code.origin.value
        if failure.retry_after_ms is not None:
            rest.retry_after_ms = failure.retry_after_ms
    if answer.routing is not None:
        rest.tool_routing = WireRouting.of(answer.routing, answer.turn_id)
    return rest
