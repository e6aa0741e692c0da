"""What the dialect sends, as far as it is read: typed and fast first, forgiving where that does not work."""

import codecs
import json
import json.scanner
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from adapters.openai_compatible.text import whole_characters
from adapters.transport.figures import ABSENT

LARGE_BYTES: Final = 1024 * 1024
"""A frame of more is decoded in a thread."""
_FEW_VALUES: Final = 100_000
"""Of a large frame, its text's own commas included: more are not built in one go, which keeps all threads waiting."""
_MOST_VALUES: Final = 1_000_000
"""Of a large frame; a model's longest answer is far from having so many."""
_MOST_MEMBERS: Final = 10_000
"""Of an object in a large frame whose values are many, or whose types do not fit."""
_LONGEST_MENDED_BYTES: Final = 8 * 1024 * 1024
"""Of a large frame that is no UTF-8."""
_LARGEST_INDEX: Final = 2**31 - 1


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

    cached_tokens: msgspec.Raw = ABSENT


class CompletionDetails(msgspec.Struct):
    """Parts of the completion's tokens."""

    reasoning_tokens: msgspec.Raw = ABSENT


class UsagePart(msgspec.Struct):
    """The account of a call, its figures as sent."""

    prompt_tokens: msgspec.Raw = ABSENT
    completion_tokens: msgspec.Raw = ABSENT
    total_tokens: msgspec.Raw = ABSENT
    cost: msgspec.Raw = ABSENT
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
    """The frame, or None for what is no JSON object, or a large one. Types that do not fit count as not said."""
    if len(data) > LARGE_BYTES or not data.startswith(b"{"):
        return None
    return _typed(data) or _forgiven(data.decode("utf-8", "replace"), _forgiving_decoder)


def read_large_frame(data: bytes) -> Frame | None:
    """As `read_frame`, of any size; None for over a million values too. For a thread: it may take seconds, but lets
    others have their turn every tenth of one.
    """
    if not data.startswith(b"{"):
        return None
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > _MOST_VALUES:
        return None
    frame = _typed(data) if values <= _FEW_VALUES else None
    if frame is not None:
        return frame
    text = _large_text(data)
    return None if text is None else _forgiven(text, _PatientDecoder())


def _typed(data: bytes) -> Frame | None:
    try:
        frame = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return _unwrapped(frame) if isinstance(frame.provider, dict) else frame


def _forgiven(text: str, decoder: json.JSONDecoder) -> Frame | None:
    try:
        document = decoder.decode(text)
    except (ValueError, RecursionError):
        return None
    return _unwrapped(_frame(document)) if isinstance(document, dict) else None


def _large_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        if len(data) > _LONGEST_MENDED_BYTES:
            return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # in slices, for mending takes long
    slices = [data[at : at + LARGE_BYTES] for at in range(0, len(data), LARGE_BYTES)]
    return "".join(map(decoder.decode, slices)) + decoder.decode(b"", final=True)


class _Number(float):
    """A float that remembers its text."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _no_number(_constant: str) -> None:
    """NaN and the infinities are no JSON."""


_forgiving_decoder: Final = json.JSONDecoder(strict=False, parse_float=_Number, parse_constant=_no_number)


def _few_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"an object of {len(members)} members")
    return dict(members)


class _PatientDecoder(json.JSONDecoder):
    """Takes each value in a step of the interpreter's, between any two of which another thread can have its turn."""

    def __init__(self) -> None:
        super().__init__(
            strict=False, parse_float=_Number, parse_constant=_no_number, object_pairs_hook=_few_members
        )
        # The standard library's own scanner without C, which its stubs leave out.
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


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
    prompt, completion = document.get("prompt_tokens_details"), document.get("completion_tokens_details")
    return UsagePart(
        prompt_tokens=_figure(document.get("prompt_tokens")),
        completion_tokens=_figure(document.get("completion_tokens")),
        total_tokens=_figure(document.get("total_tokens")),
        cost=_figure(document.get("cost")),
        is_byok=document.get("is_byok") is True,
        prompt_tokens_details=(
            PromptDetails(_figure(prompt.get("cached_tokens"))) if isinstance(prompt, dict) else None
        ),
        completion_tokens_details=(
            CompletionDetails(_figure(completion.get("reasoning_tokens")))
            if isinstance(completion, dict)
            else None
        ),
    )


def _figure(value: object) -> msgspec.Raw:
    if isinstance(value, _Number):
        return msgspec.Raw(value.text.encode())
    return ABSENT if _number(value) is None else msgspec.Raw(str(value).encode())


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
    return int(number) if number is not None and abs(number) < _LARGEST_INDEX else None
