"""Faults and recorded oddities of what a chat says and of the frames it is said in."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec

from entrypoints.simulator.answer import Answer, ToolCall, ensure_text
from entrypoints.simulator.faults.chunks import call_fragments, choice_of, documents, fragments_of, positions
from entrypoints.simulator.faults.fault import CHAT, JSON_CHAT, STREAM, Fault, Parameters, Phase
from entrypoints.simulator.reply import ENCODER, Frame, FrameKind, Reply

# What is said


def _ensure_call(answer: Answer) -> ToolCall:
    """The answer's first tool call; an answer without one becomes a call of the first offered tool."""
    if not answer.tool_calls:
        answer.tool_calls = [ToolCall(answer.offered, '{"consulta":"preço do açúcar"}', "call_fault_0001")]
        answer.pieces = []
        answer.finish_reason = answer.native_finish_reason = "tool_calls"
    return answer.tool_calls[0]


def _with_call(answer: Answer, _p: Parameters) -> None:
    _ensure_call(answer)


def _wide_characters(answer: Answer, _p: Parameters) -> None:
    answer.pieces.append(" — ação 😀")


def _arguments(text: str) -> Callable[[Answer, Parameters], None]:
    def apply(answer: Answer, _p: Parameters) -> None:
        _ensure_call(answer).arguments = text

    return apply


