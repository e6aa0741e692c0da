"""The wire without faults: what OpenRouter answers on its real paths."""

import asyncio
import json
from decimal import Decimal

import pytest

from entrypoints.simulator import Simulator
from tests.e2e.simulator.raw_client import (
    CHAT,
    DECISIONS,
    KEY,
    TOOLS,
    chat_body,
    decisions_body,
    exchange,
    request_bytes,
)


async def test_a_stream_has_comments_chunks_finish_usage_and_done(sim: Simulator) -> None:
    answer = await exchange(sim.base_url, CHAT, chat_body("Olá"))
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body.startswith(b": OPENROUTER PROCESSING\n\n")
    assert answer.data()[-1] == "[DONE]"
    chunks = answer.chunks()
    assert {chunk["id"] for chunk in chunks} == {answer.headers["x-generation-id"]}
    assert {chunk["model"] for chunk in chunks} == {"openai/gpt-4.1-mini-2025-04-14"}
    assert {chunk["provider"] for chunk in chunks} == {"OpenAI"}
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in chunks)
    finish, usage = chunks[-2:]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert "usage" not in finish
    assert usage["choices"] == finish["choices"]
    assert (
        usage["usage"]["total_tokens"]
        == usage["usage"]["prompt_tokens"] + usage["usage"]["completion_tokens"]
    )


async def test_a_tool_call_comes_in_fragments(sim: Simulator) -> None:
    answer = await exchange(
        sim.base_url, CHAT, chat_body("Read 20 lines of the file src/app.py", tools=TOOLS)
    )
    first, *rest = [
        chunk["choices"][0]["delta"]["tool_calls"][0]
        for chunk in answer.chunks()
        if "tool_calls" in chunk["choices"][0]["delta"]
    ]
    assert first["function"] == {"name": "read_file", "arguments": ""}
    assert first["id"]
    assert first["type"] == "function"
    assert len(rest) > 1
    assert all(fragment.keys() == {"index", "function"} for fragment in rest)
    arguments = json.loads("".join(fragment["function"]["arguments"] for fragment in rest))
    assert arguments == {"path": "src/app.py", "limit": 20}
    assert answer.chunks()[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_document_says_the_same_as_the_stream(sim: Simulator) -> None:
    streamed = await exchange(sim.base_url, CHAT, chat_body("Olá"))
    document = (await exchange(sim.base_url, CHAT, chat_body("Olá", stream=False))).json()
    assert document["object"] == "chat.completion"
    assert document["choices"][0]["message"]["content"] == streamed.text()
    assert document["usage"] == streamed.usage()


async def test_a_connection_is_kept_and_requests_on_it_are_answered_in_order(sim: Simulator) -> None:
    host, port = sim.control_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = "/api" + CHAT
    writer.write(
        request_bytes(path, chat_body("first", stream=False), "delay-headers;ms=50", KEY)
        + request_bytes(path, chat_body("second", stream=False), None, KEY)
    )
    raw = b""
    while raw.count(b"HTTP/1.1 200") < 2 or not raw.endswith(b"}"):
        raw += await asyncio.wait_for(reader.read(65536), 2)
    assert raw.index("«first»".encode()) < raw.index("«second»".encode())
    writer.close()


async def test_a_decision_chooses_an_option_with_two_decimal_probabilities(sim: Simulator) -> None:
    answer = await exchange(sim.base_url, DECISIONS, decisions_body("Please read the file src/app.py"))
    document = answer.json()
    assert answer.headers["x-generation-id"] == document["id"]
    assert document["id"].startswith("gen-dec-")
    assert document["model"] == "typesafe/jev-1.13-20260917"
    assert document["answers"]["tool"]["choice"] == "read_file"
    probabilities = document["answers"]["tool"]["probabilities"]
    assert probabilities.keys() == {"search_web", "read_file", "none"}
    assert all(round(p, 2) == p for p in probabilities.values())
    assert 0 <= document["answers"]["tool"]["confidence"] <= 1


async def test_a_decision_turns_to_another_option_once_one_has_been_used(sim: Simulator) -> None:
    state = {"request": "Read the file, then search", "steps": [{"tool": "nothing"}]}
    answer = await exchange(sim.base_url, DECISIONS, decisions_body(state))
    assert answer.json()["answers"]["tool"]["choice"] == "read_file"
    state["steps"] = [{"tool": "read_file"}]
    answer = await exchange(sim.base_url, DECISIONS, decisions_body(state))
    assert answer.json()["answers"]["tool"]["choice"] == "search_web"


async def test_decisions_answer_scores_and_nouls_too(sim: Simulator) -> None:
    body = decisions_body("The build is broken and blocks the release")
    body["questions"] = {
        "urgency": {
            "type": "score",
            "instructions": "How urgent",
            "criteria": ["can wait", "blocks the release"],
        },
        "is_bug": {"type": "noul", "instructions": "The build is broken"},
    }
    answers = (await exchange(sim.base_url, DECISIONS, body)).json()["answers"]
    assert answers["urgency"]["score"] > 0.8
    assert answers["urgency"]["legend"] == {"0": "can wait", "1": "blocks the release"}
    assert answers["is_bug"].keys() == {"type", "noul"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"questions": [{"type": "choice"}]}, "expected record"),
        ({"state": None}, '"state"'),
        ({"model": "typesafe/jev-latest"}, "Model typesafe/jev-latest does not exist"),
        ({"model": "openai/gpt-4o"}, "not a decisions model"),
        ({"questions": {"q": {"type": "choice", "criteria": {"a": None}}}}, '"instructions"'),
        ({"questions": {"q": {"type": "choice", "instructions": "?", "criteria": {}}}}, "1 to 255 options"),
        (
            {"questions": {"q": {"type": "noul", "instructions": "?", "criteria": {"true": ""}}}},
            "true and false",
        ),
    ],
)
async def test_a_decision_that_the_schema_forbids_is_400(
    sim: Simulator, change: dict[str, object], says: str
) -> None:
    answer = await exchange(sim.base_url, DECISIONS, decisions_body() | change)
    assert answer.status == 400
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"model": "openai/gpt-9"}, 400, "openai/gpt-9 is not a valid model ID"),
        ({"model": "typesafe/jev-1.13"}, 400, "Use the /api/alpha/decisions endpoint"),
        ({"messages": []}, 400, "Input required"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]},
            400,
            "Provider returned error",
        ),
        ({"provider": {"max_price": {"prompt": 0.39}}}, 404, "max_price"),
    ],
)
async def test_a_chat_that_nobody_would_run_is_refused(
    sim: Simulator, change: dict[str, object], status: int, says: str
) -> None:
    answer = await exchange(sim.base_url, CHAT, chat_body() | change)
    assert (answer.status, answer.json()["error"]["code"]) == (status, status)
    assert says in answer.json()["error"]["message"]


