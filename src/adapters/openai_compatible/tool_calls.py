"""Tool calls, put together from the pieces in which they come."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import msgspec

from adapters.openai_compatible.frames import CallPart
from adapters.openai_compatible.text import whole_characters
from domain.step import CalledTool

_DEEPEST_ARGUMENTS: Final = 256
"""Engines send calls back inside a request, and one that nests deeper than 900 is refused from then on."""
_BRACKETS: Final = re.compile(r"[\[{]")


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{uuid4().hex}"


@dataclass(slots=True, repr=False)
class _Call:
    id: str | None
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    def add(self, part: CallPart) -> None:
        function = part.function
        if self.id is None and part.id:
            self.id = part.id
        if function is None:
            return
        if function.name and function.name != self.name:
            self.name += function.name
        if isinstance(function.arguments, dict):
            self.arguments.append(json.dumps(function.arguments, ensure_ascii=False))
        elif function.arguments:
            self.arguments.append(function.arguments)


class ToolCalls:
    """The calls of one answer, in the order in which they began."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add_parts(self, parts: Sequence[CallPart]) -> None:
        """Pieces, as one frame of a stream brings them."""
        for position, part in enumerate(parts):
            call = self._continued(part, position)
            if call is None:
                call = self._begin(part)
            elif part.index is not None:
                self._by_index[part.index] = call
            call.add(part)
            if part.id and part.id == call.id:
                self._by_id.setdefault(part.id, call)

    def add_whole(self, parts: Sequence[CallPart]) -> None:
        """The calls of a whole message: each entry is one."""
        for part in parts:
            self._begin(part).add(part)

    def finished(self) -> tuple[Sequence[CalledTool], bool]:
        """The calls, and whether any of them was cut: one that was has `{}` for arguments, or is left out for want of a
        name."""
        finished: list[CalledTool] = []
        is_cut = False
        for call in self._calls:
            arguments = _parsed("".join(call.arguments))
            is_cut = is_cut or arguments is None or not call.name
            if call.name:
                finished.append(
                    CalledTool(call.id or new_call_id(), whole_characters(call.name), arguments or {})
                )
        return finished, is_cut

    def generated(self) -> Sequence[str]:
        """Names and raw arguments, as far as they came."""
        return [
            whole_characters(text) for call in self._calls for text in (call.name, *call.arguments) if text
        ]

    def _begin(self, part: CallPart) -> _Call:
        is_taken = part.id in self._by_id
        call = _Call(
            new_call_id() if is_taken else part.id or None
        )  # two of one id: results could not be told apart
        self._calls.append(call)
        if part.id and not is_taken:
            self._by_id[part.id] = call
        if part.index is not None:
            self._by_index[part.index] = call
        return call

    def _continued(self, part: CallPart, position: int) -> _Call | None:
        """The call that this piece belongs to; None: it begins one."""
        said = part.function.name if part.function is not None else None
        if part.index is not None and (call := self._by_index.get(part.index)) is not None:
            is_another_id = (
                part.id and call.id is not None and part.id != call.id and self._by_id.get(call.id) is call
            )
            is_another_name = said and said != call.name and call.arguments
            return None if is_another_id or is_another_name else call
        if part.id and (call := self._by_id.get(part.id)) is not None:
            return None if part.index is not None and said else call
        if part.index is not None or part.id or not self._calls or position > 0:
            return None
        last = self._calls[-1]
        is_repetition = said == last.name and not _is_whole(last.arguments)
        return last if not said or is_repetition else None


def _is_whole(fragments: Sequence[str]) -> bool:
    """Whether they make an object. Joined and parsed only if they end like one: else each fragment would cost all."""
    end = next((fragment.rstrip() for fragment in reversed(fragments) if fragment.strip()), "")
    return end.endswith("}") and _parsed_object("".join(fragments)) is not None


def _parsed(text: str) -> dict[str, Any] | None:
    """The arguments; None where the text does not parse to an object. No arguments at all are an empty object."""
    text = text.strip()
    return {} if text in ("", "null") else _parsed_object(text)


def _parsed_object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        try:
            value = json.loads(whole_characters(text), parse_constant=_refuse)
            value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False, allow_nan=False)))
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, dict) or _is_too_deep(text, value):
        return None
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_too_deep(text: str, value: dict[str, Any]) -> bool:
    if sum(1 for _ in _BRACKETS.finditer(text)) <= _DEEPEST_ARGUMENTS:
        return False
    level: list[Any] = [value]
    for _ in range(_DEEPEST_ARGUMENTS):
        level = [
            child
            for entry in level
            for child in (entry.values() if isinstance(entry, dict) else entry)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
