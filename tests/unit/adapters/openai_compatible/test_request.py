"""The request as it goes out: contract, section 6."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import pytest

from adapters.openai_compatible import request
from adapters.openai_compatible.profiles import bounded_providers, provider_table
from adapters.openai_compatible.request import request_body
from application.ports.llm_provider import ChatCall
from domain.provider import Provider, RoutingPreference
from domain.step import CalledTool, Message, Tool, ToolCall
from domain.usage import Prices

PROFILES = provider_table({}, "https://brabo.example")


@dataclass(frozen=True)
class AMessage:
    role: str
    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class ACall:
    id: str | None
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ATool:
    name: str
    description: str
    parameters: Mapping[str, Any]


def a_call(
    *messages: Message,
    tools: Sequence[Tool] = (),
    provider: Provider = Provider.OPENROUTER,
    preference: RoutingPreference | None = None,
) -> ChatCall:
    return ChatCall(
        provider=provider,
        model="openai/gpt-4o-mini",
        messages=messages,
        tools=tools,
        api_key=None,
        routing_preference=preference,
        deadline_s=0,
    )


async def sent(call: ChatCall) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(b"".join(await request_body(call, PROFILES[call.provider])))
    return body


async def wire(*messages: Message) -> list[dict[str, Any]]:
    """The messages, with generated ids named g1, g2 … in the order in which they appear."""
    found: list[dict[str, Any]] = (await sent(a_call(*messages)))["messages"]
    names: dict[str, str] = {}

    def named(call_id: str) -> str:
        return names.setdefault(call_id, f"g{len(names) + 1}") if len(call_id) == 37 else call_id

    for message in found:
        for call in message.get("tool_calls", ()):
            call["id"] = named(call["id"])
        if "tool_call_id" in message:
            message["tool_call_id"] = named(message["tool_call_id"])
    return found


def assistant(*calls: tuple[str, str, Any], content: str | None = None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for call_id, name, arguments in calls
        ],
    }


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": call_id}


async def test_openrouter_gets_its_particulars() -> None:
    body = await sent(a_call(AMessage("user", "oi"), preference=RoutingPreference.PRICE))
    assert body == {
        "model": "openai/gpt-4o-mini",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "oi"}],
        "usage": {"include": True},
        "plugins": [{"id": "context-compression", "enabled": False}],
        "provider": {"sort": "price"},
    }
    assert PROFILES[Provider.OPENROUTER].headers == {
        "HTTP-Referer": "https://brabo.example",
        "X-Title": "Brabo",
    }


@pytest.mark.parametrize("provider", sorted(set(PROFILES) - {Provider.OPENROUTER}))
async def test_the_others_get_the_dialect_and_no_more(provider: Provider) -> None:
    body = await sent(a_call(AMessage("user", "oi"), provider=provider, preference=RoutingPreference.PRICE))
    assert set(body) == {"model", "stream", "stream_options", "messages"}
    assert not PROFILES[provider].headers


def test_every_provider_of_the_dialect_is_in_the_table() -> None:
    assert set(PROFILES) == set(Provider) - {Provider.ANTHROPIC}
    assert PROFILES[Provider.OPENROUTER].chat_url == "https://openrouter.ai/api/v1/chat/completions"
    assert PROFILES[Provider.DEEPINFRA].chat_url == "https://api.deepinfra.com/v1/openai/chat/completions"


@pytest.mark.parametrize(
    ("provider", "base", "url"),
    [
        (Provider.OPENROUTER, "http://127.0.0.1:9/api/", "http://127.0.0.1:9/api/v1/chat/completions"),
        (Provider.OLLAMA, "https://box", "https://box/v1/chat/completions"),
        (Provider.TOGETHER, "https://t.example/v2", "https://t.example/v2/chat/completions"),
    ],
)
def test_a_base_can_be_overridden(provider: Provider, base: str, url: str) -> None:
    assert provider_table({provider: base}, "")[provider].chat_url == url


async def test_tools_pass_untouched_and_twice_if_they_are_two() -> None:
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "integer", "maximum": 2**70}},
        "x-Ação": [None, 1.5],
    }
    tool = ATool("read", "lê", parameters)
    body = await sent(a_call(tools=[tool, tool]))
    function = {"name": "read", "description": "lê", "parameters": parameters}
    assert body["tools"] == [{"type": "function", "function": function}] * 2


async def test_calls_and_results_take_the_wire_form() -> None:
    assert await wire(
        AMessage("system", "s"),
        AMessage("user", "u"),
        AMessage(
            "assistant",
            "",
            [ACall("c1", "read", {"path": "ação", "n": {"a": [1, None]}}), ACall("c2", "list")],
        ),
        AMessage("tool", "r1", tool_call_id="c1", name="read"),
        AMessage("tool", "r2", tool_call_id="c2", name="list"),
        AMessage("assistant", "done"),
        AMessage("system", "last"),
    ) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "read", "arguments": '{"path":"ação","n":{"a":[1,null]}}'},
                },
                {"id": "c2", "type": "function", "function": {"name": "list", "arguments": "{}"}},
            ],
        },
        result("c1", "r1"),
        result("c2", "r2"),
        {"role": "assistant", "content": "done"},
        {"role": "system", "content": "last"},
    ]


async def test_a_null_call_id_gets_one_the_same_in_call_and_result() -> None:
    assert await wire(
        AMessage("assistant", "x", [ACall(None, "read"), ACall(None, "read"), ACall(None, "list")]),
        AMessage("tool", "l", name="list"),
        AMessage("tool", "r1", name="read"),
        AMessage("tool", "r2", name="read"),
    ) == [
        assistant(("g1", "read", {}), ("g2", "read", {}), ("g3", "list", {}), content="x"),
        result("g3", "l"),
        result("g1", "r1"),
        result("g2", "r2"),
    ]


async def test_a_result_without_its_call_gets_one_on_the_assistant_message_before_it() -> None:
    assert await wire(
        AMessage("user", "u"),
        AMessage("assistant", 'I call {"name": "read"}'),
        AMessage("tool", "r1", name="read"),
        AMessage("tool", "r2"),
        AMessage("tool", "r3", tool_call_id="unknown", name="list"),
        AMessage("system", "go on"),
    ) == [
        {"role": "user", "content": "u"},
        assistant(
            ("g1", "read", {}),
            ("g2", "ferramenta", {}),
            ("g3", "list", {}),
            content='I call {"name": "read"}',
        ),
        result("g1", "r1"),
        result("g2", "r2"),
        result("g3", "r3"),
        {"role": "system", "content": "go on"},
    ]


async def test_a_result_with_no_assistant_message_before_it_gets_one_put_there() -> None:
    assert await wire(AMessage("tool", "r0", name="read"), AMessage("user", "u"), AMessage("tool", "r1")) == [
        assistant(("g1", "read", {})),
        result("g1", "r0"),
        {"role": "user", "content": "u"},
        assistant(("g2", "ferramenta", {})),
        result("g2", "r1"),
    ]


async def test_a_call_without_a_result_gets_a_word_for_it_before_the_next_message() -> None:
    assert await wire(
        AMessage("assistant", "", [ACall("c1", "read"), ACall(None, "list")]),
        AMessage("tool", "r", tool_call_id="c1"),
        AMessage("user", "u"),
        AMessage("assistant", "", [ACall("c2", "read")]),
    ) == [
        assistant(("c1", "read", {}), ("g1", "list", {})),
        result("c1", "r"),
        result("g1", "(sem resultado)"),
        {"role": "user", "content": "u"},
        assistant(("c2", "read", {})),
        result("c2", "(sem resultado)"),
    ]


async def test_a_result_that_comes_too_late_keeps_its_place() -> None:
    assert await wire(
        AMessage("assistant", "", [ACall("c1", "read")]),
        AMessage("system", "s"),
        AMessage("tool", "late", tool_call_id="c1", name="read"),
    ) == [
        assistant(("c1", "read", {})),
        result("c1", "(sem resultado)"),
        {"role": "system", "content": "s"},
        assistant(("g1", "read", {})),
        result("g1", "late"),
    ]


async def test_two_calls_of_one_id_are_told_apart() -> None:
    assert await wire(
        AMessage("assistant", "", [ACall("c1", "read"), ACall("c1", "list")]),
        AMessage("tool", "r1", tool_call_id="c1"),
        AMessage("tool", "r2", tool_call_id="c1"),
        AMessage("tool", "r3", tool_call_id="c1", name="third"),
    ) == [
        assistant(("c1", "read", {}), ("g1", "list", {}), ("g2", "third", {})),
        result("c1", "r1"),
        result("g1", "r2"),
        result("g2", "r3"),
    ]


async def test_nesting_that_the_contract_allows_goes_through() -> None:
    deep: Any = "x"
    for _ in range(890):
        deep = {"a": deep}
    call = a_call(
        AMessage("assistant", "", [CalledTool("c1", "deep", deep)]), tools=[ATool("deep", "d", deep)]
    )

    async def from_below(frames: int) -> Sequence[bytes]:
        if frames:
            return await from_below(frames - 1)
        return await request_body(call, PROFILES[call.provider])

    body = json.loads(b"".join(await from_below(300)))
    assert body["tools"][0]["function"]["parameters"] == deep
    assert json.loads(body["messages"][0]["tool_calls"][0]["function"]["arguments"]) == deep


async def largest_gap(call: ChatCall) -> tuple[float, bytes]:
    """Seconds for which building the body kept the event loop from a timer of 5 ms; and the body."""
    gaps: list[float] = []

    async def probe() -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - before)
            before = loop.time()

    probing = asyncio.create_task(probe())
    await asyncio.sleep(0.02)
    blocks = await request_body(call, PROFILES[call.provider])
    await asyncio.sleep(0.02)
    probing.cancel()
    return max(gaps), b"".join(blocks)


@pytest.mark.parametrize(
    "text", ['ação 😊 \n"\\\u2028' * 400_000, "plain " * 3_500_000], ids=["non-ASCII", "ASCII"]
)
async def test_twenty_megabytes_do_not_hold_the_event_loop(text: str) -> None:
    call = a_call(
        AMessage("user", text), AMessage("assistant", "", [ACall("c1", "write", {"content": text})])
    )
    gap_s, encoded = await largest_gap(call)
    assert gap_s < 0.1
    body = json.loads(encoded)
    assert body["messages"][0]["content"] == text
    assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"])["content"] == text


LARGE_CALLS = {
    "many texts": [ACall(f"c{at}", "write", dict.fromkeys("abc", "ação 😊 \n" * 12000)) for at in range(95)],
    "nested texts": [ACall(f"c{at}", "write", {key: ["x" * 2_000_000] for key in "abc"}) for at in range(5)],
    "many arguments": [ACall("c1", "write", {f"k{at}": at for at in range(300_000)})],
}


@pytest.mark.parametrize("large", LARGE_CALLS)
async def test_a_message_of_large_calls_does_not_hold_the_event_loop(large: str) -> None:
    calls = LARGE_CALLS[large]
    gap_s, encoded = await largest_gap(a_call(AMessage("user", "u"), AMessage("assistant", "", calls)))
    assert gap_s < 0.1
    sent_calls = json.loads(encoded)["messages"][1]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in sent_calls] == [
        call.arguments for call in calls
    ]


async def test_what_is_encoded_together_is_bounded() -> None:
    """Of many messages that are each short enough to be encoded with others."""
    encoded: list[int] = []
    encode = request._encode

    def counting(value: object) -> bytes:
        made = encode(value)
        encoded.append(len(made))
        return made

    text = "x" * 100_000
    messages = [
        AMessage("user", text),
        AMessage("assistant", text, [ACall("c1", "w", {"a": text})]),
        AMessage("assistant", "", [ACall("c1", "w", {"a": [text], "b": "é" * 20_000})]),
        AMessage("assistant", "", [ACall("c1", "w" * 100_000, {"k" * 100_000: 1})]),
    ] * 5
    expected = await wire(*messages)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request, "_encode", counting)
        assert await wire(*messages) == expected
    assert max(encoded) < 300_000


async def test_many_messages_do_not_hold_the_event_loop() -> None:
    gap_s, encoded = await largest_gap(a_call(*[AMessage("user", "ação " * 20)] * 60_000))
    assert gap_s < 0.1
    assert len(json.loads(encoded)["messages"]) == 60_000


async def test_ten_thousand_messages_take_ten_times_as_long_as_one_thousand() -> None:
    loop = asyncio.get_running_loop()

    async def seconds(count: int) -> float:
        messages = [
            AMessage("assistant", "", [ACall(None, "read")]) if i % 2 else AMessage("tool", "r", name="read")
            for i in range(count)
        ]
        started = loop.time()
        await request_body(a_call(*messages), PROFILES[Provider.OPENROUTER])
        return loop.time() - started

    await seconds(1000)
    assert await seconds(10_000) < 40 * await seconds(1000) + 0.05


BOUNDED = replace(
    a_call(AMessage("user", "oi")), max_output_tokens=8_192, max_prices=Prices(150_000, 10**15 + 1)
)


def test_a_cap_and_the_dearest_price_go_along_as_exact_decimals() -> None:
    (body,) = [b"".join(asyncio.run(request_body(BOUNDED, PROFILES[Provider.OPENROUTER])))]
    sent = json.loads(body, parse_float=Decimal)

    assert sent["max_tokens"] == 8_192
    assert sent["provider"] == {
        "max_price": {"prompt": Decimal("0.15"), "completion": Decimal("1000000000.000001")}
    }


def test_a_price_bound_stands_beside_the_routing_preference() -> None:
    call = replace(BOUNDED, routing_preference=RoutingPreference.PRICE, max_prices=Prices(0, 1))

    sent = json.loads(b"".join(asyncio.run(request_body(call, PROFILES[Provider.OPENROUTER]))))

    assert sent["provider"] == {"sort": "price", "max_price": {"prompt": 0, "completion": 0.000001}}


@pytest.mark.parametrize("provider", sorted(set(PROFILES) - bounded_providers(PROFILES)))
def test_providers_that_do_not_keep_to_both_get_neither(provider: Provider) -> None:
    sent = json.loads(
        b"".join(asyncio.run(request_body(replace(BOUNDED, provider=provider), PROFILES[provider])))
    )

    assert not {"max_tokens", "max_completion_tokens", "provider"} & sent.keys()


def test_only_openrouter_keeps_to_both() -> None:
    assert bounded_providers(PROFILES) == {Provider.OPENROUTER}