async def test_a_price_at_the_limit_is_accepted(sim: Simulator) -> None:
    body = chat_body(provider={"max_price": {"prompt": 0.4, "completion": "1.6"}})
    assert (await exchange(sim.base_url, CHAT, body)).status == 200


@pytest.mark.parametrize(
    "broken", [b"", b"{", b"[]", b"\xff", b"[" * 50_000, b'{"messages": "\\ud800"}'], ids=range(6)
)
async def test_a_body_that_is_no_json_object_is_400(sim: Simulator, broken: bytes) -> None:
    for path in (CHAT, DECISIONS):
        assert (await exchange(sim.base_url, path, broken)).status == 400


async def test_max_tokens_cuts_text_and_calls_as_a_provider_does(sim: Simulator) -> None:
    text = await exchange(sim.base_url, CHAT, chat_body("Olá", max_tokens=6))
    assert text.chunks()[-1]["choices"][0]["finish_reason"] == "length"
    assert text.usage()["completion_tokens"] == 6

    call = await exchange(sim.base_url, CHAT, chat_body("Read the file a/b.py", max_tokens=5, tools=TOOLS))
    choice = call.chunks()[-1]["choices"][0]
    assert (choice["finish_reason"], choice["native_finish_reason"]) == ("tool_calls", "length")


async def test_the_key_is_checked(sim: Simulator) -> None:
    for key, message in ((None, "Missing Authentication header"), ("sk-or-v1-revoked", "User not found.")):
        for path, body in (
            (CHAT, chat_body()),
            (DECISIONS, decisions_body()),
            ("/v1/key", None),
            ("/v1/credits", None),
        ):
            answer = await exchange(sim.base_url, path, body, key=key)
            assert answer.status == 401
            assert answer.json()["error"]["message"] == message


async def test_models_leave_decision_models_out_unless_asked(sim: Simulator) -> None:
    plain = (await exchange(sim.base_url, "/v1/models", key=None)).json()
    ids = [model["id"] for model in plain["data"]]
    assert "openai/gpt-4.1-mini" in ids
    assert not any(model_id.startswith("typesafe/") for model_id in ids)
    mini = plain["data"][ids.index("openai/gpt-4.1-mini")]
    assert mini["pricing"]["prompt"] == "0.0000004"

    decisions = (await exchange(sim.base_url, "/v1/models?output_modalities=decisions")).json()
    assert [(model["id"], model["pricing"]["prompt"]) for model in decisions["data"]] == [
        ("typesafe/jev-1.13", "0.000000042")
    ]
    every = (await exchange(sim.base_url, "/v1/models?output_modalities=all")).json()
    assert every["total_count"] == plain["total_count"] + 1

    page = (await exchange(sim.base_url, "/v1/models?offset=2&limit=3")).json()
    assert [model["id"] for model in page["data"]] == ids[2:5]
    assert page["links"]["next"] is not None


async def test_key_and_credits_add_up_what_the_key_used(sim: Simulator) -> None:
    await exchange(sim.base_url, CHAT, chat_body())
    await exchange(sim.base_url, CHAT, chat_body(), key="sk-or-v1-another")
    used = Decimal(sim.bill()["entries"][0]["cost"])
    key = (await exchange(sim.base_url, "/v1/key")).body
    assert json.loads(key, parse_float=Decimal)["data"]["usage"] == used
    assert KEY not in key.decode()

    account = await exchange(sim.base_url, "/v1/credits")
    assert account.json()["data"]["total_usage"] == 0
    sim.advance_clock(25_000)
    account = await exchange(sim.base_url, "/v1/credits")
    assert json.loads(account.body, parse_float=Decimal)["data"] == {
        "total_credits": 100,
        "total_usage": used,
    }


async def test_a_path_that_is_none_is_404(sim: Simulator) -> None:
    for path in ("/v1/alpha/decisions", "/v2/chat/completions"):
        answer = await exchange(sim.base_url, path, chat_body())
        assert answer.json()["error"] == {"message": "Not Found", "code": 404}


async def test_what_is_not_http_is_answered_and_closed(sim: Simulator) -> None:
    host, port = sim.control_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 2)).startswith(b"HTTP/1.1 400 ")
    writer.close()
