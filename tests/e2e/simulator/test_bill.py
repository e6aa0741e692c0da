"""The bill: every call from its acceptance, exact, whatever became of the connection."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from tests.e2e.simulator.raw_client import CHAT, DECISIONS, Answer, chat_body, decisions_body, exchange

PROMPT_USD = Decimal("0.0000004")
COMPLETION_USD = Decimal("0.0000016")


def only_entry(sim: Simulator) -> dict[str, Any]:
    entries: list[dict[str, Any]] = sim.bill()["entries"]
    [entry] = entries
    return entry


def exact_usage(answer: Answer) -> Any:
    return json.loads(answer.data()[-2], parse_float=Decimal)["usage"]


async def settled(sim: Simulator) -> dict[str, Any]:
    """The only entry, once the connection's end has been noticed."""
    async with asyncio.timeout(2):
        while sim.bill()["in_flight"]:
            await asyncio.sleep(0.005)
    return only_entry(sim)


async def test_a_finished_stream_costs_exactly_what_usage_says(sim: Simulator) -> None:
    answer = await exchange(sim.base_url, CHAT, chat_body("Olá [mark:turn-7]"))
    entry, usage = only_entry(sim), exact_usage(answer)
    assert entry["id"] == answer.headers["x-generation-id"]
    assert entry["mark"] == "turn-7"
    assert entry["status"] == "finished"
    assert entry["delivered"] is True
    assert Decimal(entry["cost"]) == usage["cost"]
    assert usage["cost"] == usage["prompt_tokens"] * PROMPT_USD + usage["completion_tokens"] * COMPLETION_USD


async def test_a_decision_costs_its_input_tokens(sim: Simulator) -> None:
    answer = await exchange(sim.base_url, DECISIONS, decisions_body({"request": "Read [mark:t-1] the file"}))
    usage = json.loads(answer.body, parse_float=Decimal)["usage"]
    assert usage["cost"] == usage["input_tokens"] * Decimal("0.000000042")
    assert Decimal(only_entry(sim)["cost"]) == usage["cost"]
    assert only_entry(sim)["mark"] == "t-1"


async def test_the_total_is_exact(sim: Simulator) -> None:
    sim.script({"times": None, "reply": {"text": "x", "cost": "0.0000001"}})
    for _ in range(30):
        await exchange(sim.base_url, CHAT, chat_body(stream=False))
    answer = await exchange(sim.control_url, "/_bill")
    assert answer.json()["total"] == "0.000003"
    assert answer.json()["count"] == 30


async def test_a_call_is_on_the_bill_while_it_runs(sim: Simulator) -> None:
    slow = asyncio.create_task(exchange(sim.base_url, CHAT, chat_body(), fault="delay-first-token;ms=150"))
    await asyncio.sleep(0.05)
    bill = sim.bill()
    assert (bill["in_flight"], bill["entries"][0]["status"], bill["entries"][0]["charged"]) == (
        1,
        "accepted",
        True,
    )
    await slow
    assert only_entry(sim)["status"] == "finished"
    assert sim.bill()["peak_in_flight"] == 1


async def test_nothing_is_on_the_bill_before_acceptance(sim: Simulator) -> None:
    slow = asyncio.create_task(exchange(sim.base_url, CHAT, chat_body(), fault="delay-accept;ms=150"))
    await asyncio.sleep(0.05)
    assert sim.bill()["count"] == 0
    await slow
    assert sim.bill()["count"] == 1


async def test_who_leaves_a_stream_pays_for_the_prompt_and_what_was_generated(sim: Simulator) -> None:
    sim.script({"reply": {"text": ["palavra "] * 50, "between_ms": 20}})
    left = await exchange(sim.base_url, CHAT, chat_body(), leave_after=1500)
    seen = len([chunk for chunk in left.chunks() if chunk["choices"][0]["delta"]["content"]])
    entry = await settled(sim)
    assert entry["status"] == "cancelled"
    assert entry["cancelled"] is True
    assert entry["delivered"] is False
    assert seen * 2 <= entry["completion_tokens"] < 100
    cost = entry["prompt_tokens"] * PROMPT_USD + entry["completion_tokens"] * COMPLETION_USD
    assert Decimal(entry["cost"]) == cost
    after = entry["completion_tokens"]
    await asyncio.sleep(0.1)
    assert only_entry(sim)["completion_tokens"] == after


async def test_who_leaves_before_the_first_token_pays_for_the_prompt(sim: Simulator) -> None:
    await exchange(sim.base_url, CHAT, chat_body(), fault="delay-headers;ms=5000", patience_s=0.05)
    entry = await settled(sim)
    assert (entry["status"], entry["completion_tokens"], entry["headers_sent"]) == ("cancelled", 0, False)
    assert Decimal(entry["cost"]) == entry["prompt_tokens"] * PROMPT_USD


@pytest.mark.parametrize("how", ["fault", "provider"])
async def test_a_provider_without_cancellation_charges_in_full(sim: Simulator, how: str) -> None:
    body = chat_body(model="google/gemini-2.5-flash") if how == "provider" else chat_body()
    sim.script(
        {
            "reply": {"text": ["palavra "] * 50, "between_ms": 20},
            "fault": "cancel-unsupported" if how == "fault" else "",
        }
    )
    await exchange(sim.base_url, CHAT, body, leave_after=1500)
    entry = await settled(sim)
    assert (entry["status"], entry["client_left"], entry["completion_tokens"]) == ("finished", True, 100)


