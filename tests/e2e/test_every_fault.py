"""Every fault of the simulator that a chat stream can have: both routes answer alike, and the books hold."""

import asyncio
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World
from tests.support.engine import TOOLS, Answered, http_client, ledger, take_turn
from tests.support.live import LiveApi, environment, live_api

# These play a silence; the clocks that end it have tests of their own, and here they are short.
CLOCKS = {
    "LLM_REQUEST_TIMEOUT_MS": "3000",
    "BRABO_TURN_CEILING_MS": "8000",
    "BRABO_STREAM_CEILING_MS": "8000",
}


PACES = {"delay-accept": 100, "delay-headers": 100, "delay-first-token": 100, "split-bytes": 0}
"""In ms. These end well, however slow the machine is next to the clocks above."""


async def stream_faults(simulator: Simulator) -> list[dict[str, Any]]:
    async with http_client() as client:
        listed = (await client.get(f"{simulator.control_url}/_faults")).json()["faults"]
    return [fault for fault in listed if "stream" in fault["applies_to"]]


BILLED_ANOTHER_WAY = {"billed-differently"}
"""The usage names one cost and the bill another: only a reconciliation can tell."""
FALSE_COUNTS = {"usage-cost-only", "usage-strings", "usage-negative"}
"""The usage names a cost, and no counts that can be read."""
NOT_SAID_TO_BE_REFUSED = {"empty-body", "null-choices", "empty-choices", "json-null", "json-array"}
"""A 200 with a generation id and no answer: whether it ran, only the bill can tell."""


def micros(usd: Decimal) -> int:
    return int((usd * 1_000_000).to_integral_value(ROUND_HALF_UP))


def comparable(got: Answered) -> dict[str, Any]:
    answer = {key: value for key, value in got.answer.items() if key not in ("turnId", "message", "usage")}
    message = got.answer["message"]
    calls = [(call["name"], call["arguments"]) for call in message["toolCalls"]]
    return {
        **answer,
        "content": message["content"],
        "calls": calls,
        "estimated": got.answer["usage"]["estimated"],
    }


@pytest.fixture
async def hasty_api(database_url: str, simulator: Simulator, tmp_path: Path) -> Any:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, **CLOCKS)
    async with live_api(database_url, environ) as running:
        yield running


async def test_both_routes_answer_every_fault_alike_and_the_books_hold(
    hasty_api: LiveApi,
    simulator: Simulator,
    world: World,
    database_url: str,
    summarise: Callable[[str], None],
) -> None:
    faults = await stream_faults(simulator)
    at_once = asyncio.Semaphore(12)

    async def answered(fault: str, stream: bool) -> Answered:
        mark = f"{fault}-{stream}"
        paced = f"{fault};ms={PACES[fault]}" if fault in PACES else fault
        simulator.script({"fault": paced, "mark": f"[mark:{mark}]"})
        messages = [{"role": "user", "content": f"Leia a.ts [mark:{mark}]"}]
        async with at_once:
            return await take_turn(
                hasty_api, world, stream=stream, agentId="dev-api", tools=TOOLS, messages=messages
            )

    cases = [(fault["name"], stream) for fault in faults for stream in (False, True)]
    answers = dict(zip(cases, await asyncio.gather(*(answered(*case) for case in cases)), strict=True))

    rows = {str(row["id"]): row for row in ledger(database_url, world)}
    entries = {entry["mark"]: entry for entry in simulator.bill()["entries"]}
    problems = []
    for (fault, stream), got in answers.items():
        row = rows.pop(got.answer.get("turnId", ""), None)
        found = check(fault, got, row, entries.get(f"{fault}-{stream}"))
        problems += [f"{fault}, stream {stream}: {problem}" for problem in found]
        if not found and stream and comparable(got) != comparable(answers[fault, False]):
            problems.append(f"{fault}: {comparable(answers[fault, False])} != {comparable(got)}")
    summarise(f"chat faults answered alike on both routes: {len(faults)}")
    assert problems == []
    assert rows == {}
    assert len(faults) > 100


def check(fault: str, got: Answered, row: dict[str, Any] | None, entry: dict[str, Any] | None) -> list[str]:
    """What must hold of any turn, whatever the provider did."""
    if got.status != 200:
        return [f"status {got.status}: {got.answer}"]
    problems = []
    answer = got.answer
    if (answer["error"] is None) != ("errorCode" not in answer):
        problems.append("error and errorCode disagree")
    if got.frames and "".join(got.deltas) != answer["message"]["content"]:
        problems.append("the content is not the deltas")
    usage = answer["usage"]
    charged = Decimal(entry["cost"]) if entry else Decimal(0)
    if row is None:
        if usage != {"inputTokens": 0, "outputTokens": 0, "costMicros": 0, "estimated": True}:
            problems.append("usage without a row")
        if charged > 0:
            problems.append(f"charged {charged} and not recorded")
        return problems
    if (row["cost_micros"], row["estimated"]) != (usage["costMicros"], usage["estimated"]):
        problems.append("the row is not the answer's usage")
    if entry is None:
        return problems
    if entry["status"] == "refused" and fault not in NOT_SAID_TO_BE_REFUSED:
        problems.append("refused and recorded")
    if row["price_implicit"] and fault not in BILLED_ANOTHER_WAY and micros(charged) != row["cost_micros"]:
        problems.append(f"the bill says {charged}, the row {row['cost_micros']}")
    billed, recorded = (
        (entry["prompt_tokens"], entry["completion_tokens"]),
        (row["input_tokens"], row["output_tokens"]),
    )
    if not row["estimated"] and fault not in FALSE_COUNTS and billed != recorded:
        problems.append(f"the bill counts {billed}, the row {recorded}")
    return problems
