"""Failures that come under status 200 once a chat runs: error frames, and finish reasons that say error."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from entrypoints.simulator.answer import Answer, ensure_text
from entrypoints.simulator.faults.chunks import choice_of, documents, positions
from entrypoints.simulator.faults.fault import JSON_CHAT, STREAM, Fault, Parameters
from entrypoints.simulator.reply import Frame, Reply

_ERROR: Final = {"after": 1, "code": 502, "message": "Provider disconnected", "done": False}


def _with_text(answer: Answer, _p: Parameters) -> None:
    ensure_text(answer)


def _error_frame(
    choices: Callable[[dict[str, Any]], list[Any] | None],
    error: Callable[[Parameters], Any],
    first: bool = False,
) -> Callable[[Reply, Parameters], None]:
    """Some content, then a frame with an error, then the end (with [DONE] if `done`). Free."""

    def apply(reply: Reply, p: Parameters) -> None:
        like = documents(reply, "finish")[0]
        document: dict[str, Any] = {key: value for key, value in like.items() if key != "choices"}
        document["error"] = error(p)
        choice_list = choices(like)
        if choice_list is not None:
            document["choices"] = choice_list
        else:
            document = {"error": document["error"]}
        places = positions(reply, "content", "finish")
        at = places[0 if first else min(p["after"], len(places) - 1)]
        tokens = reply.frames[at - 1].tokens
        reply.frames[at:] = [Frame("finish", document, tokens=tokens)]
        if p["done"]:
            reply.frames.append(Frame("done", b"[DONE]", tokens=tokens))
        _free(reply)

    return apply


def _free(reply: Reply) -> None:
    assert reply.entry is not None
    reply.charge = "nothing"
    reply.entry.finish_reason = reply.entry.native_finish_reason = "error"


def _failed_choice(_like: dict[str, Any]) -> list[Any]:
    return [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "error",
             "native_finish_reason": "error"}]  # fmt: skip


def _error(p: Parameters) -> dict[str, Any]:
    return {"code": p["code"], "message": p["message"]}


def _error_with_metadata(p: Parameters) -> dict[str, Any]:
    return {**_error(p), "metadata": {"error_type": "provider_unavailable", "provider_code": "overloaded"}}


def _error_without_code(p: Parameters) -> dict[str, Any]:
    return {"message": p["message"]}


def _error_on_usage(reply: Reply, p: Parameters) -> None:
    """As recorded: chunks that say `length`, then the error beside usage with a finish reason of null. Charged."""
    for document in documents(reply, "finish"):
        choice_of(document)["finish_reason"] = choice_of(document)["native_finish_reason"] = "length"
    for document in documents(reply, "usage"):
        choice_of(document)["finish_reason"] = choice_of(document)["native_finish_reason"] = None
        document["error"] = {"code": p["code"], "message": p["message"]}


def _finish_error(reply: Reply, p: Parameters) -> None:
    """No error object: only the reasons tell. Free."""
    for document in documents(reply, "finish", "usage"):
        choice_of(document)["finish_reason"] = "error"
        choice_of(document)["native_finish_reason"] = p["native"]
    for document in documents(reply, "usage"):
        document["usage"]["cost"] = 0
    _free(reply)


def _choice_error(error: bool) -> Callable[[Reply, Parameters], None]:
    """The same in a document: partial content, finish reason `error`. Free."""

    def apply(reply: Reply, p: Parameters) -> None:
        choice = choice_of(reply.document)
        choice["finish_reason"] = "error"
        choice["native_finish_reason"] = p.get("native", "error")
        if error:
            choice["error"] = {
                "code": p["code"],
                "message": p["message"],
                "metadata": {"provider_name": "OpenAI"},
            }
        reply.document["usage"]["cost"] = 0
        _free(reply)

    return apply


def error_faults() -> Iterator[Fault]:
    """Every fault of this file."""

    def error(
        name: str, description: str, reply: Callable[[Reply, Parameters], None], **parameters: Any
    ) -> Fault:
        defaults = {**_ERROR, **parameters}
        return Fault(
            name,
            "tokens",
            STREAM,
            f"error in the stream: {description}",
            defaults,
            answer=_with_text,
            reply=reply,
        )

    # fmt: off
    yield error("error-frame", "as documented, after some content; it ends the stream",
                _error_frame(_failed_choice, _error))
    yield error("error-frame-done", "as documented, then [DONE]", _error_frame(_failed_choice, _error), done=True)
    yield error("error-first", "the first and only event", _error_frame(_failed_choice, _error, first=True))
    yield error("error-metadata", "with metadata", _error_frame(_failed_choice, _error_with_metadata))
    yield error("error-word-code", "the code is a word", _error_frame(_failed_choice, _error), code="server_error")
    yield error("error-string-code", "the code is a number in a string", _error_frame(_failed_choice, _error),
                code="503")
    yield error("error-no-code", "no code", _error_frame(_failed_choice, _error_without_code))
    yield error("error-rate-limit", "429", _error_frame(_failed_choice, _error), code=429,
                message="Rate limit exceeded")
    yield error("error-empty-choices", "choices is empty", _error_frame(lambda _: [], _error))
    yield error("error-bare", "an error and nothing else", _error_frame(lambda _: None, _error))
    yield error("error-bare-string", "the error is a bare string",
                _error_frame(lambda _: None, lambda p: p["message"]))
    yield error("error-null-finish", "on a frame whose finish reason is null",
                _error_frame(lambda like: [{**like["choices"][0], "finish_reason": None,
                                            "native_finish_reason": None}], _error))
    yield Fault("error-on-usage", "usage", STREAM,
                "error in the stream: on the usage frame, finish reason null; charged",
                {"code": 400, "message": "Token limit reached"}, answer=_with_text, reply=_error_on_usage)
    yield Fault("finish-error", "end", STREAM, "finish reason error, only the native reason says why",
                {"native": "MALFORMED_FUNCTION_CALL"}, answer=_with_text, reply=_finish_error)
    yield Fault("choice-error", "document", JSON_CHAT, "finish reason error with an error object and partial content",
                {"code": 502, "message": "Provider disconnected"}, answer=_with_text, reply=_choice_error(error=True))
    yield Fault("choice-finish-error", "document", JSON_CHAT, "finish reason error, only the native reason says why",
                {"native": "MALFORMED_FUNCTION_CALL"}, answer=_with_text, reply=_choice_error(error=False))
    # fmt: on
