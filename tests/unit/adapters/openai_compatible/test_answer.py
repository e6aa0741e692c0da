"""Answers put together from bytes, without a connection."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from adapters.openai_compatible.answer import Answer
from adapters.openai_compatible.body import AnswerBody
from adapters.openai_compatible.frames import read_frame
from adapters.openai_compatible.tool_calls import ToolCalls


def event(*choices: dict[str, Any], **more: Any) -> bytes:
    return (
        b"data: "
        + json.dumps({"id": "gen-1", "choices": choices} | more, ensure_ascii=False).encode()
        + b"\n\n"
    )


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": fields, "finish_reason": finish_reason}


def tool(index: int, arguments: str, **fields: Any) -> dict[str, Any]:
    return delta(tool_calls=[{"index": index, "function": {"arguments": arguments} | fields}])


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "cost": 3.9e-06}
STREAM = (
    b": OPENROUTER PROCESSING\n\n"
    + event(delta(role="assistant", content="ação "))
    + event(delta(content="😊\u2028\u0085\r\n"))
    + b"data: " + json.dumps({"choices": [delta(content="\ud83d")]}).encode() + b"\n\n"
    + b": OPENROUTER PROCESSING\n\n"
    + b"data: " + json.dumps({"choices": [delta(content="\ude0a!")]}).encode() + b"\n\n"
    + event(tool(0, '{"path": "', name="read_file"))
    + event(tool(0, 'é.ts"}'))
    + event(delta("tool_calls", content=""))
    + event(delta("tool_calls"), usage=USAGE)
    + DONE
)  # fmt: skip

PAYLOADS = {
    "LF": STREAM,
    "CRLF": STREAM.replace(b"\n", b"\r\n"),
    "CR": STREAM.replace(b"\n", b"\r"),
    "no space": STREAM.replace(b"data: ", b"data:"),
    "byte order mark": b"\xef\xbb\xbf\r\n" + STREAM,
    "no [DONE]": STREAM.removesuffix(DONE),
    "no blank line at the end": STREAM.removesuffix(b"\n\n"),
    "several data lines": STREAM.replace(b'"choices": ', b'\ndata: "choices":\ndata: '),
}


def folded(parts: Iterable[bytes]) -> tuple[Any, ...]:
    """What the parts come to, taken one after the other."""
    body, answer = AnswerBody(), Answer(states_charge=True)
    pieces: list[str] = []
    for part in (*parts, None):
        for data in body.finish() if part is None else body.feed(part):
            if data.strip() != b"[DONE]":
                frame = read_frame(data)
                assert frame is not None
                pieces += answer.add(frame)
    pieces += answer.end()
    calls, is_cut = answer.tool_calls()
    return (
        "".join(pieces),
        [(call.name, call.arguments) for call in calls],
        is_cut,
        answer.usage,
        answer.is_finished,
    )


@pytest.mark.parametrize("name", PAYLOADS)
def test_is_the_same_wherever_the_bytes_are_cut(name: str) -> None:
    payload = PAYLOADS[name]
    expected = folded([payload])
    assert expected[:3] == ("ação 😊\u2028\u0085\r\n😊!", [("read_file", {"path": "é.ts"})], False)
    assert str(expected[3].charged_usd) == "0.0000039"
    for cut in range(1, len(payload)):
        assert folded([payload[:cut], payload[cut:]]) == expected
    assert folded(payload[i : i + 1] for i in range(len(payload))) == expected


def test_a_whole_reply_is_the_same_wherever_the_bytes_are_cut() -> None:
    payload = (
        b" \n" + json.dumps({"choices": [{"message": {"content": "ação"}, "finish_reason": "stop"}]}).encode()
    )
    for cut in range(len(payload)):
        assert folded([payload[:cut], payload[cut:]])[0] == "ação"


@pytest.mark.parametrize("junk", [None, True, 7, -1.5, "x", [], {}, [[]], [None], [{}], {"a": 1}, ["x", 1]])
def test_no_field_of_any_type_is_an_exception(junk: Any) -> None:
    shapes: list[dict[str, Any]] = [
        {"choices": junk, "usage": junk, "error": junk, "id": junk, "model": junk, "provider": junk},
        {"choices": [{"delta": junk, "message": junk, "index": junk, "finish_reason": junk, "error": junk}]},
        {
            "choices": [
                {"delta": {"content": junk, "reasoning": junk, "reasoning_details": junk, "tool_calls": junk}}
            ]
        },
        {"choices": [{"delta": {"tool_calls": [{"index": junk, "id": junk, "function": junk}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": junk, "arguments": junk}}]}}]},
        {"choices": [{"message": {"content": junk, "tool_calls": junk}}]},
        {
            "usage": {
                "prompt_tokens": junk,
                "completion_tokens": junk,
                "cost": junk,
                "prompt_tokens_details": junk,
            }
        },
        {
            "usage": {
                "total_tokens": junk,
                "is_byok": junk,
                "completion_tokens_details": {"reasoning_tokens": junk},
            }
        },
        {"provider": {"error": junk, "choices": junk, "name": junk}},
    ]
    for shape in shapes:
        folded([b"data: " + json.dumps(shape).encode() + b"\n\n"])


def test_what_the_model_made_is_there_to_be_counted() -> None:
    answer = Answer(states_charge=True)
    for data in (delta(content="a", reasoning="r"), tool(0, '{"x', name="f", id="c1"), tool(0, '": 1}')):
        frame = read_frame(json.dumps({"choices": [data]}).encode())
        assert frame is not None
        answer.add(frame)
    assert sorted(answer.generated()) == sorted(["a", "r", "f", '{"x', '": 1}'])


def test_contents_are_in_no_repr() -> None:
    call = {"index": 0, "id": "private id", "function": {"name": "private", "arguments": "private"}}
    said = {
        "content": "private",
        "refusal": "private",
        "reasoning": "private",
        "reasoning_details": [{"text": "private"}],
        "tool_calls": [call],
    }
    data = {"id": "g", "choices": [{"delta": said, "message": said, "error": "private"}], "error": "private"}
    frame = read_frame(json.dumps(data).encode())
    assert frame is not None
    calls = ToolCalls()
    for choice in frame.choices or ():
        for delta in (choice.delta, choice.message):
            assert delta is not None
            assert delta.tool_calls
            calls.add_parts(delta.tool_calls)
            shown = (
                frame,
                choice,
                delta,
                delta.reasoning_details,
                delta.tool_calls[0].function,
                vars(calls)["_calls"],
            )
            assert "private" not in repr(shown)
            assert {name.split("(")[0] for name in map(repr, shown[:3])} == {"Frame", "Choice", "Delta"}
