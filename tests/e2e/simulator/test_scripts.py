"""What the simulator says: scripts, the default agent, and what it remembers of requests."""

import json
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from tests.e2e.simulator.raw_client import CHAT, DECISIONS, KEY, TOOLS, chat_body, decisions_body, exchange


async def say(sim: Simulator, text: str = "Olá", **fields: Any) -> str:
    return (await exchange(sim.base_url, CHAT, chat_body(text, **fields))).text()


async def test_scripts_are_used_in_order_each_as_often_as_it_says(sim: Simulator) -> None:
    answer = await exchange(
        sim.control_url,
        "/_script",
        [{"times": 2, "reply": {"text": "um"}}, {"reply": {"text": ["do", "is"]}}],
    )
    assert answer.json() == {"accepted": 2, "waiting": 2}
    assert [await say(sim) for _ in range(3)] == ["um", "um", "dois"]
    assert (await say(sim)).startswith("Recebi o pedido")


async def test_a_mark_chooses_the_call_whose_last_user_message_holds_it(sim: Simulator) -> None:
    sim.script({"mark": "[mark:b]", "times": None, "reply": {"text": "para b"}})
    assert await say(sim, "x [mark:a]") != "para b"
    assert await say(sim, "x [mark:b]") == "para b"
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x [mark:b]"}]},
        {"role": "system", "content": "Be brief."},
    ]
    assert await say(sim, messages=messages) == "para b"
    sim.reset()
    assert await say(sim, "x [mark:b]") != "para b"


async def test_a_path_and_the_kind_of_reply_choose_the_call(sim: Simulator) -> None:
    sim.script(
        {"path": "decisions", "fault": "overloaded"},
        {"reply": {"choice": "none", "confidence": 0.31}},
        {"fault": "choice-outside"},
        {"reply": {"text": "conversa"}},
    )
    assert await say(sim) == "conversa"
    statuses, choices = [], []
    for _ in range(3):
        answer = await exchange(sim.base_url, DECISIONS, decisions_body())
        statuses.append(answer.status)
        choices.append(answer.json().get("answers", {}).get("tool"))
    assert statuses == [529, 200, 200]
    assert choices[1]["choice"] == "none"
    assert choices[1]["confidence"] == 0.31
    assert choices[2]["choice"] == "outra_ferramenta"


async def test_a_script_sets_calls_pieces_usage_and_cost(sim: Simulator) -> None:
    sim.script(
        {
            "reply": {
                "text": "abcdefghij",
                "tool_calls": [
                    {"name": "read_file", "arguments": {"path": "ç"}, "id": "call_x"},
                    {"name": "ping"},
                ],
                "pieces": 5,
                "usage": {"prompt_tokens": 1000, "completion_tokens": 10},
                "reasoning": "hm",
            }
        },
        {"reply": {"text": "x", "cost": "0.0125", "billed_cost": "0.01"}},
    )
    answer = await exchange(sim.base_url, CHAT, chat_body(tools=TOOLS))
    pieces = [chunk["choices"][0]["delta"].get("content") for chunk in answer.chunks()]
    assert [piece for piece in pieces if piece] == ["ab", "cd", "ef", "gh", "ij"]
    assert answer.usage()["prompt_tokens"] == 1000
    assert sim.bill()["entries"][0]["cost"] == "0.000416"
    calls = [call for chunk in answer.chunks() for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert next(call["id"] for call in calls if "id" in call) == "call_x"
    assert {call["index"] for call in calls} == {0, 1}

    answer = await exchange(sim.base_url, CHAT, chat_body())
    assert answer.usage()["cost"] == 0.0125
    assert sim.bill()["entries"][1]["cost"] == "0.01"


async def test_pacing_without_a_reply_keeps_the_default_agent(sim: Simulator) -> None:
    sim.script({"reply": {"first_token_ms": 60, "between_ms": 30}})
    answer = await exchange(sim.base_url, CHAT, chat_body())
    assert answer.text().startswith("Recebi o pedido")
    assert 0.115 < answer.elapsed_s < 1


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"fault": "nope"}, "no fault is called 'nope'"),
        ({"times": 0}, "times must be 1 or more"),
        ({"reply": {"texto": "x"}}, "texto"),
        ({"path": "embeddings"}, "embeddings"),
        ({"reply": {"usage": {"prompt_tokens": "7"}}}, "usage.prompt_tokens"),
    ],
)
async def test_a_script_that_cannot_be_is_refused_whole(
    sim: Simulator, script: dict[str, Any], says: str
) -> None:
    answer = await exchange(sim.control_url, "/_script", [{"reply": {"text": "good"}}, script])
    assert answer.status == 400
    assert says in answer.json()["error"]["message"]
    assert await say(sim) != "good"


