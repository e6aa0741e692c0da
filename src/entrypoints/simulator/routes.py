"""From a request to a reply: which route, which faults, refused or run. No socket is touched here."""

from collections.abc import Callable
from typing import Any, Final

from entrypoints.simulator import lookups
from entrypoints.simulator.bill import BilledCall
from entrypoints.simulator.call import Call, Request, decoded, last_user_text, texts_of
from entrypoints.simulator.chat import chat_answer, chat_model, chat_reply, check_chat
from entrypoints.simulator.control import control_reply
from entrypoints.simulator.decisions import check_decisions, decisions_model, decisions_reply
from entrypoints.simulator.faults import Kind, UnknownFaultError
from entrypoints.simulator.prices import Model
from entrypoints.simulator.refusal import CallRefusedError, Refusal, refused
from entrypoints.simulator.reply import Reply
from entrypoints.simulator.state import State

CHAT_PATH: Final = "/api/v1/chat/completions"
DECISIONS_PATHS: Final = ("/api/alpha/decisions", "/api/v1/systemone")
_LOOKUPS: Final[dict[str, Callable[[State, Request], dict[str, Any]]]] = {
    "/api/v1/models": lambda _, request: lookups.models(request),
    "/api/v1/generation": lookups.generation,
    "/api/v1/key": lookups.key,
    "/api/v1/credits": lookups.credits,
}
_OPEN_PATH: Final = "/api/v1/models"


def received(state: State, request: Request) -> Call | Reply:
    """The call that a request makes, or the reply to what is none: a control route, an unknown path or fault."""
    try:
        if request.path.startswith("/_") and request.path != "/_redirected":
            return control_reply(state, request)
        return _call(state, request)
    except CallRefusedError as error:
        return error.refusal.reply()


def answered(state: State, call: Call) -> Reply:
    """Runs or refuses a call, and puts it on the bill; faults have been applied to the reply."""
    if call.kind == "lookup":
        reply = _look_up(state, call)
        state.remember(call, None)
    else:
        reply = _run(state, call)
        state.remember(call, reply.entry.id if reply.entry else None)
    return reply


def _call(state: State, request: Request) -> Call:
    kind: Kind
    match request.method, request.path:
        case "POST", path if path == CHAT_PATH:
            body = decoded(request.body)
            kind = "stream" if body and body.get("stream") is True else "json"
            text = last_user_text(body or {})
        case "POST", path if path in DECISIONS_PATHS:
            body, kind = decoded(request.body), "decisions"
            text = "\n".join(texts_of((body or {}).get("state")))
        case "GET", path if path in _LOOKUPS:
            body, kind, text = {}, "lookup", ""
        case _:
            state.remember(Call(request, "lookup", {}, ""), None)
            raise refused(404, "Not Found")
    try:
        return state.prepare(request, kind, body or {}, text)
    except UnknownFaultError as error:
        raise refused(400, f"X-Simulator-Fault: {error}") from None


def _check_key(request: Request) -> str:
    bearer = request.bearer()
    if bearer is None:
        raise refused(401, "Missing Authentication header")
    if not bearer.startswith("sk-or-") or bearer.endswith("-revoked"):
        raise refused(401, "User not found.")
    return bearer


def _look_up(state: State, call: Call) -> Reply:
    try:
        _refuse_by_fault(call)
        if call.request.path != _OPEN_PATH:
            _check_key(call.request)
        reply = Reply(document=_LOOKUPS[call.request.path](state, call.request))
    except CallRefusedError as error:
        reply = error.refusal.reply()
    for chosen in call.faults:
        chosen.on_reply(reply)
    return reply


def _run(state: State, call: Call) -> Reply:
    billed = BilledCall(
        prefix="gen-dec" if call.kind == "decisions" else "gen",
        path=call.request.path,
        model_id=str(call.body.get("model")),
        key=call.request.bearer() or "",
        mark=call.mark(),
        streamed=call.kind == "stream",
        faults=tuple(chosen.fault.name for chosen in call.faults),
    )
    try:
        model = _admit(call)
    except CallRefusedError as error:
        return _refused_reply(state, billed, error.refusal)
    # Counting comes before the entry: nothing may fail between the bill and the reply.
    answer = None if call.kind == "decisions" else chat_answer(call, state.first_token_ms, state.between_ms)
    entry = state.bill.accept(billed, model)
    entry.record_delay_ms = state.generation_delay_ms
    reply = chat_reply(call, entry, answer) if answer else decisions_reply(call, entry, state.first_token_ms)
    for chosen in call.faults:
        chosen.on_reply(reply)
    return reply


def _admit(call: Call) -> Model:
    """The model that will serve the call; CallRefusedError when it is not to be run."""
    _check_key(call.request)
    _refuse_by_fault(call)
    if not call.body:
        raise refused(400, "Invalid JSON body")
    if call.kind == "decisions":
        model = decisions_model(call.body)
        check_decisions(call.body, model)
    else:
        model = chat_model(call.body)
        check_chat(call.body, model)
    return model


def _refuse_by_fault(call: Call) -> None:
    for chosen in call.faults:
        refusal = chosen.refusal()
        if refusal is not None:
            raise CallRefusedError(refusal)


def _refused_reply(state: State, billed: BilledCall, refusal: Refusal) -> Reply:
    entry = state.bill.refuse(billed, refusal.status)
    reply = refusal.reply()
    reply.entry = entry
    if refusal.status == 200 and refusal.content_type == "application/json":
        # A failure that the service itself answers: it has an id, and a record that says it was free.
        reply.headers.append(("x-generation-id", entry.id))
        entry.record_delay_ms = state.generation_delay_ms
    return reply
