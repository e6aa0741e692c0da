import re
from itertools import product
from typing import Any

import pytest

from domain.binding import BindingScope
from domain.budget import BudgetScope
from domain.failure import FailureCode, StrictObstacle, TurnFailure
from domain.provider import Provider
from entrypoints.http.sentences import sentence_for

KIND_WORDS = ("orçamento", "credencial", "modelo vinculado", "(402)")
KIND_OF = {
    FailureCode.BUDGET_EXHAUSTED: "orçamento",
    FailureCode.NO_CREDENTIAL: "credencial",
    FailureCode.AUTH: "credencial",
    FailureCode.NO_MODEL: "modelo vinculado",
    FailureCode.MODEL_GONE: "modelo vinculado",
    FailureCode.INSUFFICIENT_CREDIT: "(402)",
}
OURS = {
    FailureCode.BUDGET_EXHAUSTED,
    FailureCode.NO_CREDENTIAL,
    FailureCode.NO_MODEL,
    FailureCode.MODEL_GONE,
    FailureCode.DRAINING,
    FailureCode.INTERNAL,
}
DETAILS = (
    "",
    "Provider returned error",
    "modelo vinculado",
    "ORÇAMENTO esgotado",
    "sua credencial",
    "failed (402)",
    "x" * 500,
    "flagged_input: segredo",
    "user_id user_abc",
    "key sk-or-v1-0123456789",
    "Bearer abc",
)


@pytest.mark.parametrize("code", FailureCode)
def test_a_sentence_holds_the_word_of_its_kind_and_of_no_other(code: FailureCode) -> None:
    for detail, status in product(DETAILS, (None, 401, 402, 429, 503)):
        failure = TurnFailure(
            code,
            provider=Provider.OPENROUTER,
            status=status,
            detail=detail,
            budget=BudgetScope.AREA,
            binding=BindingScope.WORKSPACE,
        )

        sentence = sentence_for(failure)

        held = {word for word in KIND_WORDS if word in sentence.lower()}
        assert held == ({KIND_OF[code]} if code in KIND_OF else set()), sentence
        assert not re.search(r"flagged_input|user_id|sk-or|bearer", sentence, re.IGNORECASE), sentence
        if code not in OURS:
            assert "provider openrouter" in sentence
            if status not in (None, 402) and code not in (
                FailureCode.NO_PROVIDER,
                FailureCode.INSUFFICIENT_CREDIT,
            ):
                assert f"({status})" in sentence


@pytest.mark.parametrize("code", FailureCode)
def test_every_sentence_is_portuguese(code: FailureCode) -> None:
    words = set(re.findall(r"\w+", sentence_for(TurnFailure(code, Provider.OPENROUTER)).lower()))

    assert words & {"o", "a", "não", "nenhum"}
    assert not words & {"the", "is", "was", "not", "did", "has", "of", "for", "to", "and", "in", "this"}


def test_the_providers_words_are_kept_where_they_do_no_harm_and_cut() -> None:
    failure = TurnFailure(FailureCode.UPSTREAM, Provider.TOGETHER, 503, detail="Backend\n is   busy.")

    assert sentence_for(failure) == "O provider together falhou (503): Backend is busy."
    long = TurnFailure(FailureCode.UPSTREAM, Provider.TOGETHER, 503, detail="palavra " * 100)
    assert len(sentence_for(long)) <= len("O provider together falhou (503): .") + 200


def test_a_402_in_flight_does_not_say_that_the_credit_is_gone() -> None:
    assert "402" not in sentence_for(TurnFailure(FailureCode.RATE_LIMIT, Provider.OPENROUTER, 402))


def refusal(**figures: Any) -> str:
    return sentence_for(
        TurnFailure(
            FailureCode.BUDGET_EXHAUSTED, provider=Provider.NVIDIA_NIM, budget=BudgetScope.PROJECT, **figures
        )
    )


def test_what_does_not_fit_is_refused_with_what_it_needs_and_what_is_left() -> None:
    assert refusal(needed_micros=12_345, left_micros=10_000) == (
        "O orçamento do projeto é estrito e não cobre o pior caso deste turno, de 0.012345 USD. Restam 0.01 USD. "
        "Aumente o limite para continuar."
    )
    assert "de 1.50 USD. Restam 0.00 USD." in refusal(needed_micros=1_500_000, left_micros=0)
    assert "de 0.000001 USD." in refusal(needed_micros=1, left_micros=0)
    assert "de 1000000000.10 USD." in refusal(needed_micros=10**15 + 100_000, left_micros=0)


@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        (StrictObstacle.UNBOUNDED_PROVIDER, "nvidia-nim não aceita"),
        (StrictObstacle.UNPRICED_MODEL, "não tem preço"),
        (StrictObstacle.SHORT_MODEL, "16 tokens"),
    ],
)
def test_what_a_strict_budget_cannot_hold_for_is_said_with_the_word_of_budgets_alone(
    obstacle: StrictObstacle, said: str
) -> None:
    sentence = refusal(obstacle=obstacle, left_micros=2_000_000)

    assert said in sentence
    assert sentence.startswith("O orçamento do projeto é estrito, e ")
    assert sentence.endswith(" Restam 2.00 USD.")
    assert [word for word in (*KIND_WORDS, "provider") if word in sentence.lower()] == ["orçamento"]
