"""A step: one call of the model inside an agent's loop, as the engine hands it over."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self


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
_SLICE_CHARACTERS: Final = 128 * 1024


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

        Raises RecursionError where arguments nest deeper than what is left of the stack.
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


def cut(text: str, limit: int) -> str:
    """Its first `limit` code points, and how many were dropped."""
    return text if len(text) <= limit else f"{text[:limit]}…[+{len(text) - limit}]"


def _results(run: Sequence[Message]) -> Mapping[int, str]:
    """What came of the run's calls, by the call's place among them; a call without a result is absent.

    A call with an id takes the next result with that id, one without the next result of its name without one.
    """
    waiting: dict[tuple[bool, str], deque[int]] = {}
    results: dict[int, str] = {}
    calls = 0
    for message in run:
        if message.role == "assistant":
            for call in message.tool_calls:
                key = (True, call.id) if call.id else (False, call.name)
                waiting.setdefault(key, deque()).append(calls)
                calls += 1
        elif message.role == "tool":
            key = (True, message.tool_call_id) if message.tool_call_id else (False, message.name or "")
            if queue := waiting.get(key):
                results[queue.popleft()] = message.content
    return results


def _cut_json(arguments: Mapping[str, Any], limit: int) -> str:
    """Compact JSON, cut; a long text right under the top, such as a file's, is encoded slice by slice."""
    head, characters = "", 0
    for part in _json_parts(arguments):
        head += part[: limit - len(head)]
        characters += len(part)
    return head if characters <= limit else f"{head}…[+{characters - limit}]"


def _json_parts(arguments: Mapping[str, Any]) -> Iterator[str]:
    yield "{"
    for position, (key, value) in enumerate(arguments.items()):
        yield ("," if position else "") + _json(key) + ":"
        if isinstance(value, str) and len(value) > _SLICE_CHARACTERS:
            yield '"'
            for start in range(0, len(value), _SLICE_CHARACTERS):
                yield _json(value[start : start + _SLICE_CHARACTERS])[1:-1]
            yield '"'
        else:
            yield _json(value)
    yield "}"


_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
