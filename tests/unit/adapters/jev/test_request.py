"""What goes out to the decision model, and what does not."""

import json
from typing import Any

import pytest

from adapters.in_memory.clock import ManualClock
from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.jev import JevToolRouter, decisions_url
from adapters.jev.request import Request, request_for
from adapters.transport.way_out import WayOut
from application.ports.token_estimator import TokenEstimator
from domain.routing import Fallback, FallbackReason
from domain.secret import Secret
from tests.support.steps import ACall, ATool, Said, a_step, tools

KEY = Secret("sk-or-v1-0123456789abcdef")


def sent(step: Any) -> Any:
    request = request_for(step)
    assert isinstance(request, Request)
    return json.loads(request.body)


def refused(step: Any) -> Fallback:
    fallback = request_for(step)
    assert isinstance(fallback, Fallback)
    return fallback


def test_the_whole_request() -> None:
    step = a_step(
        [ATool("ler", "Lê um arquivo", {"type": "object"}), ATool("rodar")],
        messages=[
            Said("system", "És um agente."),
            Said("user", "Corrige a.ts"),
            Said("assistant", tool_calls=[ACall("ler", "c1", {"caminho": "ação.ts"})]),
            Said("tool", "export {}", tool_call_id="c1"),
        ],
    )

    assert sent(step) == {
        "model": "typesafe/jev-1.13",
        "state": {
            "agente": "dev-api",
            "contexto": "És um agente.",
            "pedido": "Corrige a.ts",
            "passos_recentes": [
                {"ferramenta": "ler", "argumentos": '{"caminho":"ação.ts"}', "resultado": "export {}"}
            ],
        },
        "questions": {
            "ferramenta_do_passo": {
                "type": "choice",
                "instructions": "Considerando o pedido, o contexto e os passos recentes, que ferramenta este agente "
                "deve usar agora? Se o certo for responder em texto ou terminar o turno, escolha "
                '"responder_sem_ferramenta".',
                "criteria": {
                    "ler": "Lê um arquivo",
                    "rodar": "rodar",
                    "responder_sem_ferramenta": "Sem ferramenta: responder em texto, ou terminar o turno.",
                },
            }
        },
    }


def test_options_go_in_catalogue_order_with_the_reserved_one_last() -> None:
    request = request_for(a_step(tools("z", "a", "m")))
    assert isinstance(request, Request)

    assert list(request.options) == ["z", "a", "m", "responder_sem_ferramenta"]
    criteria = json.loads(request.body)["questions"]["ferramenta_do_passo"]["criteria"]
    assert list(criteria) == request.options


def test_of_two_tools_of_one_name_the_first_description_counts() -> None:
    step = a_step([ATool("ler", "a primeira"), ATool("rodar"), ATool("ler", "a segunda")])

    criteria = sent(step)["questions"]["ferramenta_do_passo"]["criteria"]
    assert criteria["ler"] == "a primeira"
    assert list(criteria) == ["ler", "rodar", "responder_sem_ferramenta"]


@pytest.mark.parametrize(
    "text", ['uma "aspa"', "linha\nnova", "nul\x00 e \x1b[31m", "\u2028", "😊", "\\", ""]
)
def test_names_and_descriptions_of_any_characters_arrive_as_they_are(text: str) -> None:
    criteria = sent(a_step([ATool(text, text), ATool("ler")]))["questions"]["ferramenta_do_passo"]["criteria"]

    assert criteria[text] == text


def test_half_a_surrogate_pair_does_not_break_the_request() -> None:
    assert "?" in str(
        sent(a_step([ATool("ler", "\ud83d"), ATool("rodar")], messages=[Said("user", "\udc00")]))
    )


def test_a_tool_of_the_reserved_name_is_not_asked_about() -> None:
    fallback = refused(a_step(tools("ler", "responder_sem_ferramenta")))

    assert fallback.reason is FallbackReason.NAME_COLLISION
    assert fallback.detail == "uma ferramenta se chama responder_sem_ferramenta"


def test_no_more_options_than_a_question_takes() -> None:
    assert sent(a_step(tools(*map(str, range(254)))))

    fallback = refused(a_step(tools(*map(str, range(255)))))
    assert (fallback.reason, fallback.detail) == (
        FallbackReason.STATE_TOO_LARGE,
        "256 opções, e uma pergunta aceita 255",
    )


def test_options_are_counted_by_name() -> None:
    assert sent(a_step(tools(*(str(at % 10) for at in range(300)))))


@pytest.mark.parametrize(
    "step",
    [
        a_step([ATool("ler", "x" * 64_000), ATool("rodar")]),
        a_step([ATool("x" * 64_000), ATool("rodar")]),
        a_step([ATool("ler", "x" * 60_000), ATool("rodar")], messages=[Said("user", "x" * 4_000)]),
        a_step([ATool("ler", '"' * 40_000), ATool("rodar")]),
        a_step(agent="x" * 64_000),
        a_step(messages=[Said("assistant", tool_calls=[ACall("x" * 64_000)])]),
    ],
    ids=["description", "name", "together", "once escaped", "agent", "called name"],
)
def test_over_64_000_characters_nothing_is_sent_and_nothing_counted(step: Any) -> None:
    fallback = refused(step)

    assert (fallback.reason, fallback.detail) == (
        FallbackReason.STATE_TOO_LARGE,
        "mais de 64000 caracteres",
    )


class Counter(TokenEstimator):
    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.asked = 0

    async def count(self, texts: Any) -> int:
        self.asked += 1
        return self.tokens


def router(estimator: TokenEstimator, way_out: WayOut) -> JevToolRouter:
    return JevToolRouter("http://127.0.0.1:1", way_out, estimator, ManualClock(), timeout_s=2)


async def test_a_body_of_8_000_tokens_is_asked_about_and_one_more_is_not() -> None:
    step = a_step([ATool("ler", "palavra " * 2_000), ATool("rodar")])
    async with WayOut() as way_out:
        assert not isinstance(await router(Counter(8_000), way_out).prepare(step, KEY), Fallback)
        fallback = await router(Counter(8_001), way_out).prepare(step, KEY)

    assert fallback == Fallback(FallbackReason.STATE_TOO_LARGE, "8001 tokens, e o limite é 8000")


async def test_a_body_of_fewer_bytes_than_the_limit_has_tokens_is_not_counted() -> None:
    counter = Counter(9_999)
    async with WayOut() as way_out:
        assert not isinstance(await router(counter, way_out).prepare(a_step(), KEY), Fallback)

    assert counter.asked == 0


@pytest.mark.parametrize("key", ["a\r\nX-Evil: 1", "chavé", "a\x00"])
async def test_a_key_that_fits_no_header_is_not_sent(key: str) -> None:
    async with WayOut() as way_out:
        fallback = await router(WordTokenEstimator(), way_out).prepare(a_step(), Secret(key))

    assert isinstance(fallback, Fallback)
    assert fallback.reason is FallbackReason.HTTP_ERROR
    assert key not in str(fallback)


def test_contents_are_not_in_a_repr() -> None:
    assert "segredo" not in repr(
        request_for(a_step([ATool("segredo", "segredo"), ATool("b")], messages=[Said("user", "segredo")]))
    )


def test_the_address_is_a_sibling_of_the_chats() -> None:
    assert decisions_url(None) == "https://openrouter.ai/api/alpha/decisions"
    assert decisions_url("http://127.0.0.1:8787/api") == "http://127.0.0.1:8787/api/alpha/decisions"
