"""What the dialect sends, as far as it is read: typed and fast first, forgiving where that does not work."""

import json
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from adapters.openai_compatible.text import whole_characters

_MAX_COUNT: Final = 2**31 - 1
_MAX_CHARGE_USD: Final = 1_000_000
_LONGEST_NUMBER: Final = 100
_LARGE_BYTES: Final = 1024 * 1024
"""A frame of more is decoded only if its types fit and its values are few: it would hold the event loop."""
_MOST_VALUES: Final = 1_000_000
"""Of a large frame; a model's longest answer is far from having so many, its text's own commas included."""


class _Unseen(msgspec.Struct):
    """Its repr names the type alone: what people and models say belongs in no log."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"


class FunctionPart(_Unseen):
    """A piece of a called function. `arguments` is JSON text, or, where the provider parsed it, an object."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallPart(_Unseen):
    """A piece of a tool call."""

    index: int | None = None
    id: str | None = None
    function: FunctionPart | None = None


class ReasoningPart(_Unseen):
    """A piece of reasoning in the structured form."""

    text: str | None = None
    summary: str | None = None
    data: str | None = None


class Delta(_Unseen):
    """What a frame adds to the answer; a whole message has the same fields."""

    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[ReasoningPart] | None = None
    tool_calls: list[CallPart] | None = None


class Choice(_Unseen):
    """One of the answers; only the first is asked for."""

    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    error: dict[str, Any] | str | None = None


