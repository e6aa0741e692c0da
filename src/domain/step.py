"""A step: one call of the model inside an agent's loop, as the engine hands it over."""

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Generic, Protocol, Self, TypeVar

_T = TypeVar("_T")


class ToolCall(Protocol):
    """A tool the model asked for; engines send `id` back as they got it, or null."""

    @property
    def id(self) -> str | None: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...


class Message(Protocol):
    """One entry of the conversation. `role` is system, user, assistant or tool; only assistants have calls."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...
    @property
    def tool_calls(self) -> Sequence[ToolCall]: ...
    @property
    def tool_call_id(self) -> str | None: ...
    @property
    def name(self) -> str | None: ...


class Tool(Protocol):
    """An entry of the catalogue; `parameters` is a JSON schema that nobody here reads."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A call the model made in this turn, whole: its arguments parsed to an object."""

    id: str
    name: str
    arguments: Mapping[str, Any] = field(repr=False)


CONTEXT_CHARACTERS: Final = 1_500
REQUEST_CHARACTERS: Final = 6_000
RECENT_CALLS: Final = 6
RECENT_CALL_CHARACTERS: Final = 500
"""Of a call's arguments, and of its result (contract, section 5)."""
_NO_RESULT: Final = "(sem resultado)"

_AT_ONCE_CHARACTERS: Final = 128 * 1024
"""Of JSON made in one call, which keeps all threads waiting: some 0.5 ms."""
_VALUE_CHARACTERS: Final = 16
"""What a value counts for beside its text."""
_AT_ONCE_MEMBERS: Final = 1_000
_AT_ONCE_MESSAGES: Final = 5_000
_MOST_TEXTS: Final = 50_000
"""Some tenths of a second. What has more is of no shape that a model makes, and its length is found in one call."""
_AT_ONCE_LEVELS: Final = 8


@dataclass(frozen=True, slots=True)
class RecentCall:
    """A call of this run, cut: its arguments as compact JSON, and what came of it."""

    name: str
    arguments: str = field(repr=False)
    result: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of the model inside an agent's loop: what is asked, what was done for it, and what there is to do it.

    The run is what came after the last user message; without one, everything. Texts are cut.
    """

    agent: str
    catalogue: Sequence[Tool] = field(repr=False)
    """The tools the engine offers, its own objects in its order."""
    context: str = field(repr=False)
    """The first system message; empty without one."""
    request: str = field(repr=False)
    """The last user message; empty without one."""
    recent_calls: Sequence[RecentCall] = field(repr=False)
    """The run's last calls, oldest first."""
    previous_tool: str | None
    """The tool the run called last, on the catalogue or not."""

    @classmethod
    def read(cls, agent: str, messages: Sequence[Message], catalogue: Sequence[Tool]) -> Self:
        """The step that a conversation has come to; calls written as text are no calls.

        Takes as long as the arguments of the last calls are large, but lets other threads have their turn.
        """
        asked_at = next((at for at in reversed(range(len(messages))) if messages[at].role == "user"), None)
        run = messages if asked_at is None else messages[asked_at + 1 :]
        calls = [call for message in run if message.role == "assistant" for call in message.tool_calls]
        first_recent = max(0, len(calls) - RECENT_CALLS)
        results = _results(run)
        return cls(
            agent=agent,
            catalogue=catalogue,
            context=cut(
                next((message.content for message in messages if message.role == "system"), ""),
                CONTEXT_CHARACTERS,
            ),
            request="" if asked_at is None else cut(messages[asked_at].content, REQUEST_CHARACTERS),
            recent_calls=[
                RecentCall(
                    call.name,
                    _cut_json(call.arguments, RECENT_CALL_CHARACTERS),
                    cut(results.get(at, _NO_RESULT), RECENT_CALL_CHARACTERS),
                )
                for at, call in enumerate(calls[first_recent:], first_recent)
            ],
            previous_tool=calls[-1].name if calls else None,
        )


def is_read_at_once(messages: Sequence[Message]) -> bool:
    """Whether `Step.read` takes no longer than a turn of an event loop may: the last calls' arguments are small."""
    calls = (call for message in reversed(messages) for call in reversed(message.tool_calls))
    return len(messages) <= _AT_ONCE_MESSAGES and all(
        _fits_at_once(call.arguments) for call in islice(calls, RECENT_CALLS)
    )


def cut(text: str, limit: int) -> str:
    """Its first `limit` code points, and how many were dropped."""
    return text if len(text) <= limit else f"{text[:limit]}…[+{len(text) - limit}]"