def _call_cut(answer: Answer, _p: Parameters) -> None:
    call = _ensure_call(answer)
    if len(call.arguments) < 8:
        call.arguments = '{"consulta":"preço do açúcar"}'
    call.arguments = call.arguments[: len(call.arguments) // 2]
    answer.finish_reason, answer.native_finish_reason = "tool_calls", "length"


def _parallel(answer: Answer, p: Parameters) -> None:
    first = _ensure_call(answer)
    answer.tool_calls = [first] + [
        ToolCall(first.name, first.arguments, f"call_fault_{at:04d}") for at in range(1, p["calls"])
    ]


def _reasoning(answer: Answer, _p: Parameters) -> None:
    answer.reasoning = ["O pedido é claro: ", "respondo já."]


def _refusal(answer: Answer, _p: Parameters) -> None:
    ensure_text(answer)
    answer.pieces, answer.is_refusal = ["Não posso ", "ajudar com isso."], True


def _finish(finish: str | None, native: str | None) -> Callable[[Answer, Parameters], None]:
    def apply(answer: Answer, _p: Parameters) -> None:
        ensure_text(answer)
        answer.finish_reason, answer.native_finish_reason = finish, native

    return apply


def _surrogates(answer: Answer, _p: Parameters) -> None:
    ensure_text(answer)
    answer.pieces = ["Feito ", "\ue000", "\ue001", " ok"]


def _line_separators(answer: Answer, _p: Parameters) -> None:
    ensure_text(answer)
    answer.pieces = ["uma\u2028linha", "\u2029 e\u0085outra"]


# Frames


def _drop(*kinds: FrameKind) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        reply.frames = [frame for frame in reply.frames if frame.kind not in kinds]

    return apply


def _form(**fields: Any) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        for name, value in fields.items():
            setattr(reply, name, value)

    return apply


def _without(*names: str) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        for document in documents(reply):
            for name in names:
                document.pop(name, None)

    return apply


def _comment_flood(reply: Reply, p: Parameters) -> None:
    flooded: list[Frame] = []
    for frame in reply.frames:
        if frame.kind == "content":
            flooded.extend(Frame("comment", b": OPENROUTER PROCESSING", tokens=0) for _ in range(p["count"]))
        flooded.append(frame)
    for before, frame in pairwise(flooded):
        frame.tokens = max(frame.tokens, before.tokens)
    reply.frames = flooded


def _bare_comments(reply: Reply, _p: Parameters) -> None:
    for frame in reply.frames:
        if frame.kind == "comment":
            frame.payload = b": "


def _event_fields(reply: Reply, _p: Parameters) -> None:
    for at in reversed(positions(reply, "content")):
        frame = reply.frames[at]
        fields = b"event: message\nid: %d\nretry: 3000\n" % at
        reply.frames[at] = Frame(
            "raw", fields + b"data: " + ENCODER.encode(frame.payload) + b"\n\n", frame.wait_ms, frame.tokens
        )


def _malformed(reply: Reply, p: Parameters) -> None:
    """Between good frames; the answer itself is whole."""
    first = positions(reply, "content", "finish")[0]
    at = min(first + p["after"], positions(reply, "finish")[0])
    reply.frames.insert(
        at, Frame("content", b'{"id":"gen-broken","choices":[{"index":0,"delta":{"content":"')
    )


def _not_a_number(reply: Reply, _p: Parameters) -> None:
    for document in documents(reply, "content"):
        choice_of(document)["logprobs"] = {"content": [{"token": "x", "logprob": msgspec.Raw(b"NaN")}]}


def _halve_surrogates(reply: Reply, _p: Parameters) -> None:
    for frame in reply.frames:
        if frame.kind == "content":
            encoded = ENCODER.encode(frame.payload)
            frame.payload = encoded.replace("\ue000".encode(), rb"\ud83d").replace(
                "\ue001".encode(), rb"\ude00"
            )


def _empty_choices_first(reply: Reply, _p: Parameters) -> None:
    like = documents(reply, "finish")[0]
    reply.frames.insert(positions(reply, "content", "finish")[0], Frame("content", {**like, "choices": []}))


def _null_content(reply: Reply, _p: Parameters) -> None:
    for document in documents(reply, "finish", "usage"):
        choice_of(document)["delta"]["content"] = None


def _delta_null(reply: Reply, _p: Parameters) -> None:
    for document in documents(reply, "finish", "usage"):
        choice_of(document)["delta"] = None


def _role_once(reply: Reply, _p: Parameters) -> None:
    for document in documents(reply, "content", "finish", "usage")[1:]:
        choice_of(document)["delta"].pop("role", None)


def _after_done(reply: Reply, _p: Parameters) -> None:
    late = Frame("content", dict(documents(reply, "content", "finish")[0]))
    late.tokens = reply.frames[-1].tokens
    reply.frames.append(late)


def _debug_first(reply: Reply, _p: Parameters) -> None:
    like = documents(reply, "finish")[0]
    debug = {**like, "choices": [], "debug": {"echo_upstream_body": {"messages": []}}}
    reply.frames.insert(positions(reply, "content", "finish")[0], Frame("content", debug))


# Tool-call fragments


def _on_fragments(change: Callable[[dict[str, Any], bool], None]) -> Callable[[Reply, Parameters], None]:
    """A hook that changes every fragment; the flag says whether it opens a call."""

    def apply(reply: Reply, _p: Parameters) -> None:
        for fragment in fragments_of(reply):
            change(fragment, "name" in fragment["function"])

    return apply


def _no_id(fragment: dict[str, Any], _opens: bool) -> None:
    fragment.pop("id", None)


def _null_id(fragment: dict[str, Any], _opens: bool) -> None:
    fragment["id"] = None


def _no_index(fragment: dict[str, Any], _opens: bool) -> None:
    del fragment["index"]


def _index_zero(fragment: dict[str, Any], _opens: bool) -> None:
    fragment["index"] = 0


def _no_type(fragment: dict[str, Any], _opens: bool) -> None:
    fragment.pop("type", None)


def _null_arguments(fragment: dict[str, Any], opens: bool) -> None:
    if opens:
        fragment["function"]["arguments"] = None


def _no_arguments(fragment: dict[str, Any], opens: bool) -> None:
    if opens:
        del fragment["function"]["arguments"]


def _id_in_every_fragment(reply: Reply, _p: Parameters) -> None:
    ids: dict[int, tuple[str, str]] = {}
    for fragment in fragments_of(reply):
        if "id" in fragment:
            ids[fragment["index"]] = (fragment["id"], fragment["function"]["name"])
        fragment["id"], fragment["function"]["name"] = ids[fragment["index"]]


def _whole_call(arguments: Callable[[str], Any]) -> Callable[[Reply, Parameters], None]:
    """Each call in one fragment."""

    def apply(reply: Reply, _p: Parameters) -> None:
        kept: list[Frame] = []
        opening: dict[str, Any] | None = None
        for frame in reply.frames:
            fragments = call_fragments(frame)
            if not fragments:
                kept.append(frame)
            elif "name" in fragments[0]["function"]:
                opening = fragments[0]
                kept.append(frame)
            else:
                assert opening is not None
                opening["function"]["arguments"] += fragments[0]["function"]["arguments"]
                kept[-1].tokens = frame.tokens
        reply.frames = kept
        for fragment in fragments_of(reply):
            fragment["function"]["arguments"] = arguments(fragment["function"]["arguments"])

    return apply


def _interleaved(reply: Reply, _p: Parameters) -> None:
    """The fragments of parallel calls in turn: 0, 1, 0, 1 …"""
    frames = [frame for frame in reply.frames if call_fragments(frame)]
    seen: dict[int, int] = {}
    turns: list[tuple[int, int, dict[str, Any] | bytes]] = []
    for frame in frames:
        index = call_fragments(frame)[0]["index"]
        seen[index] = seen.get(index, 0) + 1
        turns.append((seen[index], index, frame.payload))
    turns.sort(key=lambda turn: turn[:2])
    for frame, (_, _, payload) in zip(frames, turns, strict=True):
        frame.payload = payload


def _document_for_stream(reply: Reply, _p: Parameters) -> None:
    """A streamed request answered with the whole document."""
    content = "".join(
        choice_of(d)["delta"].get("content") or "" for d in documents(reply, "content") if d["choices"]
    )
    calls: dict[int, dict[str, Any]] = {}
    for fragment in fragments_of(reply):
        if "id" in fragment:
            calls[fragment["index"]] = fragment
        else:
            calls[fragment["index"]]["function"]["arguments"] += fragment["function"]["arguments"]
    closing = documents(reply, "usage")[0]
    choice = {key: value for key, value in choice_of(closing).items() if key != "delta"}
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls.values())
    reply.document = {**closing, "object": "chat.completion", "choices": [{**choice, "message": message}]}
    reply.streamed, reply.content_type, reply.charge = False, "application/json", "full"