async def test_who_leaves_a_document_or_a_decision_pays_in_full(sim: Simulator) -> None:
    for path, body in ((CHAT, chat_body(stream=False)), (DECISIONS, decisions_body())):
        sim.reset()
        await exchange(sim.base_url, path, body, fault="delay-headers;ms=5000", patience_s=0.05)
        entry = await settled(sim)
        assert (entry["status"], entry["client_left"], entry["charged"]) == ("finished", True, True)
        assert entry["completion_tokens"] > 0


async def test_a_cut_is_charged_for_what_was_generated_and_a_charged_cut_in_full(sim: Simulator) -> None:
    sim.script({"times": 3, "reply": {"text": ["palavra "] * 50}})
    await exchange(sim.base_url, CHAT, chat_body(), fault="reset;after=3")
    await exchange(sim.base_url, CHAT, chat_body(), fault="charged-cut;after=3")
    await exchange(sim.base_url, CHAT, chat_body(), fault="reset;after=0")
    generated, full, nothing = sim.bill()["entries"]
    assert (generated["completion_tokens"], full["completion_tokens"]) == (6, 100)
    assert (generated["delivered"], full["delivered"]) == (False, False)
    assert Decimal(full["cost"]) == full["prompt_tokens"] * PROMPT_USD + 100 * COMPLETION_USD
    assert nothing["cost"] == "0"


async def test_refused_and_failed_calls_are_free(sim: Simulator) -> None:
    for fault in ("overloaded", "moderation", "error-200", "error-frame", "html"):
        await exchange(sim.base_url, CHAT, chat_body(), fault=fault)
    await exchange(sim.base_url, CHAT, chat_body(), key=None)
    entries = sim.bill()["entries"]
    assert [entry["cost"] for entry in entries] == ["0"] * 6
    assert [entry["status"] for entry in entries] == ["refused"] * 3 + ["finished"] + ["refused"] * 2
    assert [entry["http_status"] for entry in entries] == [529, 403, 200, 200, 502, 401]
    assert entries[0]["faults"] == ["overloaded"]


async def generation(sim: Simulator, entry_id: str, **options: Any) -> Answer:
    return await exchange(sim.base_url, f"/v1/generation?id={entry_id}", **options)


async def test_a_record_is_404_first_and_then_the_truth(sim: Simulator) -> None:
    await exchange(sim.base_url, CHAT, chat_body(), fault="billed-differently;factor=1.5")
    entry = only_entry(sim)
    assert (await generation(sim, entry["id"])).status == 404
    sim.advance_clock(24_000)
    assert (await generation(sim, entry["id"])).status == 404
    await exchange(sim.control_url, "/_clock", {"advance_ms": 1_500})
    record = json.loads((await generation(sim, entry["id"])).body, parse_float=Decimal)["data"]
    assert record["total_cost"] == Decimal(entry["cost"])
    assert record["total_cost"] == record["tokens_prompt"] * PROMPT_USD * Decimal("1.5") + record[
        "tokens_completion"
    ] * COMPLETION_USD * Decimal("1.5")
    assert (record["cancelled"], record["streamed"], record["api_type"]) == (False, True, "completions")
    assert (await generation(sim, entry["id"], key="sk-or-v1-another")).status == 404
    assert (await generation(sim, "gen-unknown")).status == 404


async def test_records_of_cancelled_calls_decisions_and_failures(sim: Simulator) -> None:
    sim.script({"reply": {"text": ["palavra "] * 50, "between_ms": 20}})
    await exchange(sim.base_url, CHAT, chat_body(), leave_after=1500)
    await settled(sim)
    await exchange(sim.base_url, DECISIONS, decisions_body())
    await exchange(sim.base_url, CHAT, chat_body(), fault="error-200")
    await exchange(sim.base_url, CHAT, chat_body(), fault="record-never")
    await exchange(sim.base_url, CHAT, chat_body(), fault="record-later;ms=90000")
    sim.advance_clock(60_000)
    records = [await generation(sim, entry["id"]) for entry in sim.bill()["entries"]]
    assert [record.status for record in records] == [200, 200, 200, 404, 404]
    assert records[0].json()["data"]["cancelled"] is True
    assert records[1].json()["data"]["api_type"] == "decisions"
    assert records[2].json()["data"]["total_cost"] == 0
    sim.advance_clock(60_000)
    assert (await generation(sim, sim.bill()["entries"][4]["id"])).status == 200


async def test_the_delay_of_records_can_be_set_and_lookups_can_fail(sim: Simulator) -> None:
    await exchange(sim.control_url, "/_clock", {"generation_delay_ms": 0})
    await exchange(sim.base_url, CHAT, chat_body())
    entry = only_entry(sim)
    sim.script({"path": "lookup", "fault": "unavailable"})
    assert (await generation(sim, entry["id"])).status == 503
    assert (await generation(sim, entry["id"])).status == 200
    assert (await exchange(sim.control_url, "/_clock", {"advance_ms": -1})).status == 400


async def test_a_slow_reader_is_waited_for_and_leaving_stops_the_generation(sim: Simulator) -> None:
    sim.script({"reply": {"text": ["x" * 40_000] * 500}})
    await exchange(sim.base_url, CHAT, chat_body(), leave_after=1)
    entry = await settled(sim)
    assert entry["status"] == "cancelled"
    assert entry["completion_tokens"] < 500 * 10_000
