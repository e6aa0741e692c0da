"""What a call is answered with, before it takes a wire form, and the JSON in which a script says so."""

from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

import msgspec


@dataclass(slots=True)
class ToolCall:
    """One call. `arguments` is the text that goes on the wire, JSON or not."""

    name: str
    arguments: str
    id: str


@dataclass(slots=True)
class Answer:
    """A chat answer. Times in milliseconds; costs in exact USD, None where the price table decides."""

    pieces: list[str] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    is_refusal: bool = False
    """The pieces go out as `refusal` and not as `content`."""
    finish_reason: str | None = "stop"
    native_finish_reason: str | None = "stop"
    argument_pieces: int = 2
    first_token_ms: float = 0.0
    between_ms: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    cost: Decimal | None = None
    billed_cost: Decimal | None = None
    offered: str = "procurar"
    """The first offered tool: faults about tool calls call it when the answer has none."""


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call in a script. Arguments as an object, or as the very text to send."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None


class ScriptedReply(msgspec.Struct, forbid_unknown_fields=True):
    """The `reply` of POST /_script. What is left out is left to the default agent or the price table."""

    text: str | list[str] | None = None
    tool_calls: list[ScriptedCall] | None = None
    reasoning: str | list[str] = []
    refusal: str | list[str] | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    pieces: int | None = None
    """Cut the text (or the arguments) into so many pieces of about one size."""
    first_token_ms: float | None = None
    between_ms: float | None = None
    usage: dict[str, Any] = {}
    """Laid over the usage that is counted; token counts given here are also billed."""
    cost: Decimal | None = None
    """`usage.cost` and the charge of a call that ends by itself."""
    billed_cost: Decimal | None = None
    """The charge alone: the truth that GET /generation tells when usage said something else."""
    choice: str | None = None
    """Decisions: the label every choice question is answered with."""
    confidence: float | None = None
    probabilities: dict[str, float] | None = None
    answers: dict[str, Any] | None = None
    """Decisions: sent as they are in place of all answers."""

    def says_something(self) -> bool:
        """Whether it has a chat answer of its own, or only changes the default agent's pace and price."""
        return self.text is not None or self.tool_calls is not None or self.refusal is not None

    def side(self) -> Literal["chat", "decisions"] | None:
        """The kind of call it is for, where it tells."""
        if self.choice is not None or self.answers is not None or self.probabilities is not None:
            return "decisions"
        return "chat" if self.says_something() else None


def scripted_answer(reply: ScriptedReply, default: Answer) -> Answer:
    """The chat answer a script asks for, on top of what the default agent would say."""
    answer = default
    if reply.says_something():
        calls = [
            ToolCall(
                name=call.name,
                arguments=call.arguments
                if isinstance(call.arguments, str)
                else msgspec.json.encode(call.arguments).decode(),
                id=call.id or f"call_{at:04d}_{call.name[:40]}",
            )
            for at, call in enumerate(reply.tool_calls or [])
        ]
        said = reply.refusal if reply.refusal is not None else reply.text
        finish = "tool_calls" if calls else "stop"
        answer = Answer(
            pieces=_listed(said),
            tool_calls=calls,
            is_refusal=reply.refusal is not None,
            finish_reason=finish,
            native_finish_reason=finish,
            first_token_ms=default.first_token_ms,
            between_ms=default.between_ms,
        )
    answer.reasoning = _listed(reply.reasoning)
    if reply.finish_reason is not None:
        answer.finish_reason = answer.native_finish_reason = reply.finish_reason
    if reply.native_finish_reason is not None:
        answer.native_finish_reason = reply.native_finish_reason
    if reply.pieces is not None:
        answer.argument_pieces = max(1, reply.pieces)
        if answer.pieces:
            answer.pieces = cut("".join(answer.pieces), reply.pieces)
    if reply.first_token_ms is not None:
        answer.first_token_ms = reply.first_token_ms
    if reply.between_ms is not None:
        answer.between_ms = reply.between_ms
    answer.usage = reply.usage
    answer.cost = reply.cost
    answer.billed_cost = reply.billed_cost
    return answer


def ensure_text(answer: Answer) -> None:
    """Makes the answer a text of several pieces, for faults that need one to break."""
    answer.tool_calls = []
    if len("".join(answer.pieces)) < 12 or len(answer.pieces) < 2:
        answer.pieces = ["Está ", "feito — ", "é só isto."]
    answer.finish_reason = answer.native_finish_reason = "stop"


def cut(text: str, pieces: int) -> list[str]:
    """The text in at most `pieces` non-empty pieces of about one size."""
    pieces = max(1, min(pieces, len(text)))
    edges = [len(text) * at // pieces for at in range(pieces + 1)]
    return [text[start:end] for start, end in pairwise(edges)] if text else []


def _listed(text: str | list[str] | None) -> list[str]:
    if text is None or text == "":
        return []
    return [text] if isinstance(text, str) else list(text)
