"""Faults of usage and cost. The bill keeps the truth unless the description says otherwise."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec

from entrypoints.simulator.faults.fault import CALLS, CHAT, STREAM, Fault, Kind, Parameters
from entrypoints.simulator.reply import Frame, Reply

_COUNTS: Final[tuple[str, ...]] = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
)


def _holders(reply: Reply) -> list[dict[str, Any]]:
    """The chunks and documents that carry a usage."""
    documents = [frame.payload for frame in reply.frames] if reply.streamed else [reply.document]
    return [document for document in documents if isinstance(document, dict) and "usage" in document]


def _usage(change: Callable[[dict[str, Any]], Any]) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        for holder in _holders(reply):
            change(holder["usage"])

    return apply


def _cost(value: Any) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        for holder in _holders(reply):
            holder["usage"]["cost"] = value

    return apply


def _cost_string(usage: dict[str, Any]) -> None:
    usage["cost"] = str(usage["cost"])


def _cost_exponent(usage: dict[str, Any]) -> None:
    usage["cost"] = msgspec.Raw(f"{usage['cost']:e}".encode())


def _missing(reply: Reply, _p: Parameters) -> None:
    if reply.streamed:
        reply.frames = [frame for frame in reply.frames if frame.kind != "usage"]
    for holder in _holders(reply):
        del holder["usage"]


def _null(reply: Reply, _p: Parameters) -> None:
    for holder in _holders(reply):
        holder["usage"] = None


def _zero(reply: Reply, _p: Parameters) -> None:
    """A cached reply: no tokens, no cost, and the bill agrees."""
    assert reply.entry is not None
    reply.entry.prompt_tokens = reply.entry.all_completion_tokens = 0
    for frame in reply.frames:
        frame.tokens = 0
    reply.entry.full_cost = Decimal(0)
    for holder in _holders(reply):
        usage = holder["usage"]
        usage.update({name: 0 for name in (*_COUNTS, "cost") if name in usage})


def _counts_only(usage: dict[str, Any]) -> None:
    kept = {name: usage[name] for name in _COUNTS if name in usage}
    usage.clear()
    usage.update(kept)


def _cost_only(usage: dict[str, Any]) -> None:
    cost = usage["cost"]
    usage.clear()
    usage["cost"] = cost


def _string_counts(usage: dict[str, Any]) -> None:
    usage.update({name: str(usage[name]) for name in _COUNTS if name in usage})


def _float_counts(usage: dict[str, Any]) -> None:
    usage.update({name: float(usage[name]) for name in _COUNTS if name in usage})


def _negative_counts(usage: dict[str, Any]) -> None:
    usage.update({name: -1 for name in _COUNTS if name in usage})


def _null_details(usage: dict[str, Any]) -> None:
    usage.update(dict.fromkeys(("prompt_tokens_details", "completion_tokens_details", "cost_details")))


def _reasoning_exceeds(usage: dict[str, Any]) -> None:
    usage["completion_tokens_details"]["reasoning_tokens"] = usage["completion_tokens"] + 1


def _cached(usage: dict[str, Any]) -> None:
    usage["prompt_tokens_details"]["cached_tokens"] = usage["prompt_tokens"] // 2


def _byok(reply: Reply, _p: Parameters) -> None:
    """The user's own provider key: the service charges a fee of 5 % only."""
    assert reply.entry is not None
    upstream = reply.entry.full_cost
    reply.entry.full_cost = reply.billed_cost = upstream * Decimal("0.05")
    for holder in _holders(reply):
        usage = holder["usage"]
        usage.update(is_byok=True, cost=reply.billed_cost)
        usage["cost_details"]["upstream_inference_cost"] = upstream


def _empty_choices(reply: Reply, _p: Parameters) -> None:
    for holder in _holders(reply):
        holder["choices"] = []


def _null_finish(reply: Reply, _p: Parameters) -> None:
    for holder in _holders(reply):
        holder["choices"][0]["finish_reason"] = holder["choices"][0]["native_finish_reason"] = None


