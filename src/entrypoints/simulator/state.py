"""What a running simulator remembers: clock, bill, scripts, requests; and how it was told to behave."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from entrypoints.simulator.answer import ScriptedReply
from entrypoints.simulator.bill import Bill, last_four
from entrypoints.simulator.call import Call, Request
from entrypoints.simulator.clock import Clock
from entrypoints.simulator.faults import Chosen, Kind, UnknownFaultError, parse_faults

REQUESTS_KEPT: Final = 500
_BODY_KEPT_BYTES: Final = 128 * 1024
_SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "x-provider-api-keys"})


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of POST /_script: what the next calls that fit are answered with."""

    times: int | None = 1
    """For how many calls; null for all until the next reset."""
    mark: str | None = None
    """Only for calls whose last user message (decisions: whose state) contains this."""
    path: Literal["chat", "decisions", "lookup"] | None = None
    """Only for calls of this kind; null for chat and decisions alike."""
    fault: str = ""
    """Faults in the notation of X-Simulator-Fault."""
    reply: ScriptedReply | None = None


class State:
    """Everything the routes read and change. Delays in milliseconds."""

    def __init__(
        self,
        *,
        faults: str = "",
        first_token_ms: float = 0,
        between_ms: float = 0,
        generation_delay_ms: float = 25_000,
    ) -> None:
        """Raises UnknownFaultError when `faults`, applied to every call that they fit, are not in the table."""
        self.clock = Clock()
        self.bill = Bill(self.clock)
        self.requests: deque[dict[str, Any]] = deque(maxlen=REQUESTS_KEPT)
        self.run_faults = parse_faults(faults)
        self.first_token_ms = first_token_ms
        self.between_ms = between_ms
        self._default_generation_delay_ms = generation_delay_ms
        self.generation_delay_ms = generation_delay_ms
        self._scripts: list[tuple[Script, tuple[Chosen, ...]]] = []

    def add_scripts(self, scripts: Sequence[Script]) -> None:
        """Adds scripts after those that wait. All or none: ValueError says what is wrong with which."""
        checked = []
        for at, script in enumerate(scripts):
            try:
                checked.append((script, parse_faults(script.fault)))
            except UnknownFaultError as error:
                raise ValueError(f"script {at}: {error}") from None
            if script.times is not None and script.times < 1:
                raise ValueError(f"script {at}: times must be 1 or more, or null, not {script.times}")
            for name, count in (script.reply.usage if script.reply else {}).items():
                if name.endswith("_tokens") and (not isinstance(count, int) or count < 0):
                    raise ValueError(f"script {at}: usage.{name} must be a whole number, not {count!r}")
        self._scripts.extend(checked)

    def scripts_waiting(self) -> int:
        """How many scripts have calls left."""
        return len(self._scripts)

    def prepare(self, request: Request, kind: Kind, body: dict[str, Any], text: str) -> Call:
        """Chooses faults and script: the header's faults, else the first fitting script's, else the run's.

        UnknownFaultError when the header names what is not in the table or does not apply to this kind of call.
        """
        script, faults = self._take_script(kind, text)
        header = request.headers.get("x-simulator-fault")
        if header is not None:
            faults = parse_faults(header)
            for chosen in faults:
                if kind not in chosen.fault.applies_to:
                    fits = ", ".join(sorted(chosen.fault.applies_to))
                    raise UnknownFaultError(
                        f"fault {chosen.fault.name} applies to {fits}, and this is {kind}"
                    )
        elif not faults:
            faults = tuple(chosen for chosen in self.run_faults if kind in chosen.fault.applies_to)
        return Call(request, kind, body, text, faults, script.reply if script else None)

    def remember(self, call: Call, generation_id: str | None) -> None:
        """Keeps the request for GET /_requests, without its secrets."""
        request, body = call.request, call.body
        kept = len(request.body) <= _BODY_KEPT_BYTES
        questions = body.get("questions")
        self.requests.append(
            {
                "method": request.method,
                "path": request.path,
                "query": request.query,
                "headers": {name: _shown(name, value) for name, value in request.headers.items()},
                "body_bytes": len(request.body),
                "body": body if kept else None,
                "model": body.get("model"),
                "tools": [_tool_name(tool) for tool in body.get("tools") or ()],
                "options": {name: _labels(question) for name, question in questions.items()}
                if isinstance(questions, dict)
                else {},
                "mark": call.mark(),
                "faults": [chosen.fault.name for chosen in call.faults],
                "generation_id": generation_id,
            }
        )

    def reset(self) -> None:
        """Forgets bill, requests and scripts, and puts the clock back. Calls that run stay on the bill."""
        self.bill.clear()
        self.requests.clear()
        self._scripts.clear()
        self.clock.reset()
        self.generation_delay_ms = self._default_generation_delay_ms

    def _take_script(self, kind: Kind, text: str) -> tuple[Script | None, tuple[Chosen, ...]]:
        for at, (script, faults) in enumerate(self._scripts):
            if _fits(script, kind, text) and all(kind in chosen.fault.applies_to for chosen in faults):
                if script.times is not None:
                    script.times -= 1
                    if script.times == 0:
                        del self._scripts[at]
                return script, faults
        return None, ()


def _fits(script: Script, kind: Kind, text: str) -> bool:
    side = "chat" if kind in ("stream", "json") else kind
    wanted = script.path or (script.reply.side() if script.reply else None)
    if wanted != side and not (wanted is None and side != "lookup"):
        return False
    return script.mark is None or script.mark in text


def _shown(name: str, value: str) -> str:
    if name not in _SECRET_HEADERS:
        return value
    return f"Bearer {last_four(value)}" if value.lower().startswith("bearer ") else last_four(value)


def _tool_name(tool: Any) -> str | None:
    match tool:
        case {"function": {"name": str(name)}}:
            return name
        case _:
            return None


def _labels(question: Any) -> list[str]:
    match question:
        case {"criteria": dict(criteria)}:
            return list(criteria)
        case _:
            return []