def _json_calls(change: Callable[[dict[str, Any]], None]) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        for call in choice_of(reply.document)["message"]["tool_calls"]:
            change(call)

    return apply


def _drop_arguments(call: dict[str, Any]) -> None:
    del call["function"]["arguments"]


def _nullify_arguments(call: dict[str, Any]) -> None:
    call["function"]["arguments"] = None


def stream_faults() -> Iterator[Fault]:
    """Every fault of this file."""

    def form(
        name: str, description: str, reply: Callable[[Reply, Parameters], None], **parameters: Any
    ) -> Fault:
        return Fault(name, "tokens", STREAM, description, parameters, reply=reply)

    def said(
        name: str,
        phase: Phase,
        description: str,
        answer: Callable[[Answer, Parameters], None],
        **parameters: Any,
    ) -> Fault:
        return Fault(name, phase, CHAT, description, parameters, answer=answer)

    def call(name: str, description: str, reply: Callable[[Reply, Parameters], None]) -> Fault:
        return Fault(name, "tokens", STREAM, f"tool calls: {description}", answer=_with_call, reply=reply)

    # fmt: off
    yield form("crlf", "lines end with CRLF", _form(eol=b"\r\n"))
    yield form("no-space", "no space after data:", _form(data_prefix=b"data:"))
    yield form("multi-line", "one event's JSON over several data: lines", _form(multi_line=True))
    yield form("no-comments", "no keep-alive comment", _drop("comment"))
    yield form("comment-flood", "many comments before every content frame", _comment_flood, count=200)
    yield form("bare-comments", "comments without text", _bare_comments)
    yield form("event-fields", "event:, id: and retry: lines beside data:", _event_fields)
    yield form("no-ids", "no id in any chunk", _without("id"))
    yield form("no-provider", "no provider in any chunk", _without("provider"))
    yield form("no-model", "no model in any chunk", _without("model"))
    yield form("role-once", "the role in the first chunk only", _role_once)
    yield form("null-content", "content null in the closing chunks", _null_content)
    yield form("null-delta", "delta null in the closing chunks", _delta_null)
    yield form("empty-choices-chunk", "a first chunk with no choices", _empty_choices_first)
    yield form("debug-chunk", "a first chunk with no choices and a debug object", _debug_first)
    yield form("malformed-json", "a frame of broken JSON between good ones", _malformed, after=1)
    yield form("nan", "NaN in a frame, which strict decoders refuse", _not_a_number)
    yield form("data-after-done", "a content frame after [DONE]", _after_done)
    yield form("no-done", "no [DONE]", _drop("done"))
    yield form("no-end", "neither finish nor usage nor [DONE]: the body just ends", _drop("finish", "usage", "done"))
    yield form("no-finish", "content, then [DONE]: no finish reason, no usage", _drop("finish", "usage"))
    yield form("done-only", "[DONE] and nothing else", _drop("content", "finish", "usage"))
    yield form("document-for-stream", "the whole JSON document in place of a stream", _document_for_stream)
    yield Fault("surrogate-halves", "tokens", STREAM, "one character as two escaped halves in two frames",
                answer=_surrogates, reply=_halve_surrogates)
    yield said("line-separators", "tokens", "U+2028, U+2029 and U+0085 inside the text", _line_separators)
    yield said("wide-characters", "tokens", "characters of two to four bytes", _wide_characters)

    yield Fault("split-utf8", "tokens", CHAT, "every multi-byte character is cut after its first byte",
                answer=_wide_characters, reply=_form(split_characters=True, piece_wait_ms=1.0))

    yield said("reasoning", "first-token", "reasoning and reasoning_details first, the signature late", _reasoning)
    yield said("refusal-text", "tokens", "refusal fragments, finish reason stop", _refusal)
    yield said("text-cut", "end", "text that ends with finish reason length", _finish("length", "length"))
    yield said("content-filter", "end", "finish reason content_filter", _finish("content_filter", "content_filter"))
    yield said("finish-unknown", "end", "a finish reason of a kind nobody knows", _finish("eos", "eos"))
    yield said("finish-null", "end", "a finish reason that stays null", _finish(None, None))
    yield said("native-finish-null", "end", "native_finish_reason null", _finish("stop", None))

    yield said("call-cut", "tokens", "cut arguments, finish reason tool_calls, native reason length", _call_cut)
    yield said("call-no-arguments", "tokens", "arguments stay empty to the end", _arguments(""))
    yield said("call-empty-object", "tokens", "arguments are {}", _arguments("{}"))
    yield said("call-malformed", "tokens", "arguments that are no JSON, finish reason tool_calls",
               _arguments('{"consulta": preço}'))
    yield said("call-array", "tokens", "arguments that are a JSON list", _arguments('["preço"]'))
    yield said("call-parallel", "tokens", "several calls at once", _parallel, calls=2)
    yield Fault("call-interleaved", "tokens", STREAM, "tool calls: fragments of parallel calls in turn", {"calls": 2},
                answer=_parallel, reply=_interleaved)
    yield Fault("call-same-index", "tokens", STREAM, "tool calls: a new id on a used index is a new call",
                {"calls": 2}, answer=_parallel, reply=_on_fragments(_index_zero))
    yield call("call-no-id", "no id", _on_fragments(_no_id))
    yield call("call-null-id", "id null in every fragment", _on_fragments(_null_id))
    yield call("call-no-index", "no index", _on_fragments(_no_index))
    yield call("call-no-type", "no type", _on_fragments(_no_type))
    yield call("call-repeated-id", "id and name in every fragment", _id_in_every_fragment)
    yield call("call-null-arguments", "arguments null in the first fragment", _on_fragments(_null_arguments))
    yield call("call-missing-arguments", "no arguments in the first fragment", _on_fragments(_no_arguments))
    yield call("call-whole", "each call in one fragment", _whole_call(str))
    yield call("call-arguments-object", "arguments as an object in one fragment",
               _whole_call(lambda text: msgspec.json.decode(text or "{}")))
    for name, description, change in (
        ("json-call-missing-arguments", "a document's tool call without arguments", _drop_arguments),
        ("json-call-null-arguments", "a document's tool call with arguments null", _nullify_arguments),
    ):
        yield Fault(name, "document", JSON_CHAT, description, answer=_with_call, reply=_json_calls(change))

    # fmt: on
