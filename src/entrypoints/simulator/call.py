"""A call as received: the HTTP request, and what was read from it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from entrypoints.simulator.agent import text_of
from entrypoints.simulator.answer import ScriptedReply
from entrypoints.simulator.faults import Chosen, Kind

_MARK: Final = re.compile(r"\[mark:([^\]\s]{1,100})\]")


@dataclass(slots=True)
class Request:
    """One HTTP request, whole. Header names are lower case; `path` is without the query."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def bearer(self) -> str | None:
        """The key of the Authorization header, or None."""
        scheme, _, key = self.headers.get("authorization", "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" and key.strip() else None


@dataclass(slots=True)
class Call:
    """A request to a provider route, with the faults and the script that were chosen for it."""

    request: Request
    kind: Kind
    body: dict[str, Any] = field(repr=False)
    text: str = field(repr=False)
    """What marks are looked for in: the last user message, or all texts of a decision's state."""
    faults: Sequence[Chosen] = ()
    script: ScriptedReply | None = None

    def mark(self) -> str | None:
        """`x` where the text says `[mark:x]`: the bill keeps it, so that calls can be joined to turns."""
        found = _MARK.search(self.text)
        return found.group(1) if found else None


def decoded(body: bytes) -> dict[str, Any] | None:
    """The body as a JSON object, or None when it is none."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def last_user_text(body: dict[str, Any]) -> str:
    """The text of the last user message of a chat body."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return ""
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == "user":
            return text_of(message.get("content"))
    return ""


def texts_of(value: Any) -> list[str]:
    """Every string inside a JSON value, keys left out."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts_of(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts_of(inner)]
    return []
