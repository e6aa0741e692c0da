"""Whose fault a fallback is, and when a menu came out smaller."""

import pytest

from domain.routing import Choice, Fallback, FallbackOrigin, FallbackReason, Routing

WORDS = {
    "erro_http": "infra",
    "timeout": "infra",
    "erro_de_rede": "infra",
    "resposta_invalida": "modelo",
    "escolha_fora_das_opcoes": "modelo",
    "estado_grande": "codigo",
    "colisao_de_nome": "codigo",
}


def test_the_words_of_the_contract_and_whose_fault_each_is() -> None:
    assert {reason.value: Fallback(reason).origin.value for reason in FallbackReason} == WORDS


@pytest.mark.parametrize("reason", FallbackReason)
def test_a_fault_of_our_code_is_one_whatever_the_reason(reason: FallbackReason) -> None:
    assert Fallback(reason, is_ours=True).origin is FallbackOrigin.CODE


@pytest.mark.parametrize(
    ("menu", "is_applied"),
    [(["ler", "editar", "rodar"], False), (["ler", "editar"], True), (["ler"], True)],
)
def test_it_is_applied_where_the_menu_is_smaller(menu: list[str], is_applied: bool) -> None:
    routing = Routing(
        model="typesafe/jev-1.13",
        catalogue=["ler", "editar", "rodar"],
        menu=menu,
        previous_tool="ler",
        outcome=Choice("ler"),
        latency_ms=1,
        cost_micros=0,
        is_spend_unrecorded=False,
    )

    assert routing.is_applied is is_applied
