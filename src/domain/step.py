"""A step: one call of the model inside an agent's loop, as the engine hands it over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


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
