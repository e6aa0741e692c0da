import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from application.turn import TurnFinished
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.routing import Choice, Fallback, FallbackReason, Routing, RunnerUp
from domain.step import CalledTool
from entrypoints.http import wire
from entrypoints.http.wire import (
    ROUTING_STARTED,
    BadBody,
    TurnBody,
    decode_turn,
    encode_answer,
    encode_deltas,
    encode_final,
    refuse_too_deep,
)
from tests.support.loop_gaps import watched_loop

PROJECT = "0198c0de-0000-7000-8000-000000000002"


def body(**over: object) -> bytes:
    return json.dumps(
        {"projectId": PROJECT, "messages": [{"role": "user", "content": "oi"}], **over}
    ).encode()


async def read(raw: bytes) -> TurnBody:
    turn = decode_turn(raw)
    await refuse_too_deep(raw)
    return turn


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def test_a_whole_request_is_read() -> None:
    turn = await read(
        body(
            agentId="dev-api",
            catalogoCompleto=True,
            unknown={"x": [1]},
            messages=[
                {"role": "system", "content": "s"},
                {
                    "role": "assistant",
                    "content": None,
                    "toolCalls": [{"id": None, "name": "read", "arguments": {"path": "a", "n": 1.0}}],
                },
                {"role": "tool", "content": "r", "toolCallId": None, "name": "read"},
            ],
            tools=[{"name": "read", "description": "d", "parameters": {"type": "object"}}] * 2,
        )
    )

    assert (turn.project_id, turn.agent_id, turn.catalogo_completo) == (PROJECT, "dev-api", True)
    assert [message.content for message in turn.messages] == ["s", "", "r"]
    assert turn.messages[1].tool_calls[0].arguments == {"path": "a", "n": 1.0}
    assert turn.tools is not None
    assert [tool.name for tool in turn.tools] == ["read", "read"]


async def test_null_is_taken_for_every_optional_field() -> None:
    message = {"role": "user", "content": "oi", "toolCalls": None, "toolCallId": None, "name": None}

    turn = await read(body(agentId=None, catalogoCompleto=None, tools=None, messages=[message]))

    assert turn.messages[0].tool_calls == ()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[]", "array"),
        (b'{"messages": []}', "projectId"),
        (body(projectId=5), "$.projectId"),
        (body(messages="oi"), "$.messages"),
        (body(messages=[{"role": "user"}]), "$.messages[0]"),
        (body(messages=[{"role": "robot", "content": ""}]), "`role` is none of"),
        (body(messages=[{"role": "user", "content": None}]), "`content`"),
        (body(messages=[{"role": "user", "content": 3}]), "$.messages[0].content"),
        (body(messages=[{"role": "assistant", "content": "", "toolCalls": [{"arguments": {}}]}]), "`name`"),
        (
            body(
                messages=[
                    {"role": "assistant", "content": "", "toolCalls": [{"name": "x", "arguments": "{}"}]}
                ]
            ),
            "$.messages[0].toolCalls[0].arguments",
        ),
        (body(tools=[{"description": "d"}]), "$.tools[0]"),
        (body(tools=[{"name": "a", "parameters": []}]), "$.tools[0].parameters"),
        (body(agentId="a" * 201), "agentId"),
        (body(agentId="a\0b"), "agentId"),
        (body(catalogoCompleto="yes"), "$.catalogoCompleto"),
        (b'{"projectId": "x", "messages": [], "n": NaN}', "not JSON"),
        (b'{"projectId": "x", "messages": [{"role":"user","content":"\\ud83d"}]}', "surrogate"),
        (
            b'{"projectId": "x", "messages": [], "tools": [{"name":"a","parameters":{"d":"\\udc00"}}]}',
            "surrogate",
        ),
        (b'{"projectId": "x", "messages": [], "extra": "\\ud800"}', "surrogate"),
        (b'{"projectId": "x", "messages": [{"role":"user","content":"\xed\xa0\x80"}]}', "UTF-8"),
    ],
)
async def test_what_does_not_decode_names_the_field(raw: bytes, says: str) -> None:
    with pytest.raises(BadBody) as refused:
        await read(raw)
    assert says in str(refused.value)


@pytest.mark.parametrize("where", ["parameters", "arguments", "unknown"])
async def test_nesting_of_twenty_thousand_is_refused(where: str) -> None:
    deep = "[" * 20_000 + "]" * 20_000
    raw = {
        "parameters": f'{{"projectId":"x","messages":[],"tools":[{{"name":"a","parameters":{{"x":{deep}}}}}]}}',
        "arguments": '{"projectId":"x","messages":[{"role":"assistant","content":"","toolCalls":'
        f'[{{"name":"a","arguments":{{"x":{deep}}}}}]}}]}}',
        "unknown": f'{{"projectId":"x","messages":[],"extra":{deep}}}',
    }[where]

    with pytest.raises(BadBody, match="deeper than 900"):
        await read(raw.encode())


