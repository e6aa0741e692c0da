"""What a fault is: data, and at most one small function for each stage of a call that it touches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from entrypoints.simulator.answer import Answer
from entrypoints.simulator.refusal import Refusal
from entrypoints.simulator.reply import End, Reply

Kind = Literal["stream", "json", "decisions", "lookup"]
"""What a fault can apply to: chat streamed, chat as one document, decisions, and the GET routes."""

Phase = Literal["accept", "refusal", "headers", "first-token", "tokens", "usage", "end", "document", "charge"]
"""Where in a call a fault hits, in the order of a call's life; `charge` is seen on the bill only."""

STREAM: Final[frozenset[Kind]] = frozenset({"stream"})
JSON_CHAT: Final[frozenset[Kind]] = frozenset({"json"})
CHAT: Final[frozenset[Kind]] = STREAM | JSON_CHAT
DECISIONS: Final[frozenset[Kind]] = frozenset({"decisions"})
DOCUMENTS: Final[frozenset[Kind]] = frozenset({"json", "decisions", "lookup"})
CALLS: Final[frozenset[Kind]] = CHAT | DECISIONS
EVERYTHING: Final[frozenset[Kind]] = CALLS | DOCUMENTS

Parameters = Mapping[str, Any]
Scalar = int | float | str | bool


@dataclass(slots=True)
class Arrival:
    """What happens to a request before it is accepted, and so before it is on the bill."""

    wait_ms: float = 0.0
    end: End = "complete"


@dataclass(frozen=True, slots=True)
class Fault:
    """One named fault. Parameters are listed with their defaults, whose types they keep."""

    name: str
    phase: Phase
    applies_to: frozenset[Kind]
    description: str
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    arrival: Callable[[Arrival, Parameters], None] | None = None
    refuse: Callable[[Parameters], Refusal] | None = None
    answer: Callable[[Answer, Parameters], None] | None = None
    reply: Callable[[Reply, Parameters], None] | None = None

    def view(self) -> dict[str, Any]:
        """The fault as GET /_faults lists it."""
        return {
            "name": self.name,
            "phase": self.phase,
            "applies_to": sorted(self.applies_to),
            "description": self.description,
            "parameters": dict(self.parameters),
        }


@dataclass(frozen=True, slots=True)
class Chosen:
    """A fault with its parameters, chosen for a call."""

    fault: Fault
    parameters: Parameters

    def on_arrival(self, arrival: Arrival) -> None:
        """Lets the fault change how the request is received."""
        if self.fault.arrival is not None:
            self.fault.arrival(arrival, self.parameters)

    def refusal(self) -> Refusal | None:
        """The refusal that the fault asks for, if any."""
        return None if self.fault.refuse is None else self.fault.refuse(self.parameters)

    def on_answer(self, answer: Answer) -> None:
        """Lets the fault change what is said."""
        if self.fault.answer is not None:
            self.fault.answer(answer, self.parameters)

    def on_reply(self, reply: Reply) -> None:
        """Lets the fault change what goes on the wire."""
        if self.fault.reply is not None:
            self.fault.reply(reply, self.parameters)