class PromptDetails(msgspec.Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int | float | None = None


class CompletionDetails(msgspec.Struct):
    """Parts of the completion's tokens."""

    reasoning_tokens: int | float | None = None


class UsagePart(msgspec.Struct):
    """The account of a call, as sent. `cost` keeps its text: a binary float would not be what was charged."""

    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None
    total_tokens: int | float | None = None
    cost: msgspec.Raw = msgspec.Raw(b"null")
    is_byok: bool | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Frame(_Unseen):
    """One event of a stream, or a whole answer."""

    id: str | None = None
    model: str | None = None
    provider: str | dict[str, Any] | None = None
    choices: list[Choice] | None = None
    usage: UsagePart | None = None
    error: dict[str, Any] | str | None = None


_decoder: Final = msgspec.json.Decoder(Frame)


def read_frame(data: bytes) -> Frame | None:
    """The frame, or None for what is no JSON object, or too much of one. Types that do not fit count as not said."""
    if not data.startswith(b"{"):
        return None
    is_large = len(data) > _LARGE_BYTES
    if is_large and data.count(b",") + data.count(b"[") + data.count(b"{") > _MOST_VALUES:
        return None
    try:
        frame = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    else:
        return _unwrapped(frame) if isinstance(frame.provider, dict) else frame
    if is_large:
        return None
    try:
        document = _forgiving_decoder.decode(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return _unwrapped(_frame(document)) if isinstance(document, dict) else None


def charge(usage: UsagePart) -> Decimal | None:
    """USD by the decimal text of `cost`; None unless it is a JSON number from 0 to a million."""
    text = bytes(usage.cost).decode("ascii", "replace").strip()
    if len(text) > _LONGEST_NUMBER or not text or text[0] not in "0123456789-":
        return None
    try:
        usd = Decimal(text)
    except InvalidOperation:
        return None
    return abs(usd) if 0 <= usd <= _MAX_CHARGE_USD else None


def count(value: float | None) -> int | None:
    """A number of tokens; None for what cannot be one."""
    if value is None or not 0 <= value <= _MAX_COUNT or value != int(value):
        return None
    return int(value)


class _Number(float):
    """A float that remembers its text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _no_number(_constant: str) -> None:
    """NaN and the infinities are no JSON."""


_forgiving_decoder: Final = json.JSONDecoder(strict=False, parse_float=_Number, parse_constant=_no_number)


def _unwrapped(frame: Frame) -> Frame:
    """Some failures come with everything nested where the upstream provider's name should be."""
    if not isinstance(frame.provider, dict):
        return frame
    inner = _frame(frame.provider)
    if (
        frame.choices is None
        and frame.error is None
        and (inner.choices is not None or inner.error is not None)
    ):
        return inner
    frame.provider = _text(frame.provider.get("name"))
    return frame


def _frame(document: dict[str, Any]) -> Frame:
    choices, provider = document.get("choices"), document.get("provider")
    return Frame(
        id=_text(document.get("id")),
        model=_text(document.get("model")),
        provider=provider if isinstance(provider, str | dict) else None,
        choices=[_choice(choice) for choice in _objects(choices)] if isinstance(choices, list) else None,
        usage=_usage(document.get("usage")),
        error=_error(document.get("error")),
    )


def _choice(document: dict[str, Any]) -> Choice:
    return Choice(
        index=_whole(document.get("index")),
        delta=_delta(document.get("delta")),
        message=_delta(document.get("message")),
        finish_reason=_text(document.get("finish_reason")),
        native_finish_reason=_text(document.get("native_finish_reason")),
        error=_error(document.get("error")),
    )


def _delta(document: object) -> Delta | None:
    if not isinstance(document, dict):
        return None
    details, calls = document.get("reasoning_details"), document.get("tool_calls")
    return Delta(
        content=_content(document.get("content")),
        refusal=_text(document.get("refusal")),
        reasoning=_whole_text(document.get("reasoning")),
        reasoning_content=_whole_text(document.get("reasoning_content")),
        reasoning_details=[
            ReasoningPart(
                _whole_text(part.get("text")), _whole_text(part.get("summary")), _whole_text(part.get("data"))
            )
            for part in _objects(details)
        ],
        tool_calls=[
            CallPart(_whole(call.get("index")), _whole_text(call.get("id")), _function(call.get("function")))
            for call in _objects(calls)
        ],
    )


def _function(document: object) -> FunctionPart | None:
    if not isinstance(document, dict):
        return None
    arguments = document.get("arguments")
    if arguments is not None and not isinstance(arguments, str | dict):
        arguments = json.dumps(arguments)
    return FunctionPart(_text(document.get("name")), arguments)


def _usage(document: object) -> UsagePart | None:
    if not isinstance(document, dict):
        return None
    cost, prompt, completion = (
        document.get(key) for key in ("cost", "prompt_tokens_details", "completion_tokens_details")
    )
    cost_text = cost.text if isinstance(cost, _Number) else str(cost) if _number(cost) is not None else "null"
    return UsagePart(
        prompt_tokens=_number(document.get("prompt_tokens")),
        completion_tokens=_number(document.get("completion_tokens")),
        total_tokens=_number(document.get("total_tokens")),
        cost=msgspec.Raw(cost_text.encode()),
        is_byok=document.get("is_byok") is True,
        prompt_tokens_details=(
            PromptDetails(_number(prompt.get("cached_tokens"))) if isinstance(prompt, dict) else None
        ),
        completion_tokens_details=(
            CompletionDetails(_number(completion.get("reasoning_tokens")))
            if isinstance(completion, dict)
            else None
        ),
    )


def _error(value: object) -> dict[str, Any] | str | None:
    """Anything but null, false and emptiness is an error, whatever its type."""
    if isinstance(value, dict | str):
        return value or None
    return str(value) if value else None


def _content(value: object) -> str | None:
    """Text, or the text of its parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) or "" for part in _objects(value))
    return _text(value)


def _objects(value: object) -> Iterable[dict[str, Any]]:
    return (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole_text(value: object) -> str | None:
    """Text that no other frame continues: half a surrogate pair has nothing to wait for."""
    return whole_characters(value) if isinstance(value, str) else None


def _number(value: object) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    number = _number(value)
    return int(number) if number is not None and abs(number) < _MAX_COUNT else None
