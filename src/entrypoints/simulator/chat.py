"""POST /api/v1/chat/completions: checks the request, and gives an answer its wire form."""

from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from entrypoints.simulator.agent import next_answer, text_of
from entrypoints.simulator.answer import Answer, cut, scripted_answer
from entrypoints.simulator.bill import Entry
from entrypoints.simulator.call import Call
from entrypoints.simulator.prices import Model, find_model
from entrypoints.simulator.refusal import refused
from entrypoints.simulator.reply import Frame, Reply

KEEP_ALIVE: Final = b": OPENROUTER PROCESSING"
_SIGNATURE: Final = "c2ltdWxhdGVk"
EXPOSED_HEADERS: Final = (
    "access-control-expose-headers",
    "X-Generation-Id,X-Provider-Name,request-id,cf-ray",
)


def tokens_in(text: str) -> int:
    """The simulator's own count: a token for every four characters begun."""
    return -(-len(text) // 4)


def chat_model(body: dict[str, Any]) -> Model:
    """The model that serves this body: the first it names. CallRefusedError when there is none."""
    named = body.get("model") or next(iter(body.get("models") or []), None)
    if not isinstance(named, str):
        raise refused(400, "No models provided")
    model = find_model(named)
    if model is None:
        raise refused(400, f"{named} is not a valid model ID")
    if model.decisions:
        raise refused(
            400,
            f"{named} is a decisions model and cannot be used with the chat/completions endpoint. "
            "Use the /api/alpha/decisions endpoint instead.",
        )
    return model


def check_chat(body: dict[str, Any], model: Model) -> None:
    """Refuses what the service or every provider behind it would refuse (CallRefusedError)."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise refused(400, 'Input required: specify "prompt" or "messages"')
    problem = _message_problem(messages)
    if problem is not None:
        raise refused(
            400,
            "Provider returned error",
            {
                "raw": msgspec.json.encode(
                    {"error": {"message": problem, "type": "invalid_request_error"}}
                ).decode(),
                "provider_name": model.provider,
            },
        )
    if _costs_more_than_allowed(body, model):
        raise refused(404, "No endpoints found that satisfy the requested max_price.")


def prompt_tokens(body: dict[str, Any]) -> int:
    """Tokens of a chat request by the simulator's own count: texts, calls and tools, four per message."""
    total = 0
    for message in body["messages"]:
        total += 4 + tokens_in(text_of(message.get("content")))
        for call in message.get("tool_calls") or ():
            total += tokens_in(call["function"]["name"]) + tokens_in(call["function"]["arguments"])
    if body.get("tools"):
        total += -(-len(msgspec.json.encode(body["tools"])) // 4)
    return total


def chat_answer(call: Call, first_token_ms: float, between_ms: float) -> Answer:
    """What is said: by the script, else by the default agent; shaped by faults; within max_tokens."""
    tools = call.body.get("tools") or []
    script = call.script
    if script is not None and script.says_something():
        default = Answer()
    else:
        default = next_answer(call.body["messages"], tools, call.body.get("tool_choice"))
    default.first_token_ms, default.between_ms = first_token_ms, between_ms
    answer = default if script is None else scripted_answer(script, default)
    if tools:
        answer.offered = tools[0]["function"]["name"]
    for chosen in call.faults:
        chosen.on_answer(answer)
    limit = call.body.get("max_completion_tokens") or call.body.get("max_tokens")
    if isinstance(limit, int):
        _cap(answer, limit)
    return answer


def chat_reply(call: Call, entry: Entry, answer: Answer) -> Reply:
    """The answer on the wire, in the form of 2026, with its charge entered. Faults are not applied yet."""
    model = entry.model
    assert model is not None
    base = {
        "id": entry.id,
        "provider": model.provider,
        "model": model.dated,
        "object": "chat.completion.chunk" if entry.streamed else "chat.completion",
        "created": int(entry.accepted_s),
    }
    frames, tokens = _content_frames(base, answer)
    entry.prompt_tokens = answer.usage.get("prompt_tokens", prompt_tokens(call.body))
    entry.all_completion_tokens = answer.usage.get("completion_tokens", tokens)
    entry.finish_reason, entry.native_finish_reason = answer.finish_reason, answer.native_finish_reason
    counted = model.cost(entry.prompt_tokens, entry.all_completion_tokens)
    entry.full_cost = counted if answer.cost is None else answer.cost
    usage = _usage(entry, model, answer)
    reply = Reply(
        entry=entry,
        streamed=entry.streamed,
        headers=[("x-generation-id", entry.id), EXPOSED_HEADERS],
        billed_cost=answer.billed_cost,
        stops_when_left=entry.streamed and model.cancellation,
        charge="generated" if entry.streamed else "full",
    )
    if not entry.streamed:
        pauses = max(0, len(frames) - 1)
        reply.headers_wait_ms = answer.first_token_ms + pauses * answer.between_ms
        reply.document = _document(base, answer, usage)
        return reply
    reply.content_type = "text/event-stream"
    finish = _chunk(
        base, {"role": "assistant", "content": ""}, answer.finish_reason, answer.native_finish_reason
    )
    closing = dict(finish)
    closing["service_tier"] = None
    closing["usage"] = usage
    reply.frames = [
        Frame("comment", KEEP_ALIVE),
        Frame("comment", KEEP_ALIVE),
        *frames,
        Frame("finish", finish, tokens=tokens),
        Frame("usage", closing, tokens=tokens),
        Frame("done", b"[DONE]", tokens=tokens),
    ]
    return reply


def _message_problem(messages: Sequence[Any]) -> str | None:
    """What a provider would say against this list of messages, or None."""
    waiting: list[str] = []
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in (
            "system", "developer", "user", "assistant", "tool"
        ):  # fmt: skip
            return f"messages[{at}]: unknown role"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"messages[{at}]: tool_call_id does not answer a tool call of the preceding assistant message"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"messages[{at}]: tool calls {', '.join(waiting)} of the preceding message have no result"
        for call in message.get("tool_calls") or ():
            match call:
                case {
                    "id": str(call_id),
                    "type": "function",
                    "function": {"name": str(), "arguments": str()},
                }:
                    waiting.append(call_id)
                case _:
                    return (
                        f"messages[{at}]: a tool call needs id, type, and a function with name and arguments"
                    )
    return f"tool calls {', '.join(waiting)} have no result" if waiting else None


def _costs_more_than_allowed(body: dict[str, Any], model: Model) -> bool:
    limits = (body.get("provider") or {}).get("max_price") or {}
    prices = {"prompt": model.prompt_usd, "completion": model.completion_usd}
    try:
        return any(prices[part].scaleb(6) > Decimal(str(limits[part])) for part in prices if part in limits)
    except InvalidOperation:
        raise refused(400, "provider.max_price: expected numbers, in USD per million tokens") from None


def _cap(answer: Answer, limit: int) -> None:
    """Ends the answer after `limit` tokens, as a provider does: cut text or arguments, native reason `length`."""
    left = limit
    for texts in (answer.reasoning, answer.pieces):
        for at, piece in enumerate(texts):
            if tokens_in(piece) > left:
                texts[at] = piece[: left * 4]
                del texts[at + 1 :]
                answer.finish_reason = answer.native_finish_reason = "length"
                if texts is answer.reasoning:
                    answer.pieces = []
                answer.tool_calls = []
                return
            left -= tokens_in(piece)
    for at, call in enumerate(answer.tool_calls):
        size = tokens_in(call.name) + tokens_in(call.arguments)
        if size > left:
            call.arguments = call.arguments[: max(0, left - tokens_in(call.name)) * 4]
            del answer.tool_calls[at + 1 :]
            answer.finish_reason, answer.native_finish_reason = "tool_calls", "length"
            return
        left -= size


def _chunk(
    base: dict[str, Any], delta: dict[str, Any], finish: str | None = None, native: str | None = None
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": delta,
        "finish_reason": finish,
        "native_finish_reason": native,
        "logprobs": None,
    }
    return {**base, "choices": [choice]}


def _content_frames(base: dict[str, Any], answer: Answer) -> tuple[list[Frame], int]:
    """The frames up to the finish, and all completion tokens."""
    frames: list[Frame] = []
    tokens = 0
    wait_ms = answer.first_token_ms
    for delta, size in _deltas(answer):
        tokens += size
        frames.append(Frame("content", _chunk(base, delta), wait_ms=wait_ms, tokens=tokens))
        wait_ms = answer.between_ms
    return frames, tokens


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], int]]:
    """Each delta of the answer and the tokens it is counted for."""
    for piece in answer.reasoning:
        yield _reasoning_delta(piece, {"text": piece}), tokens_in(piece)
    if answer.reasoning:
        yield _reasoning_delta(None, {"signature": _SIGNATURE}), 0
    for piece in answer.pieces:
        said = {"content": "", "refusal": piece} if answer.is_refusal else {"content": piece}
        yield {"role": "assistant", **said}, tokens_in(piece)
    for index, call in enumerate(answer.tool_calls):
        function = {"name": call.name, "arguments": ""}
        yield (
            _call_delta({"index": index, "id": call.id, "type": "function", "function": function}),
            tokens_in(call.name),
        )
        left = tokens_in(call.arguments)
        pieces = cut(call.arguments, answer.argument_pieces)
        for at, piece in enumerate(pieces):
            # The pieces of one text add up to the count of the whole.
            size = left if at == len(pieces) - 1 else len(piece) // 4
            left -= size
            yield _call_delta({"index": index, "function": {"arguments": piece}}), size


