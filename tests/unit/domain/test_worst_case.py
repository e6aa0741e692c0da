"""The most that a turn can cost: never less than what it comes to."""

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.openai_compatible.profiles import provider_table
from adapters.openai_compatible.request import request_body
from adapters.tokenizer import O200kTokenEstimator
from application.ports.llm_provider import ChatCall
from domain.budget import (
    Budget,
    BudgetPolicy,
    BudgetScope,
    can_be_strict,
    most_prompt_tokens,
    worst_case,
)
from domain.provider import Provider
from domain.usage import Prices, TokenCounts, catalogue_cost_micros
from tests.support.steps import ACall, ATool, Said

ESTIMATOR = O200kTokenEstimator()
PROFILE = provider_table({}, "https://brabo.example")[Provider.OPENROUTER]

TEXTS = st.one_of(
    st.text(max_size=40),
    st.text(alphabet='aàπ漢😀\n\t"\\ \x00\u2028', max_size=200),
    st.sampled_from(["", "<|endoftext|>", "def f():\n    return 1\n" * 5, "Ω" * 300, "  \n" * 50]),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
IDS = st.none() | st.text(alphabet="abc123_", max_size=30)
CALLS = st.builds(ACall, name=TEXTS, id=IDS, arguments=OBJECTS)
MESSAGES = st.one_of(
    st.builds(Said, role=st.sampled_from(["system", "user"]), content=TEXTS),
    st.builds(Said, role=st.just("assistant"), content=TEXTS, tool_calls=st.lists(CALLS, max_size=3)),
    st.builds(Said, role=st.just("tool"), content=TEXTS, tool_call_id=IDS, name=st.none() | TEXTS),
)
TOOLS = st.builds(ATool, name=TEXTS, description=TEXTS, parameters=OBJECTS)


@pytest.fixture(scope="module", autouse=True)
def vocabulary() -> None:
    """Loaded before the first example is timed."""
    ESTIMATOR.load()


def counted(texts: list[str]) -> int:
    return ESTIMATOR._count(texts)


def texts_of(value: Any) -> list[str]:
    """Every text of a request as it is sent, names of fields left out, arguments as the JSON they are."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for each in value for text in texts_of(each)]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_of(each)]
    return []


@given(st.lists(MESSAGES, max_size=6), st.lists(TOOLS, max_size=3))
def test_no_prompt_has_more_tokens_than_its_bound(messages: list[Said], tools: list[ATool]) -> None:
    """As it is sent: with the calls, results and ids that are made up for those that are missing."""
    call = ChatCall(
        provider=Provider.OPENROUTER,
        model="m",
        messages=messages,
        tools=tools,
        api_key=None,
        routing_preference=None,
        deadline_s=0,
    )
    sent = json.loads(b"".join(asyncio.run(request_body(call, PROFILE))))
    schemas = [json.dumps(tool, ensure_ascii=False, separators=(",", ":")) for tool in sent.get("tools", ())]

    bound = most_prompt_tokens(messages, tools)

    # Four tokens a message, as the markers of models come to.
    assert counted(texts_of(sent["messages"]) + schemas) + 4 * len(sent["messages"]) <= bound


@given(st.lists(MESSAGES, max_size=4), MESSAGES)
def test_a_longer_conversation_has_no_smaller_bound(messages: list[Said], last: Said) -> None:
    assert most_prompt_tokens([*messages, last], []) >= most_prompt_tokens(messages, []) + 16


def test_plain_messages_are_their_bytes_and_16_each() -> None:
    assert most_prompt_tokens([Said("system", "olá"), Said("user", "漢字 😀")], []) == 4 + 11 + 2 * 16
    assert most_prompt_tokens([], []) == 0


@pytest.mark.parametrize("content", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_counts_as_three_bytes(content: str) -> None:
    assert most_prompt_tokens([Said("user", content)], []) == 16 + len(content) + 2


def test_arguments_that_nest_deep_or_have_many_members_are_measured_whole() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    many = {"a": list(range(100_000)), "b": {str(at): "é" for at in range(10_000)}}

    for arguments in ({"a": deep}, many):
        message = Said("assistant", tool_calls=[ACall("f", None, arguments)])
        plain = Said("assistant", tool_calls=[ACall("f")])
        added = most_prompt_tokens([message], []) - most_prompt_tokens([plain], [])
        if arguments is many:
            assert added == len(json.dumps(many, ensure_ascii=False, separators=(",", ":")).encode()) - 2
        else:
            assert added == len('{"a":}') + 1801 - 2


@given(
    prompt=st.integers(0, 10**6),
    answer=st.integers(0, 10**6),
    fewer=st.integers(0, 10**6),
    less=st.integers(0, 10**6),
    prices=st.builds(Prices, st.integers(0, 10**9), st.integers(0, 10**9)),
)
def test_no_cost_within_the_bounds_is_above_the_worst_case(
    prompt: int, answer: int, fewer: int, less: int, prices: Prices
) -> None:
    worst = worst_case(prompt_tokens=prompt, output_tokens=answer, prices=prices, router_micros=7)
    within = TokenCounts(max(0, prompt - fewer), max(0, answer - less))

    assert catalogue_cost_micros(within, prices) <= worst.chat_micros
    assert worst.micros == worst.chat_micros + 7
    assert worst.output_tokens == answer


def test_each_part_is_rounded_up() -> None:
    worst = worst_case(prompt_tokens=1, output_tokens=1, prices=Prices(1, 1_000_001), router_micros=0)

    assert worst.chat_micros == 1 + 2


@pytest.mark.parametrize(
    ("limit", "policy", "can"),
    [(1, BudgetPolicy.BLOCK, True), (0, BudgetPolicy.BLOCK, False), (1, BudgetPolicy.ALLOW, False)],
)
def test_what_a_budget_needs_to_be_strict(limit: int, policy: BudgetPolicy, can: bool) -> None:
    assert can_be_strict(limit, policy) is can
    budget = Budget(
        id=uuid4(),
        scope=BudgetScope.PROJECT,
        limit_micros=limit,
        spent_micros=0,
        policy=policy,
        is_strict=True,
    )
    assert budget.holds is can


@pytest.mark.parametrize(
    ("spent", "held", "micros", "left", "has_room"),
    [(10, 20, 70, 70, True), (10, 20, 71, 70, False), (100, 0, 0, 0, True), (90, 20, 0, 0, False)],
)
def test_what_is_left(spent: int, held: int, micros: int, left: int, has_room: bool) -> None:
    budget = Budget(
        id=uuid4(),
        scope=BudgetScope.SESSION,
        limit_micros=100,
        spent_micros=spent,
        held_micros=held,
        is_strict=True,
    )

    assert budget.left_micros == left
    assert budget.has_room_for(micros) is has_room
