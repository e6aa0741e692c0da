"""Each row of the fault table must show on the wire or on the bill; a row that does nothing fails here."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from entrypoints.simulator.faults import FAULTS
from tests.e2e.simulator.raw_client import CHAT, DECISIONS, TOOLS, Answer, chat_body, decisions_body, exchange

CASES = [(name, kind) for name, fault in FAULTS.items() for kind in sorted(fault.applies_to)]
# Short enough for a test, long enough to be told from none.
QUICK = {
    "delay-accept": "ms=80",
    "delay-headers": "ms=80",
    "delay-first-token": "ms=80",
    "delay-between": "ms=40",
    "comments-only": "ms=10;count=5",
    "drip": "bytes=100;ms=25",
    "split-bytes": "bytes=16;ms=0.2",
}
SLOWED = {"delay-accept", "delay-headers", "delay-first-token", "delay-between", "drip"}
SPLIT = {"split-bytes", "split-utf8"}
ON_THE_BILL_ONLY = {"cancel-unsupported", "billed-differently", "record-later", "record-never"}


async def ask(sim: Simulator, name: str, kind: str, fault: str | None) -> Answer:
    tools = TOOLS if "call-" in name else None
    fields = {} if tools is None else {"tools": tools}
    text = "Read the file src/app.py" if tools else "Olá"
    match kind:
        case "stream" | "json":
            body = chat_body(text, stream=kind == "stream", **fields)
            return await exchange(sim.base_url, CHAT, body, fault=fault, patience_s=0.25)
        case "decisions":
            return await exchange(sim.base_url, DECISIONS, decisions_body(), fault=fault, patience_s=0.25)
        case _:
            return await exchange(sim.base_url, "/v1/models", fault=fault, patience_s=0.25)


def shown(answer: Answer) -> tuple[Any, ...]:
    """What a client sees, without ids and times."""
    without_ids = re.sub(rb"gen-(dec-)?\d+-\w+", b"ID", re.sub(rb'"created":\d+', b'"created":0', answer.raw))
    return answer.ending, answer.status, without_ids


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{name}-on-{kind}" for name, kind in CASES])
async def test_every_fault_shows_and_settles(sim: Simulator, name: str, kind: str) -> None:
    usual = await ask(sim, name, kind, None)
    assert usual.ending == "complete"
    assert usual.status == 200
    sim.reset()

    faulty = await ask(sim, name, kind, f"{name};{QUICK[name]}" if name in QUICK else name)
    await asyncio.sleep(0.01)

    if name in SLOWED:
        assert faulty.elapsed_s >= 0.07
    elif name in SPLIT:
        assert faulty.segments > usual.segments
    elif name not in ON_THE_BILL_ONLY:
        assert shown(faulty) != shown(usual)
    bill = sim.bill()
    assert bill["in_flight"] == 0
    assert [entry["status"] for entry in bill["entries"] if entry["status"] == "accepted"] == []
    billed = kind != "lookup" and FAULTS[name].phase != "accept"
    assert bill["count"] == (1 if billed or (name == "delay-accept" and kind != "lookup") else 0)
    if faulty.status is not None and faulty.status >= 400:
        assert bill["total"] == "0"


def test_the_faults_of_the_wire_description_are_all_there() -> None:
    named = [
        "status",
        "delay-accept",
        "delay-headers",
        "delay-first-token",
        "delay-between",
        "silence",
        "reset",
        "truncated",
        "error-frame",
        "malformed-json",
        "comment-flood",
        "split-utf8",
        "usage-missing",
        "usage-zero",
        "html",
        "wrong-content-type",
        "charged-cut",
        "error-200",
        "error-200-null-choices",
        "null-choices",
        "nested-provider",
        "error-on-usage",
        "error-word-code",
        "error-string-code",
        "error-bare",
        "call-cut",
        "no-done",
        "empty-body",
        "byok",
        "cost-string",
        "cost-negative",
        "cost-null",
        "cost-absent",
        "in-flight-budget",
        "rate-limit",
        "rate-limit-retry-after",
        "moderation",
        "no-endpoints",
        "edge-timeout",
        "overloaded",
        "redirect",
        "oversized",
        "drip",
        "choice-outside",
        "tie",
        "no-confidence",
        "no-probabilities",
        "confidence-nan",
        "unknown-answers",
        "no-allowed-providers",
        "crlf",
        "no-space",
        "multi-line",
        "no-ids",
        "reasoning",
        "refusal-text",
        "usage-empty-choices",
        "usage-null-finish",
        "usage-twice",
        "cancel-unsupported",
    ]
    assert [name for name in named if name not in FAULTS] == []


async def test_the_list_tells_phase_kinds_description_and_parameters(sim: Simulator) -> None:
    listed = (await exchange(sim.control_url, "/_faults")).json()["faults"]
    assert len(listed) == len(FAULTS)
    rows = {row["name"]: row for row in listed}
    assert rows["reset"] == {
        "name": "reset",
        "phase": "tokens",
        "applies_to": ["stream"],
        "description": "some frames, then reset; charged for what was generated",
        "parameters": {"after": 2},
    }
    assert all(row["description"] and row["applies_to"] for row in listed)


def first_error(answer: Answer) -> Any:
    return next(chunk["error"] for chunk in answer.chunks() if "error" in chunk)


def calls_of(answer: Answer) -> list[dict[str, Any]]:
    return [
        fragment
        for chunk in answer.chunks()
        for choice in chunk["choices"]
        for fragment in choice["delta"].get("tool_calls") or ()
    ]


def last_choice(answer: Answer) -> Any:
    return answer.chunks()[-1]["choices"][0]


def answers(answer: Answer) -> Any:
    return answer.json()["answers"]["tool"]


# name, kind, what must be true of the answer
EXACT: list[tuple[str, str, Callable[[Answer], bool]]] = [
    ("reset-accept", "stream", lambda a: a.ending == "reset" and a.raw == b""),
    ("silence-headers", "stream", lambda a: a.ending == "silent" and a.raw == b""),
    ("close-headers", "decisions", lambda a: a.ending == "closed" and a.raw == b""),
    ("reset", "stream", lambda a: a.ending == "reset" and len(a.chunks()) == 2),
    ("silence", "stream", lambda a: a.ending == "silent" and len(a.chunks()) == 2),
    ("truncated", "stream", lambda a: a.ending == "closed" and not a.body.endswith(b"\n")),
    ("truncated-cleanly", "stream", lambda a: a.ending == "complete" and not a.body.endswith(b"\n")),
    (
        "end-first-token",
        "stream",
        lambda a: a.ending == "complete" and a.data() == [] and b": OPENR" in a.body,
    ),
    (
        "silence-after-finish",
        "stream",
        lambda a: a.ending == "silent" and last_choice(a)["finish_reason"] == "stop",
    ),
    ("open-after-done", "stream", lambda a: a.ending == "silent" and a.data()[-1] == "[DONE]"),
    ("no-done", "stream", lambda a: a.ending == "complete" and "[DONE]" not in a.data()),
    ("comments-only", "stream", lambda a: a.body.count(b": OPENROUTER") == 5 and a.data() == []),
    ("comment-flood", "stream", lambda a: a.body.count(b": OPENROUTER") > 400),
    ("crlf", "stream", lambda a: b"\r\n\r\ndata: {" in a.body and b"\n\n" not in a.body),
    ("no-space", "stream", lambda a: b"data:{" in a.body and b"data: " not in a.body),
    ("multi-line", "stream", lambda a: a.body.count(b"data:") > 50 and a.usage()["cost"] > 0),
    ("no-ids", "stream", lambda a: all("id" not in chunk for chunk in a.chunks())),
    ("surrogate-halves", "stream", lambda a: b'"\\ud83d"' in a.body and b'"\\ude00"' in a.body),
    ("line-separators", "stream", lambda a: "\u2028".encode() in a.body),
    ("usage-empty-choices", "stream", lambda a: a.chunks()[-1]["choices"] == []),
    ("usage-null-finish", "stream", lambda a: last_choice(a)["finish_reason"] is None),
    ("usage-twice", "stream", lambda a: sum("usage" in chunk for chunk in a.chunks()) == 2),
    ("usage-missing", "stream", lambda a: all("usage" not in chunk for chunk in a.chunks())),
    ("usage-zero", "stream", lambda a: a.usage()["total_tokens"] == 0 and a.usage()["cost"] == 0),
    ("cost-string", "stream", lambda a: isinstance(a.usage()["cost"], str)),
    ("cost-negative", "stream", lambda a: a.usage()["cost"] < 0),
    ("cost-null", "decisions", lambda a: a.json()["usage"]["cost"] is None),
    ("cost-absent", "json", lambda a: "cost" not in a.json()["usage"]),
    ("cost-exponent", "stream", lambda a: re.search(rb'"cost":[\d.]+e-\d', a.body) is not None),
    ("byok", "stream", lambda a: a.usage()["is_byok"] is True),
    (
        "error-frame",
        "stream",
        lambda a: first_error(a)["code"] == 502 and last_choice(a)["finish_reason"] == "error",
    ),
    ("error-first", "stream", lambda a: len(a.data()) == 1 and first_error(a)["code"] == 502),
    ("error-word-code", "stream", lambda a: first_error(a)["code"] == "server_error"),
    ("error-bare", "stream", lambda a: json.loads(a.data()[-1]).keys() == {"error"}),
    (
        "error-on-usage",
        "stream",
        lambda a: a.chunks()[-1].keys() >= {"error", "usage"} and a.data()[-1] == "[DONE]",
    ),
    ("finish-error", "stream", lambda a: last_choice(a)["native_finish_reason"] == "MALFORMED_FUNCTION_CALL"),
    ("choice-error", "json", lambda a: a.json()["choices"][0]["error"]["code"] == 502),
    (
        "call-cut",
        "stream",
        lambda a: last_choice(a)["native_finish_reason"] == "length" and len(calls_of(a)) >= 2,
    ),
    ("call-no-arguments", "stream", lambda a: [c["function"]["arguments"] for c in calls_of(a)] == [""]),
    ("call-no-id", "stream", lambda a: all("id" not in call for call in calls_of(a))),
    ("call-interleaved", "stream", lambda a: [call["index"] for call in calls_of(a)] == [0, 1, 0, 1, 0, 1]),
    ("call-same-index", "stream", lambda a: {call["index"] for call in calls_of(a)} == {0}),
    (
        "call-whole",
        "stream",
        lambda a: len(calls_of(a)) == 1 and "path" in calls_of(a)[0]["function"]["arguments"],
    ),
    ("call-arguments-object", "stream", lambda a: isinstance(calls_of(a)[0]["function"]["arguments"], dict)),
    ("document-for-stream", "stream", lambda a: a.json()["choices"][0]["message"]["content"] != ""),
    ("nested-provider", "stream", lambda a: a.json().keys() == {"provider"}),
    ("html", "stream", lambda a: a.status == 502 and a.headers["content-type"].startswith("text/html")),
    ("redirect", "decisions", lambda a: a.status == 307 and a.headers["location"] == "/_redirected"),
    ("in-flight-budget", "stream", lambda a: a.status == 402 and a.headers["retry-after"] == "1"),
    ("rate-limit", "stream", lambda a: a.status == 429 and "retry-after" not in a.headers),
    ("window-exceeded-bare", "decisions", lambda a: a.json() == {"error": "max_tokens_exceeded"}),
    ("choice-outside", "decisions", lambda a: answers(a)["choice"] == "outra_ferramenta"),
    ("tie", "decisions", lambda a: sorted(answers(a)["probabilities"].values())[-2:] == [0.5, 0.5]),
    ("confidence-nan", "decisions", lambda a: b'"confidence":NaN' in a.body),
    ("bare-choice", "decisions", lambda a: answers(a).keys() == {"type", "choice"}),
    (
        "unknown-answers",
        "decisions",
        lambda a: answers(a)["type"] == "choice" and len(a.json()["answers"]) == 5,
    ),
    ("oversized", "decisions", lambda a: len(a.body) > 1024 * 1024 and answers(a)["choice"] == "read_file"),
    ("no-allowed-providers", "decisions", lambda a: a.status == 404 and b"No allowed providers" in a.body),
]


@pytest.mark.parametrize(
    ("name", "kind", "holds"), EXACT, ids=[f"{name}-on-{kind}" for name, kind, _ in EXACT]
)
async def test_a_fault_does_what_it_says(
    sim: Simulator, name: str, kind: str, holds: Callable[[Answer], bool]
) -> None:
    answer = await ask(sim, name, kind, f"{name};{QUICK[name]}" if name in QUICK else name)
    assert holds(answer), (answer.ending, answer.raw[-2000:])


async def test_characters_are_cut_between_their_bytes(sim: Simulator) -> None:
    answer = await exchange(sim.base_url, CHAT, chat_body(), fault="split-utf8")
    assert "ação 😀" in answer.text()
    chunk_payloads = [part for part in re.split(rb"\r\n[0-9a-f]+\r\n", answer.raw) if part]
    assert any(payload[-1] >= 0xC0 for payload in chunk_payloads)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("no-such-fault", "no fault is called 'no-such-fault'"),
        ("reset;befor=1", "no parameter 'befor'; it has: after"),
        ("reset;after=soon", "after must be a whole number, not 'soon'"),
        ("choice-outside", "applies to decisions, and this is stream"),
    ],
)
async def test_a_fault_that_cannot_be_is_refused_with_its_reason(
    sim: Simulator, fault: str, says: str
) -> None:
    answer = await exchange(sim.base_url, CHAT, chat_body(), fault=fault)
    assert answer.status == 400
    assert says in answer.json()["error"]["message"]


async def test_faults_combine_and_take_parameters(sim: Simulator) -> None:
    answer = await exchange(
        sim.base_url, CHAT, chat_body(), fault="crlf, error-frame;after=2;code=429;message=Busy"
    )
    assert b"\r\n\r\n" in answer.body
    assert first_error(answer) == {"code": 429, "message": "Busy"}
    assert len(answer.chunks()) == 3
