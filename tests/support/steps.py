"""Conversations and catalogues as plain data: what a step is read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from domain.step import Step


@dataclass(frozen=True)
class ATool:
    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ACall:
    name: str
    id: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    role: str
    content: str = ""
    tool_calls: Sequence[ACall] = ()
    tool_call_id: str | None = None
    name: str | None = None


def tools(*names: str) -> list[ATool]:
    """A catalogue of tools that are described by nothing but their names."""
    return [ATool(name) for name in names]


def a_step(
    catalogue: Sequence[ATool] | None = None, *, messages: Sequence[Said] = (), agent: str = "dev-api"
) -> Step:
    """What these messages have come to."""
    return Step.read(agent, messages, tools("ler", "editar", "rodar") if catalogue is None else catalogue)