async def test_faults_of_the_run_apply_where_they_fit_and_a_header_overrides_them() -> None:
    async with Simulator.start(faults="choice-outside, crlf") as sim:
        streamed = await exchange(sim.base_url, CHAT, chat_body())
        decided = await exchange(sim.base_url, DECISIONS, decisions_body())
        clean = await exchange(sim.base_url, CHAT, chat_body(), fault="none")
    assert b"\r\n\r\n" in streamed.body
    assert decided.json()["answers"]["tool"]["choice"] == "outra_ferramenta"
    assert b"\r\n" not in clean.body


async def test_the_agent_calls_tools_in_turn_and_then_answers(sim: Simulator) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": 'Search the web for "tarifas" and read the file docs/a.md'},
    ]
    body = {"model": "openai/gpt-4o-mini", "messages": messages, "tools": TOOLS}
    called: list[tuple[str, dict[str, Any]]] = []
    while True:
        choice = (await exchange(sim.base_url, CHAT, body)).json()["choices"][0]
        if choice["finish_reason"] != "tool_calls":
            break
        message = choice["message"]
        call = message["tool_calls"][0]
        assert len(called) < 6
        called.append((call["function"]["name"], json.loads(call["function"]["arguments"])))
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "resultado 42"}]
    assert dict(called) == {"read_file": {"path": "docs/a.md", "limit": 1}, "search_web": {}}
    assert len(called) == 2
    assert "resultado 42" in choice["message"]["content"]
    again = await exchange(sim.base_url, CHAT, body)
    assert again.json()["choices"] == [choice]


async def test_the_agent_obeys_tool_choice(sim: Simulator) -> None:
    async def called(**fields: Any) -> list[str]:
        answer = await exchange(
            sim.base_url, CHAT, chat_body("Read a file", stream=False, tools=TOOLS, **fields)
        )
        return [
            call["function"]["name"] for call in answer.json()["choices"][0]["message"].get("tool_calls", [])
        ]

    assert await called() == ["read_file"]
    assert await called(tool_choice="none") == []
    assert await called(tool_choice={"type": "function", "function": {"name": "search_web"}}) == [
        "search_web"
    ]


async def test_arguments_follow_the_schema(sim: Simulator) -> None:
    schema = {
        "type": "object",
        "properties": {
            "mode": {"enum": ["create", "delete"]},
            "query": {"type": "string", "maxLength": 5},
            "count": {"type": "integer", "minimum": 1, "maximum": 10},
            "tags": {"type": "array", "items": {"type": "string"}},
            "where": {
                "type": "object",
                "properties": {"city": {"type": ["string", "null"]}},
                "required": ["city"],
            },
            "flag": {"type": "boolean"},
            "kind": {"const": "k"},
            "either": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    }
    tool = {"type": "function", "function": {"name": "store", "description": "Store", "parameters": schema}}
    body = chat_body('Delete 25 entries about "Lisboa"', stream=False, tools=[tool])
    answer = (await exchange(sim.base_url, CHAT, body)).json()
    arguments = json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    assert arguments == {
        "mode": "delete",
        "query": "Lisbo",
        "count": 10,
        "tags": ["Lisboa"],
        "where": {"city": "Lisboa"},
        "flag": True,
        "kind": "k",
        "either": 25,
    }


async def test_requests_are_remembered_without_the_key(sim: Simulator) -> None:
    await exchange(
        sim.base_url, CHAT, chat_body("Read it [mark:m1]", tools=TOOLS), headers=[("x-title", "Brabo")]
    )
    await exchange(sim.base_url, DECISIONS, decisions_body())
    await exchange(sim.base_url, "/v1/models?output_modalities=all")
    await exchange(sim.base_url, "/v1/nothing")
    answer = await exchange(sim.control_url, "/_requests")
    chat, decision, models, nothing = answer.json()["requests"]
    assert KEY not in answer.body.decode()
    assert chat["headers"]["authorization"] == "Bearer …cdef"
    assert chat["headers"]["x-title"] == "Brabo"
    assert chat["tools"] == ["read_file", "search_web"]
    assert chat["body"]["messages"][0]["content"] == "Read it [mark:m1]"
    assert (chat["mark"], chat["generation_id"]) == ("m1", sim.bill()["entries"][0]["id"])
    assert decision["options"] == {"tool": ["search_web", "read_file", "none"]}
    assert models["query"] == {"output_modalities": "all"}
    assert nothing["path"] == "/api/v1/nothing"


async def test_only_the_last_requests_are_kept_and_large_bodies_are_not(sim: Simulator) -> None:
    for number in range(510):
        sim.state.requests.append({"number": number})
    assert len(sim.requests()) == 500
    await exchange(sim.base_url, CHAT, chat_body("x" * 300_000))
    last = sim.requests()[-1]
    assert (last["body"], last["body_bytes"] > 300_000) == (None, True)