@pytest.mark.parametrize(("levels", "is_legal"), [(64, True), (900, True), (901, False)])
async def test_the_depth_that_is_legal_ends_at_900(levels: int, is_legal: bool) -> None:
    # body, tools, tool and parameters are four of the levels
    tools = [{"name": "a", "parameters": {"x": nested(levels - 4)}}]
    # body, messages, message, toolCalls, call and arguments are six
    call = {"name": "a", "arguments": {"x": nested(levels - 6)}}
    messages = [{"role": "assistant", "content": "", "toolCalls": [call]}]

    # the body is one
    ignored = {"x": nested(levels - 2)}

    for raw in (body(tools=tools), body(messages=messages), body(ignored=ignored)):
        if is_legal:
            await read(raw)
        else:
            with pytest.raises(BadBody, match="deeper than 900"):
                await read(raw)


STRINGS = st.text(st.sampled_from('a[]{}"\\é,'), max_size=6)
VALUES = st.recursive(
    st.none() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=12,
)


def depth_of(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.booleans(), st.integers(0, 6), st.integers(1, 9))
async def test_the_depth_is_that_of_the_brackets_outside_strings(
    value: Any, is_escaped: bool, limit: int, slice_bytes: int
) -> None:
    raw = json.dumps(value, ensure_ascii=is_escaped).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_DEPTH", limit)
        patch.setattr(wire, "_SLICE_BYTES", slice_bytes)
        if depth_of(value) > limit:
            with pytest.raises(BadBody):
                await refuse_too_deep(raw)
        else:
            await refuse_too_deep(raw)


@pytest.mark.parametrize("inner", ["[]", '"\\"["', "[[]]", "{}"])
async def test_the_depth_of_a_large_body_is_found_without_holding_the_event_loop(inner: str) -> None:
    entries = 14 * 2**20 // (len(inner) + 1)
    raw = b'{"x":[' + b",".join([inner.encode()] * entries) + b"]}"
    async with watched_loop() as gaps:
        await refuse_too_deep(raw)
    print(f"\nlargest gap {gaps.largest_ms:.1f} ms")
    assert gaps.largest_ms < 100


def answer(**over: Any) -> TurnFinished:
    fields: dict[str, Any] = {"turn_id": UUID(int=7), "text": "oi", "model": "m", **over}
    return TurnFinished(**fields)


def test_an_answer_has_every_key_engines_need() -> None:
    read = json.loads(b"".join(encode_answer(answer(tool_calls=(CalledTool("c1", "read", {"a": 1}),)))))

    assert read == {
        "message": {
            "role": "assistant",
            "content": "oi",
            "toolCalls": [{"id": "c1", "name": "read", "arguments": {"a": 1}}],
        },
        "usage": {"inputTokens": 0, "outputTokens": 0, "costMicros": 0, "estimated": True},
        "error": None,
        "modelName": "m",
        "turnId": str(UUID(int=7)),
    }


def test_the_additive_keys_stand_beside_the_message() -> None:
    failure = TurnFailure(FailureCode.RATE_LIMIT, Provider.OPENROUTER, 429, retry_after_ms=1500)
    read = json.loads(b"".join(encode_answer(answer(is_truncated=True, failure=failure))))

    assert read["truncated"] is True
    assert set(read["message"]) == {"role", "content", "toolCalls"}
    assert (read["errorCode"], read["errorOrigin"], read["retryAfterMs"]) == ("rate_limit", "infra", 1500)


@pytest.mark.parametrize("text", ["", 'a"\\\n\u2028\x00é😀', "é" * 3_000_000 + '"😀'])
def test_frames_are_one_line_whatever_the_text(text: str) -> None:
    frame = b"".join(encode_final(answer(text=text)))

    assert frame.startswith(b"data: ")
    assert frame.endswith(b"}\n\n")
    assert frame.count(b"\n") == 2
    read = json.loads(frame[6:])
    assert (read["type"], read["message"]["content"]) == ("final", text)


@pytest.mark.parametrize(
    "pieces", [["a\nb"], ["a\r\nb", "c", "😀"], ["é" * 3_000_000, 'x"', "\u2028" * 2_000_000]]
)
def test_a_delta_is_one_frame(pieces: list[str]) -> None:
    encoded = encode_deltas(pieces)
    frames = encoded if isinstance(encoded, bytes) else b"".join(encoded)

    assert b"\r" not in frames
    assert frames.count(b"\n") == 2 * len(pieces)
    *blocks, rest = frames.split(b"\n\n")
    assert rest == b""
    assert [json.loads(block.removeprefix(b"data: ")) for block in blocks] == [
        {"type": "delta", "text": piece} for piece in pieces
    ]


