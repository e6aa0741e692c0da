"""The control routes, whose names begin with an underscore: bill, faults, requests, scripts, clock, reset."""

from typing import Any

import msgspec

from entrypoints.simulator.call import Request
from entrypoints.simulator.faults import FAULTS
from entrypoints.simulator.refusal import refused
from entrypoints.simulator.reply import Reply
from entrypoints.simulator.state import Script, State


class ClockChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /_clock, all in milliseconds."""

    advance_ms: float = 0
    generation_delay_ms: float | None = None
    """From now on GET /generation knows a call so long after its end; calls accepted before keep their delay."""


def control_reply(state: State, request: Request) -> Reply:
    """Answers a control route. CallRefusedError for an unknown one, or a body that is not understood."""
    match request.method, request.path:
        case "GET", "/_bill":
            return Reply(document=state.bill.view())
        case "GET", "/_faults":
            return Reply(document={"faults": [fault.view() for fault in FAULTS.values()]})
        case "GET", "/_requests":
            return Reply(document={"requests": list(state.requests)})
        case "POST", "/_script":
            state_scripts = _read(request, Script | list[Script])
            return Reply(document=add_scripts(state, state_scripts))
        case "POST", "/_clock":
            return Reply(document=move_clock(state, _read(request, ClockChange)))
        case "POST", "/_reset":
            state.reset()
            return Reply(document={"reset": True})
        case _:
            raise refused(404, f"no control route {request.method} {request.path}")


def add_scripts(state: State, scripts: Script | list[Script]) -> dict[str, Any]:
    """What POST /_script does. CallRefusedError names the script that is wrong; then none is taken."""
    listed = scripts if isinstance(scripts, list) else [scripts]
    try:
        state.add_scripts(listed)
    except ValueError as error:
        raise refused(400, str(error)) from None
    return {"accepted": len(listed), "waiting": state.scripts_waiting()}


def move_clock(state: State, change: ClockChange) -> dict[str, Any]:
    """What POST /_clock does. CallRefusedError for a step backwards."""
    try:
        state.clock.advance(change.advance_ms)
    except ValueError as error:
        raise refused(400, str(error)) from None
    if change.generation_delay_ms is not None:
        state.generation_delay_ms = change.generation_delay_ms
    return {"now_s": state.clock.now_s(), "generation_delay_ms": state.generation_delay_ms}


def _read(request: Request, kind: Any) -> Any:
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(400, f"{request.path}: {error}") from None