def _twice(reply: Reply, _p: Parameters) -> None:
    """First with half the counts and no cost, then the truth."""
    at = next(at for at, frame in enumerate(reply.frames) if frame.kind == "usage")
    last = reply.frames[at]
    assert isinstance(last.payload, dict)
    usage = last.payload["usage"]
    early = {name: usage[name] // 2 for name in _COUNTS if name in usage}
    reply.frames.insert(at, Frame("usage", {**last.payload, "usage": early}, tokens=last.tokens))


def _repeated(reply: Reply, _p: Parameters) -> None:
    at = next(at for at, frame in enumerate(reply.frames) if frame.kind == "usage")
    reply.frames.insert(at, reply.frames[at])


def _on_finish(reply: Reply, _p: Parameters) -> None:
    usage = _holders(reply)[0]["usage"]
    reply.frames = [frame for frame in reply.frames if frame.kind != "usage"]
    for frame in reply.frames:
        if frame.kind == "finish" and isinstance(frame.payload, dict):
            frame.payload["usage"] = usage


def _running(reply: Reply, _p: Parameters) -> None:
    """On every content chunk, as it grows, without cost."""
    assert reply.entry is not None
    for frame in reply.frames:
        if frame.kind == "content" and isinstance(frame.payload, dict):
            prompt = reply.entry.prompt_tokens
            frame.payload["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": frame.tokens,
                "total_tokens": prompt + frame.tokens,
            }


def _null_on_chunks(reply: Reply, _p: Parameters) -> None:
    for frame in reply.frames:
        if frame.kind in ("content", "finish") and isinstance(frame.payload, dict):
            frame.payload["usage"] = None


def _billed_differently(reply: Reply, p: Parameters) -> None:
    assert reply.entry is not None
    reply.billed_cost = reply.entry.full_cost * Decimal(str(p["factor"]))


def _record_later(reply: Reply, p: Parameters) -> None:
    assert reply.entry is not None
    reply.entry.record_delay_ms = p["ms"]


def _record_never(reply: Reply, _p: Parameters) -> None:
    assert reply.entry is not None
    reply.entry.record_delay_ms = None


def usage_faults() -> Iterator[Fault]:
    """Every fault of this file."""

    def row(
        name: str,
        description: str,
        reply: Callable[[Reply, Parameters], None],
        applies_to: frozenset[Kind] = CALLS,
        **parameters: Any,
    ) -> Fault:
        return Fault(name, "usage", applies_to, description, parameters, reply=reply)

    # fmt: off
    yield row("usage-empty-choices", "the usage chunk has choices: []", _empty_choices, STREAM)
    yield row("usage-null-finish", "the usage chunk has a finish reason of null", _null_finish, STREAM)
    yield row("usage-twice", "two usage chunks, the first with half the counts and no cost", _twice, STREAM)
    yield row("usage-repeated", "the same usage chunk twice", _repeated, STREAM)
    yield row("usage-on-finish", "usage on the finish chunk itself", _on_finish, STREAM)
    yield row("usage-running", "a growing usage on every content chunk, the last one true", _running, STREAM)
    yield row("usage-null-on-chunks", "usage null on every other chunk", _null_on_chunks, STREAM)
    yield row("usage-missing", "no usage", _missing)
    yield row("usage-null", "usage null", _null)
    yield row("usage-zero", "usage that says zero, as for a cached reply; billed as zero", _zero)
    yield row("usage-counts-only", "token counts and nothing else, as older gateways send", _usage(_counts_only))
    yield row("usage-cost-only", "cost and no token counts", _usage(_cost_only))
    yield row("usage-strings", "token counts as strings", _usage(_string_counts))
    yield row("usage-floats", "token counts as 12.0", _usage(_float_counts))
    yield row("usage-negative", "token counts of -1", _usage(_negative_counts))
    yield row("usage-null-details", "details null", _usage(_null_details), CHAT)
    yield row("usage-cached", "half of the prompt from the cache", _usage(_cached), CHAT)
    yield row("reasoning-exceeds", "more reasoning tokens than completion tokens", _usage(_reasoning_exceeds), CHAT)
    yield row("cost-absent", "no cost", _usage(lambda usage: usage.pop("cost")))
    yield row("cost-null", "cost null", _cost(None))
    yield row("cost-string", "cost as a string", _usage(_cost_string))
    yield row("cost-negative", "a negative cost", _cost(Decimal("-0.000123")))
    yield row("cost-infinite", "a cost of 1e400", _cost(msgspec.Raw(b"1e400")))
    yield row("cost-nan", "a cost of NaN", _cost(msgspec.Raw(b"NaN")))
    yield row("cost-exponent", "the cost in scientific notation", _usage(_cost_exponent))
    yield row("byok", "the user's own provider key: cost is a fee of 5 %", _byok, CHAT)

    yield Fault("billed-differently", "charge", CALLS, "the charge, and so the record, is usage.cost times a factor",
                {"factor": 2.0}, reply=_billed_differently)
    yield Fault("record-later", "charge", CALLS, "GET /generation knows the call after this time",
                {"ms": 60_000.0}, reply=_record_later)
    yield Fault("record-never", "charge", CALLS, "GET /generation never knows the call", reply=_record_never)
    # fmt: on