async def test_a_refusal_and_a_repr_quote_nothing_of_the_body() -> None:
    with pytest.raises(BadBody) as refused:
        await read(body(messages=[{"role": "segredo", "content": "segredo"}]))
    assert "segredo" not in str(refused.value)
    assert "$.messages[0]" in str(refused.value)

    call = {"id": "1", "name": "x", "arguments": {"a": "segredo"}}
    turn = await read(
        body(
            messages=[{"role": "assistant", "content": "segredo", "toolCalls": [call]}],
            tools=[{"name": "t", "description": "segredo"}],
        )
    )
    assert turn.tools is not None
    seen = f"{turn} {turn.messages} {turn.messages[0].tool_calls} {turn.tools} {CalledTool('1', 'x', {'a': 'segredo'})}"
    assert "segredo" not in seen


def test_a_call_that_cannot_be_encoded_is_an_answer_and_not_a_cut() -> None:
    for encode, opening in ((encode_answer, 0), (encode_final, 6)):
        raw = b"".join(encode(answer(tool_calls=(CalledTool("c\ud800", "read", {}),))))
        read_back = json.loads(raw[opening:])
        assert read_back["errorCode"] == "internal"
        assert read_back["message"] == {"role": "assistant", "content": "oi", "toolCalls": []}


def routing(outcome: Choice | Fallback, **over: Any) -> Routing:
    fields: dict[str, Any] = {
        "model": "typesafe/jev-1.13",
        "catalogue": ["ler", 'a "b"\nc', "editar"],
        "menu": ["ler", "editar"],
        "previous_tool": "ler",
        "outcome": outcome,
        "latency_ms": 317,
        "cost_micros": 52,
        "is_spend_unrecorded": False,
        **over,
    }
    return Routing(**fields)


def encoded_routing(one: Routing) -> Any:
    as_json = json.loads(b"".join(encode_answer(answer(routing=one))))
    frame = b"".join(encode_final(answer(routing=one)))
    assert frame.count(b"\n") == 2
    assert json.loads(frame[6:]) == {"type": "final", **as_json}
    return as_json["toolRouting"]


def test_a_choice_has_every_key_and_no_reason() -> None:
    chosen = routing(Choice("editar", 0.87, RunnerUp("ler", 0.1)))

    assert encoded_routing(chosen) == {
        "modelo": "typesafe/jev-1.13",
        "ofertadas": 3,
        "menuAntes": ["ler", 'a "b"\nc', "editar"],
        "menuDepois": ["ler", "editar"],
        "escolha": "editar",
        "confianca": 0.87,
        "segunda": {"opcao": "ler", "probabilidade": 0.1},
        "anterior": "ler",
        "aplicado": True,
        "motivoDaQueda": None,
        "origemDaQueda": None,
        "detalheDaQueda": None,
        "latenciaMs": 317,
        "custoMicros": 52,
        "gastoNaoRegistrado": False,
        "turnId": str(UUID(int=7)),
    }


def test_figures_that_nobody_said_are_null() -> None:
    read = encoded_routing(routing(Choice("editar"), previous_tool=None, is_spend_unrecorded=True))

    assert (read["confianca"], read["segunda"], read["anterior"]) == (None, None, None)
    assert read["gastoNaoRegistrado"] is True


@pytest.mark.parametrize("reason", FallbackReason)
def test_a_fallback_has_its_reason_and_no_choice(reason: FallbackReason) -> None:
    whole = routing(Fallback(reason, "HTTP 500"), menu=["ler", 'a "b"\nc', "editar"])
    read = encoded_routing(whole)

    assert (read["motivoDaQueda"], read["detalheDaQueda"]) == (reason.value, "HTTP 500")
    assert (read["escolha"], read["confianca"], read["segunda"]) == (None, None, None)
    assert read["aplicado"] is False
    assert (
        read["origemDaQueda"]
        == {
            "erro_http": "infra",
            "timeout": "infra",
            "erro_de_rede": "infra",
            "resposta_invalida": "modelo",
            "escolha_fora_das_opcoes": "modelo",
            "estado_grande": "codigo",
            "colisao_de_nome": "codigo",
        }[reason]
    )
    ours = encoded_routing(routing(Fallback(reason, "LookupError", is_ours=True)))
    assert (ours["motivoDaQueda"], ours["origemDaQueda"]) == (reason.value, "codigo")


def test_without_a_routing_there_is_no_key_for_it() -> None:
    assert b"toolRouting" not in b"".join(encode_answer(answer()))


def test_that_routing_started_is_one_frame() -> None:
    assert ROUTING_STARTED.endswith(b"}\n\n")
    assert json.loads(ROUTING_STARTED.removeprefix(b"data: ")) == {"type": "tool_routing_started"}
