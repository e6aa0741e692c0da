"""What a conversation has come to."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, overload

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain import step as step_module
from domain.step import RecentCall, Step, cut
from tests.support.steps import ACall, ATool, Said, a_step, tools


def calls(*names: str) -> Said:
    return Said("assistant", tool_calls=[ACall(name, f"id-{name}") for name in names])


def result(text: str, *, of: str | None = None, name: str | None = None) -> Said:
    return Said("tool", text, tool_call_id=of, name=name)


def recent(*messages: Said) -> list[tuple[str, str]]:
    return [(call.name, call.result) for call in a_step(messages=messages).recent_calls]


def test_an_empty_conversation() -> None:
    step = a_step(messages=[])

    assert (step.context, step.request, list(step.recent_calls), step.previous_tool) == ("", "", [], None)


def test_the_agent_and_the_catalogues_own_objects() -> None:
    catalogue = tools("ler", "rodar")
    step = a_step(catalogue, agent="qa-automacao")

    assert step.agent == "qa-automacao"
    assert step.catalogue is catalogue


def test_the_context_is_the_first_system_message_wherever_it_stands() -> None:
    step = a_step(messages=[Said("user", "pedido"), Said("system", "primeira"), Said("system", "segunda")])

    assert step.context == "primeira"


def test_the_request_is_the_last_user_message() -> None:
    step = a_step(messages=[Said("user", "antigo"), calls("ler"), Said("user", "novo"), calls("rodar")])

    assert step.request == "novo"
    assert [call.name for call in step.recent_calls] == ["rodar"]
    assert step.previous_tool == "rodar"


def test_calls_before_the_last_user_message_are_of_another_run() -> None:
    step = a_step(
        messages=[Said("user", "antigo"), calls("ler"), result("ok", of="id-ler"), Said("user", "novo")]
    )

    assert (list(step.recent_calls), step.previous_tool) == ([], None)


def test_without_a_user_everything_is_the_run() -> None:
    step = a_step(messages=[Said("system", "s"), calls("ler"), result("ok", of="id-ler")])

    assert step.request == ""
    assert recent(calls("ler"), result("ok", of="id-ler")) == [("ler", "ok")]
    assert step.previous_tool == "ler"


def test_the_last_six_calls_oldest_first() -> None:
    names = [f"t{at}" for at in range(9)]
    step = a_step(messages=[Said("user", "pedido"), calls(*names[:4]), calls(*names[4:])])

    assert [call.name for call in step.recent_calls] == names[3:]
    assert step.previous_tool == "t8"


def test_the_previous_tool_need_not_be_on_the_catalogue() -> None:
    assert a_step(tools("ler", "rodar"), messages=[calls("outra")]).previous_tool == "outra"


def test_calls_written_as_text_are_no_calls() -> None:
    step = a_step(messages=[Said("assistant", '<tool_call>{"name": "ler"}</tool_call>')])

    assert (list(step.recent_calls), step.previous_tool) == ([], None)


def test_calls_of_anyone_but_an_assistant_do_not_count() -> None:
    step = a_step(messages=[Said("user", "pedido"), Said("tool", "x", [ACall("ler", "1")], "1")])

    assert (list(step.recent_calls), step.previous_tool) == ([], None)


def test_results_find_their_calls_by_id_in_any_order() -> None:
    assert recent(calls("a", "b"), result("de b", of="id-b"), result("de a", of="id-a")) == [
        ("a", "de a"),
        ("b", "de b"),
    ]


def test_a_call_without_a_result_says_so() -> None:
    assert recent(calls("a", "b"), result("de a", of="id-a")) == [("a", "de a"), ("b", "(sem resultado)")]


def test_a_result_without_its_call_is_nobodys() -> None:
    assert recent(
        result("antes", of="id-a"), calls("a"), result("x", of="outro"), result("y", name="a"), result("z")
    ) == [("a", "(sem resultado)")]


def test_a_result_of_a_call_before_the_user_is_nobodys() -> None:
    messages = [calls("a"), Said("user", "pedido"), result("tarde", of="id-a"), calls("a")]

    assert recent(*messages) == [("a", "(sem resultado)")]


def test_a_call_without_an_id_takes_the_next_result_of_its_name_without_one() -> None:
    nameless = Said("assistant", tool_calls=[ACall("a"), ACall("b"), ACall("a")])

    assert recent(
        nameless,
        result("com id", of="id-a", name="a"),
        result("primeiro", name="a"),
        result("de b", name="b"),
        result("segundo", name="a"),
        result("terceiro", name="a"),
    ) == [("a", "primeiro"), ("b", "de b"), ("a", "segundo")]


def test_of_calls_with_one_id_each_takes_the_next_result() -> None:
    twice = Said("assistant", tool_calls=[ACall("a", "1"), ACall("b", "1")])

    assert recent(twice, result("um", of="1"), result("dois", of="1"), result("três", of="1")) == [
        ("a", "um"),
        ("b", "dois"),
    ]


def test_the_result_of_an_earlier_call_of_that_id_is_not_a_later_ones() -> None:
    again = Said("assistant", tool_calls=[ACall("a", "1")])

    assert recent(again, result("um", of="1"), again) == [("a", "um"), ("a", "(sem resultado)")]


def test_a_result_is_the_latest_messages_that_has_such_a_call_open() -> None:
    """Some providers number the calls of each answer anew."""
    a, b = (Said("assistant", tool_calls=[ACall(name, "call_0")]) for name in "ab")
    nameless = Said("assistant", tool_calls=[ACall("a")])

    assert recent(a, b, result("de b", of="call_0")) == [("a", "(sem resultado)"), ("b", "de b")]
    assert recent(a, b, result("de b", of="call_0"), result("órfão", of="call_0")) == [
        ("a", "(sem resultado)"),
        ("b", "de b"),
    ]
    assert recent(nameless, nameless, result("x", name="a")) == [("a", "(sem resultado)"), ("a", "x")]
    assert recent(a, calls("c"), result("de a", of="call_0")) == [("a", "de a"), ("c", "(sem resultado)")]


def test_arguments_are_compact_json_in_the_order_received() -> None:
    arguments = {"z": 1, "a": [True, None, 1.5], "ação": {"b": "😊\n"}}
    step = a_step(messages=[Said("assistant", tool_calls=[ACall("ler", "1", arguments)])])

    assert step.recent_calls == [
        RecentCall("ler", '{"z":1,"a":[true,null,1.5],"ação":{"b":"😊\\n"}}', "(sem resultado)")
    ]


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def shown(arguments: dict[str, Any]) -> str:
    return (
        a_step(messages=[Said("assistant", tool_calls=[ACall("a", None, arguments)])])
        .recent_calls[0]
        .arguments
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=40,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.integers(0, 40), st.integers(1, 4), st.integers(1, 4))
def test_arguments_are_the_same_however_little_is_made_at_once(
    arguments: dict[str, Any], characters: int, members: int, levels: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_module, "_AT_ONCE_CHARACTERS", characters + 1)
        patched.setattr(step_module, "_AT_ONCE_MEMBERS", members)
        patched.setattr(step_module, "_AT_ONCE_LEVELS", levels)

        assert shown(arguments) == cut(compact(arguments), 500)


LONG = 'ação 😊 \n"' * 300_000
LARGE: dict[str, dict[str, Any]] = {
    "a text": {"a": LONG},
    "a nested text": {"a": {"b": [1, {"c": LONG}]}},
    "a key": {LONG: 1},
    "numbers": {"a": [1.5, 2] * 300_000},
    "texts": {"a": ["x" * 1_000] * 3_000},
    "lists": {"a": [[1], {"b": 2}] * 100_000},
    "members": {"a": {f"k{at}": at for at in range(200_000)}},
}


@pytest.mark.parametrize("large", LARGE)
def test_large_arguments_are_made_in_small_texts(large: str) -> None:
    assert shown(LARGE[large]) == cut(compact(LARGE[large]), 500)
    assert max(map(len, step_module._json_texts(LARGE[large]))) < 1_000_000


def test_arguments_may_nest_nine_hundred_deep() -> None:
    deep: Any = "x"
    for _ in range(899):
        deep = [deep, 1]

    assert shown({"a": deep}) == '{"a":' + "[" * 495 + f"…[+{5 + 899 * 4 + 3 + 1 - 500}]"


async def test_large_arguments_let_others_have_their_turn() -> None:
    """Made in a thread, as large ones are."""
    gaps_s: list[float] = []

    async def probe() -> None:
        while True:
            before_s = time.process_time()
            await asyncio.sleep(0.001)
            gaps_s.append(time.process_time() - before_s)

    messages = [Said("assistant", tool_calls=[ACall("a", None, {"a": [LONG * 10]})])]
    probing = asyncio.create_task(probe())
    await asyncio.sleep(0.01)
    await asyncio.to_thread(Step.read, "qa", messages, [])
    probing.cancel()

    assert max(gaps_s) < 0.1


@pytest.mark.parametrize(("what", "limit"), [("context", 1_500), ("request", 6_000)])
def test_texts_are_cut_at_their_limit(what: str, limit: int) -> None:
    role = {"context": "system", "request": "user"}[what]
    whole, longer = (
        a_step(messages=[Said(role, "😊" * limit)]),
        a_step(messages=[Said(role, "😊" * (limit + 7))]),
    )

    assert getattr(whole, what) == "😊" * limit
    assert getattr(longer, what) == "😊" * limit + "…[+7]"


def test_arguments_and_results_are_cut_at_500() -> None:
    call = ACall("ler", "1", {"a": "x" * 1_000})
    (seen,) = a_step(messages=[Said("assistant", tool_calls=[call]), result("é" * 501, of="1")]).recent_calls

    assert seen.arguments == '{"a":"' + "x" * 494 + "…[+508]"
    assert seen.result == "é" * 500 + "…[+1]"


@given(st.text(), st.integers(0, 20))
def test_a_cut_text_keeps_its_beginning_and_says_what_was_dropped(text: str, limit: int) -> None:
    kept = cut(text, limit)

    if len(text) <= limit:
        assert kept == text
    else:
        assert kept == f"{text[:limit]}…[+{len(text) - limit}]"
        assert int(kept.removeprefix(text[:limit]).removeprefix("…[+").removesuffix("]")) + limit == len(text)


IDS = st.none() | st.sampled_from(["", "1", "2"])
ARGUMENTS = st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9))
CALLS = st.lists(st.builds(ACall, st.sampled_from("ab"), IDS, ARGUMENTS), max_size=4)
ROLES = st.sampled_from(["system", "user", "assistant", "tool"])
MESSAGES = st.lists(
    st.builds(Said, ROLES, st.text(max_size=5), CALLS, IDS, st.none() | st.sampled_from("ab")), max_size=12
)


@given(MESSAGES)
def test_any_conversation_has_a_step(messages: list[Said]) -> None:
    step = a_step(messages=messages)
    last_user = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    run = [
        call
        for message in messages[last_user + 1 :]
        if message.role == "assistant"
        for call in message.tool_calls
    ]

    assert [call.name for call in step.recent_calls] == [call.name for call in run[-6:]]
    assert step.previous_tool == (run[-1].name if run else None)
    assert all(isinstance(json.loads(call.arguments), dict) for call in step.recent_calls)


@given(MESSAGES)
def test_no_result_is_given_to_two_calls(messages: list[Said]) -> None:
    numbered = [
        Said(m.role, f"nº {at}", m.tool_calls, m.tool_call_id, m.name) for at, m in enumerate(messages)
    ]
    given_out = [
        call.result for call in a_step(messages=numbered).recent_calls if call.result.startswith("nº")
    ]

    assert len(given_out) == len(set(given_out))


class Counted(Sequence[Said]):
    """A conversation that counts how often it is looked into, parts of it included."""

    def __init__(self, messages: list[Said], looks: list[int] | None = None) -> None:
        self._messages = messages
        self.looks = [0] if looks is None else looks

    @overload
    def __getitem__(self, at: int) -> Said: ...
    @overload
    def __getitem__(self, at: slice) -> "Counted": ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            part = self._messages[at]
            self.looks[0] += len(part)
            return Counted(part, self.looks)
        self.looks[0] += 1
        return self._messages[at]

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[Said]:
        for message in self._messages:
            self.looks[0] += 1
            yield message


@pytest.mark.parametrize("who", ["nobody", "first", "last"])
def test_ten_thousand_messages_are_looked_at_a_few_times_each(who: str) -> None:
    turns = [
        [calls("a"), result("x", of="id-a")],
        [Said("assistant", tool_calls=[ACall("b")]), result("y", name="b")],
    ]
    messages = [message for at in range(5_000) for message in turns[at % 2]]
    if who != "nobody":
        messages.insert(0 if who == "first" else len(messages), Said("user", "pedido"))
    counted = Counted(messages)

    Step.read("dev-api", counted, [ATool("a")])

    assert counted.looks[0] <= 5 * len(messages)


class Lazy(dict[str, Any]):
    """Arguments that notice being read."""

    reads = 0

    def items(self) -> Any:
        Lazy.reads += 1
        return super().items()


def test_only_the_arguments_that_are_shown_are_turned_into_text() -> None:
    messages = [Said("assistant", tool_calls=[ACall("a", None, Lazy(x=1))]) for _ in range(100)]
    Lazy.reads = 0

    a_step(messages=messages)

    assert Lazy.reads == 6


def test_contents_are_not_in_a_repr() -> None:
    messages = [
        Said("system", "segredo"),
        Said("user", "segredo"),
        Said("assistant", tool_calls=[ACall("ler", "1", {"a": "segredo"})]),
        result("segredo", of="1"),
    ]

    assert "segredo" not in repr(a_step([ATool("segredo")], messages=messages))


def test_arguments_of_no_sane_shape_are_cut_in_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: Any = 1
    for _ in range(10):
        deep = [deep]
    arguments = {"a": [deep] * 60_000}
    whole = json.dumps(arguments, separators=(",", ":"))
    texts = 0
    made = step_module._json_texts

    def counted(value: Any) -> Iterator[str]:
        nonlocal texts
        for text in made(value):
            texts += 1
            yield text

    monkeypatch.setattr(step_module, "_json_texts", counted)
    assert step_module._cut_json(arguments, 500) == cut(whole, 500)
    assert texts < 60_000


def test_many_messages_are_not_read_at_once() -> None:
    assert step_module.is_read_at_once([Said("user", "oi")] * 5_000)
    assert not step_module.is_read_at_once([Said("user", "oi")] * 5_001)