def _reasoning_delta(text: str | None, detail: dict[str, str]) -> dict[str, Any]:
    details = [{"type": "reasoning.text", **detail, "format": "anthropic-claude-v1", "index": 0}]
    return {"role": "assistant", "content": "", "reasoning": text, "reasoning_details": details}


def _call_delta(fragment: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [fragment]}


def _usage(entry: Entry, model: Model, answer: Answer) -> dict[str, Any]:
    prompt_cost = model.cost(entry.prompt_tokens, 0)
    usage: dict[str, Any] = {
        "prompt_tokens": entry.prompt_tokens,
        "completion_tokens": entry.all_completion_tokens,
        "total_tokens": entry.prompt_tokens + entry.all_completion_tokens,
        "cost": entry.full_cost,
        "is_byok": False,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "cache_write_tokens": 0,
            "audio_tokens": 0,
            "video_tokens": 0,
        },
        "cost_details": {
            "upstream_inference_cost": entry.full_cost,
            "upstream_inference_prompt_cost": prompt_cost,
            "upstream_inference_completions_cost": model.cost(0, entry.all_completion_tokens),
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(map(tokens_in, answer.reasoning)),
            "image_tokens": 0,
            "audio_tokens": 0,
        },
    }
    usage.update(answer.usage)
    return usage


def _document(base: dict[str, Any], answer: Answer, usage: dict[str, Any]) -> dict[str, Any]:
    text = "".join(answer.pieces)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "" if answer.is_refusal else text,
        "refusal": text if answer.is_refusal else None,
        "reasoning": "".join(answer.reasoning) or None,
    }
    if answer.reasoning:
        details = {"type": "reasoning.text", "text": message["reasoning"], "signature": _SIGNATURE}
        message["reasoning_details"] = [{**details, "format": "anthropic-claude-v1", "index": 0}]
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "index": at,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for at, call in enumerate(answer.tool_calls)
        ]
    choice = {
        "index": 0,
        "finish_reason": answer.finish_reason,
        "native_finish_reason": answer.native_finish_reason,
        "logprobs": None,
        "message": message,
    }
    return {**base, "system_fingerprint": None, "service_tier": None, "choices": [choice], "usage": usage}