def utf8_bytes(text: str) -> int:
    """How many bytes it has, lone surrogates included."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_bytes(value: Mapping[str, Any]) -> int:
    """How many bytes its compact JSON has in UTF-8. Takes as long as it is large, and lets other threads run."""
    found = 0
    for made, text in enumerate(_json_texts(value)):
        if made > _MOST_TEXTS:
            return utf8_bytes(_json(value))
        found += utf8_bytes(text)
    return found


class OpenCalls(Generic[_T]):
    """The calls that wait for their results, each with a mark by which whoever opened it knows it.

    A call with an id takes the next result with that id, one without the next result of its name without one.
    """

    def __init__(self) -> None:
        self._waiting: dict[tuple[bool, str], deque[_T]] = {}

    def open(self, calls: Iterable[tuple[ToolCall, _T]]) -> None:
        """Those of a message: they displace what still waits of an earlier one by the same id, or name."""
        opened: dict[tuple[bool, str], deque[_T]] = {}
        for call, mark in calls:
            key = (True, call.id) if call.id else (False, call.name)
            opened.setdefault(key, deque()).append(mark)
        self._waiting |= opened

    def close(self, result: Message) -> _T | None:
        """The mark of the call whose result this is; None for an orphan."""
        key = (True, result.tool_call_id) if result.tool_call_id else (False, result.name or "")
        waiting = self._waiting.get(key)
        return waiting.popleft() if waiting else None

    def __iter__(self) -> Iterator[_T]:
        """The marks of those that still wait."""
        return (mark for waiting in self._waiting.values() for mark in waiting)


def _results(run: Sequence[Message]) -> Mapping[int, str]:
    """What came of the run's calls, by the call's place among them; a call without a result is absent."""
    calls: OpenCalls[int] = OpenCalls()
    results: dict[int, str] = {}
    opened = 0
    for message in run:
        if message.role == "assistant":
            calls.open(zip(message.tool_calls, range(opened, opened + len(message.tool_calls)), strict=True))
            opened += len(message.tool_calls)
        elif message.role == "tool" and (at := calls.close(message)) is not None:
            results[at] = message.content
    return results


def _cut_json(arguments: Mapping[str, Any], limit: int) -> str:
    """Compact JSON, cut."""
    head, characters = "", 0
    for made, text in enumerate(_json_texts(arguments)):
        if made > _MOST_TEXTS:
            characters = len(_json(arguments))
            break
        if len(head) < limit:
            head += text[: limit - len(head)]
        characters += len(text)
    return head if characters <= limit else f"{head}…[+{characters - limit}]"


_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _json_texts(value: Mapping[str, Any]) -> Iterator[str]:
    """Its JSON in texts that are made quickly, however large or deep it is."""
    under_way = [_pieces(value)]
    while under_way:
        piece = next(under_way[-1], None)
        if piece is None:
            under_way.pop()
        elif isinstance(piece, str):
            yield piece
        else:
            under_way.append(_pieces(piece.value))


@dataclass(frozen=True, slots=True)
class _Inner:
    value: object


def _pieces(value: object) -> Iterator[str | _Inner]:
    """Its JSON, with values in it that are still to be made into JSON."""
    if _fits_at_once(value):
        yield _json(value)
    elif isinstance(value, str):
        yield '"'
        for start in range(0, len(value), _AT_ONCE_CHARACTERS):
            yield _json(value[start : start + _AT_ONCE_CHARACTERS])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        yield "{"
        items, comma = iter(value.items()), ""
        while members := dict(islice(items, _AT_ONCE_MEMBERS)):
            if _fits_at_once(members):
                yield comma + _json(members)[1:-1]
            else:
                for position, (key, member) in enumerate(members.items()):
                    yield "," if position else comma
                    yield _Inner(key)
                    yield ":"
                    yield _Inner(member)
            comma = ","
        yield "}"
    elif isinstance(value, list):
        yield "["
        for start in range(0, len(value), _AT_ONCE_MEMBERS):
            entries = value[start : start + _AT_ONCE_MEMBERS]
            if _fits_at_once(entries):
                yield ("," if start else "") + _json(entries)[1:-1]
            else:
                for position, entry in enumerate(entries, start):
                    yield "," if position else ""
                    yield _Inner(entry)
        yield "]"


def _fits_at_once(value: object) -> bool:
    """Whether it is small and flat. Looks a few levels deep and no further, so that asking on every level is linear."""
    room = _AT_ONCE_CHARACTERS
    level = [value]
    for _ in range(_AT_ONCE_LEVELS):
        below: list[object] = []
        for entry in level:
            if isinstance(entry, str):
                room -= len(entry)
            elif isinstance(entry, dict | list):
                room -= _VALUE_CHARACTERS * len(entry)
                if room < 0:
                    return False
                if isinstance(entry, dict):
                    room -= sum(map(len, entry))
                    below += entry.values()
                else:
                    below += entry
            if room < 0:
                return False
        if not below:
            return True
        level = below
    return False
