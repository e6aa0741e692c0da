"""What an answer of the decision model is taken for."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.jev.answer import LONGEST_BYTES, Charge, charge_within, read_answer
from domain.routing import Choice, Fallback, FallbackReason, RunnerUp
from domain.usage import TokenCounts

OPTIONS = ["ler", "editar", "rodar", "responder_sem_ferramenta"]
USAGE = '{"input_tokens": 1236, "output_tokens": 7, "cost": 0.000051912}'
CHARGE = Charge(Decimal("0.000051912"), TokenCounts(1236, 7))
SHAPE = "não tem a forma de uma escolha"


def body(answer: str = '{"type": "choice", "choice": "ler"}', usage: str = USAGE, more: str = "") -> bytes:
    return f'{{"answers": {{"ferramenta_do_passo": {answer}}}, "usage": {usage}{more}}}'.encode()


def choice(**fields: Any) -> bytes:
    return body(json.dumps({"type": "choice", "choice": "ler", **fields}))


def outcome(content: bytes) -> Choice | Fallback:
    return read_answer(content, OPTIONS).outcome


def test_everything_is_read() -> None:
    answer = read_answer(
        b'{"id": "gen-dec-1", "model": "typesafe/jev-1.13-20260917", "provider": "TypeSafe", "answers":'
        b' {"ferramenta_do_passo": {"type": "choice", "choice": "editar", "confidence": 0.9, "probabilities":'
        b' {"ler": 0.06, "editar": 0.9, "rodar": 0, "responder_sem_ferramenta": 0.04}}},'
        b' "usage": ' + USAGE.encode() + b"}",
        OPTIONS,
    )  # fmt: skip

    assert answer.outcome == Choice("editar", 0.9, RunnerUp("ler", 0.06))
    assert answer.charge == CHARGE
    assert (answer.generation_id, answer.resolved_model) == ("gen-dec-1", "typesafe/jev-1.13-20260917")


@pytest.mark.parametrize("fields", [{}, {"confidence": None, "probabilities": None}], ids=["missing", "null"])
def test_figures_may_be_missing(fields: dict[str, Any]) -> None:
    assert outcome(choice(**fields)) == Choice("ler", None, None)


@pytest.mark.parametrize(
    ("probabilities", "runner_up"),
    [
        ({"ler": 0.5, "rodar": 0.25, "editar": 0.25}, RunnerUp("editar", 0.25)),
        ({"responder_sem_ferramenta": 0.4, "rodar": 0.4, "ler": 0.2}, RunnerUp("rodar", 0.4)),
        ({"ler": 0.49, "rodar": 0.5}, RunnerUp("rodar", 0.5)),
        ({"ler": 1, "rodar": 0, "editar": 0}, RunnerUp("editar", 0)),
        ({"ler": 0.9, "outra": 0.1}, None),
        ({"ler": 1}, None),
        ({}, None),
        ({"ler": 0.9, "editar": 0.08}, RunnerUp("editar", 0.08)),
        ({"ler": 0.92, "editar": 0.1}, RunnerUp("editar", 0.1)),
    ],
    ids=["tie", "tie with the reserved one", "above the choice", "nothing for the rest", "not offered", "alone",
         "none", "sum 0.98", "sum 1.02"],
)  # fmt: skip
def test_the_runner_up_is_the_likeliest_of_the_others(
    probabilities: dict[str, float], runner_up: RunnerUp | None
) -> None:
    assert outcome(choice(probabilities=probabilities)) == Choice("ler", None, runner_up)


@pytest.mark.parametrize(
    "answer",
    [
        '{"type": "choice"}',
        '{"type": "choice", "choice": null}',
        '{"type": "choice", "choice": 1}',
        '{"type": "noul", "noul": 0.5}',
        '{"choice": "ler"}',
        "null",
        "[]",
        '{"type": "choice", "choice": "ler", "confidence": "0.9"}',
        '{"type": "choice", "choice": "ler", "confidence": true}',
        '{"type": "choice", "choice": "ler", "confidence": 1e400}',
        '{"type": "choice", "choice": "ler", "probabilities": [0.9, 0.1]}',
        '{"type": "choice", "choice": "ler", "probabilities": {"ler": "0.9"}}',
        '{"type": "choice", "choice": "ler", "probabilities": {"ler": null}}',
        '{"type": "choice", "choice": "ler", "probabilities": {"ler": 1e400}}',
    ],
)
def test_what_has_not_that_shape_is_still_charged(answer: str) -> None:
    read = read_answer(body(answer), OPTIONS)

    assert read.outcome == Fallback(FallbackReason.INVALID_ANSWER, SHAPE)
    assert read.charge == CHARGE


@pytest.mark.parametrize(
    "answers", ["[]", "{}", "null", '{"outra": {"type": "choice", "choice": "ler"}}', "1"]
)
def test_answers_without_ours_are_still_charged(answers: str) -> None:
    read = read_answer(f'{{"answers": {answers}, "usage": {USAGE}}}'.encode(), OPTIONS)

    assert read.outcome == Fallback(FallbackReason.INVALID_ANSWER, SHAPE)
    assert read.charge == CHARGE


def test_a_choice_that_was_not_offered_is_still_charged_and_not_repeated() -> None:
    read = read_answer(choice(choice="palavras do provedor"), OPTIONS)

    assert isinstance(read.outcome, Fallback)
    assert read.outcome.reason is FallbackReason.CHOICE_NOT_OFFERED
    assert "palavras" not in str(read.outcome)
    assert read.charge == CHARGE


@pytest.mark.parametrize(
    ("content", "charge"),
    [
        (body('{"type": "choice", "choice": "ler", "confidence": NaN}'), CHARGE),
        (body('{"type": "choice", "choice": "ler", "probabilities": {"ler": NaN}}'), CHARGE),
        (body(more=","), CHARGE),
        (body(usage='{"input_tokens": 1, "cost": NaN}'), None),
        (b"", None),
        (b"<html>", None),
        (b"null", None),
        (b"[]", None),
        (b"[" * 100_000, None),
        (b'{"answers":' * 50_000, None),
        (b"\xff\xfe", None),
    ],
    ids=["confidence NaN", "probability NaN", "a comma", "cost NaN", "nothing", "a page", "null", "a list",
         "deep lists", "deep objects", "no text"],
)  # fmt: skip
def test_what_is_no_json_is_searched_for_its_cost(content: bytes, charge: Charge | None) -> None:
    read = read_answer(content, OPTIONS)

    assert read.outcome == Fallback(FallbackReason.INVALID_ANSWER, "não é um objeto JSON")
    assert read.charge == charge


def test_a_cost_inside_a_string_is_not_taken_for_the_cost() -> None:
    said = json.dumps('"usage": {"cost": 1}')

    assert read_answer(body(usage="null", more=f', "said": {said},'), OPTIONS).charge is None


DETAILED = USAGE[:-1] + ', "cost_details": {"upstream": {"cost": 7}, "parts": [{}]}}'


@pytest.mark.parametrize(
    ("content", "charge"),
    [
        (body(usage=DETAILED)[:-1], CHARGE),
        (body(usage=DETAILED, more=',"x": "')[:-1], CHARGE),
        (body(usage=DETAILED)[:-2], None),
        (b'{"usage": {"cost": null}, ' + body(usage=DETAILED)[1:-1], CHARGE),
        (b'{"usage": {"x" 1}, ' + body(usage=DETAILED)[1:-1], CHARGE),
        (b'{"x": "\xff", ' + body(usage=DETAILED)[1:-1], CHARGE),
        (b'{"usage": {"cost": 1' + b"0" * 5_000 + b"}, ", None),
    ],
    ids=["after it", "in a text after it", "within it", "after one without a cost", "after one that is no JSON",
         "after what is no text", "long number"],
)  # fmt: skip
def test_a_cut_answer_is_searched_for_its_cost(content: bytes, charge: Charge | None) -> None:
    assert charge_within(content) == charge


@pytest.mark.parametrize("piece", [b'"usage":{', b'"usage":{"a":', b'"usage":{"a":[', b'"usage":{},', b'"usage":{"',
                                   b'"usage":{x'])  # fmt: skip
def test_the_search_is_linear(piece: bytes) -> None:
    content = piece * (LONGEST_BYTES // len(piece))
    before_s = time.thread_time()

    assert charge_within(content) is None
    assert time.thread_time() - before_s < 0.1


def test_a_megabyte_is_read_and_more_is_not() -> None:
    padding = "x" * (LONGEST_BYTES - len(body(more=', "padding": ""')))
    longest = body(more=f', "padding": "{padding}"')
    assert len(longest) == LONGEST_BYTES

    assert outcome(longest) == Choice("ler")
    too_long = read_answer(longest + b" ", OPTIONS)
    assert too_long.outcome == Fallback(FallbackReason.INVALID_ANSWER, "mais de 1 MiB")
    assert too_long.charge == CHARGE


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + body(),
        body(more=', "padding": ""').replace(b'""', b'"\xff\xfe"'),
        body(more=', "unknown": {"type": "vector", "vector": [1e999, "x"]}'),
        body().replace(b'"answers": {', b'"answers": {"outra": {"type": "box", "choice": 7}, "nada": null, '),
        b'{"answers": {}, ' + body()[1:],
    ],
    ids=["byte order mark", "no UTF-8 where nobody reads", "unknown field", "unknown answers", "twice"],
)
def test_what_stands_beside_it_does_no_harm(content: bytes) -> None:
    read = read_answer(content, OPTIONS)

    assert (read.outcome, read.charge) == (Choice("ler"), CHARGE)


@pytest.mark.parametrize(
    ("cost", "usd"),
    [
        ("0.000051912", "0.000051912"),
        ("5.1912e-5", "0.000051912"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ("0", "0"),
        ("-0.0", "0"),
        ("1000000", "1000000"),
    ],
)
def test_the_cost_is_its_decimal_text(cost: str, usd: str) -> None:
    charge = read_answer(body(usage=f'{{"cost": {cost}, "input_tokens": 1}}'), OPTIONS).charge

    assert charge == Charge(Decimal(usd), TokenCounts(1, 0))
    assert charge is not None
    assert not charge.usd.is_signed()


@pytest.mark.parametrize(
    "cost",
    ["null", '"0.1"', "-0.000123", "1e400", "1000000.01", "true", "[1]", "{}", "0." + "1" * 200,
     "1e99999999999999999999"],
    ids=lambda cost: cost[:20],
)  # fmt: skip
def test_a_cost_that_cannot_be_one_is_none(cost: str) -> None:
    read = read_answer(body(usage=f'{{"cost": {cost}}}'), OPTIONS)

    assert (read.outcome, read.charge) == (Choice("ler"), None)


@pytest.mark.parametrize("usage", ["null", "[]", "1", "{}", '{"input_tokens": 12}'])
def test_without_a_cost_there_is_no_charge(usage: str) -> None:
    assert read_answer(body(usage=usage), OPTIONS).charge is None


@pytest.mark.parametrize(
    ("counts", "tokens"),
    [
        ('"input_tokens": 12.0, "output_tokens": 3.0', TokenCounts(12, 3)),
        ('"input_tokens": 12', TokenCounts(12, 0)),
        ('"input_tokens": 0, "output_tokens": 0', TokenCounts(0, 0)),
        ('"output_tokens": 3', None),
        ('"input_tokens": "12", "output_tokens": "3"', None),
        ('"input_tokens": -1, "output_tokens": -1', None),
        ('"input_tokens": 1.5', None),
        ('"input_tokens": 2147483648', None),
        ('"input_tokens": null', None),
        ('"input_tokens": true', None),
        ('"input_tokens": 1e400', None),
    ],
)
def test_counts_are_read_where_they_can_be_counts(counts: str, tokens: TokenCounts | None) -> None:
    assert read_answer(body(usage=f'{{"cost": 0.5, {counts}}}'), OPTIONS).charge == Charge(
        Decimal("0.5"), tokens
    )


def test_names_are_fit_to_be_stored() -> None:
    read = read_answer(body(more=f', "id": "a\\u0000b{"x" * 300}", "model": 7'), OPTIONS)

    assert read.generation_id == "ab" + "x" * 198
    assert read.resolved_model is None


@pytest.mark.parametrize("field", ["id", "model"])
def test_a_name_that_is_no_text_takes_nothing_with_it(field: str) -> None:
    read = read_answer(body(more=f', "{field}": "?"').replace(b'"?"', b'"\xff"'), OPTIONS)

    assert (read.outcome, read.charge) == (Choice("ler"), CHARGE)
    assert (read.generation_id, read.resolved_model) == (None, None)


@given(st.binary() | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["answers", "ferramenta_do_passo", "type", "choice", "confidence", "probabilities", "usage",
                         "cost", "input_tokens", "id", "model", "ler"]) | st.text(), inner),
).map(lambda document: json.dumps(document).encode()))  # fmt: skip
def test_no_answer_raises(content: bytes) -> None:
    assert isinstance(outcome(content), Choice | Fallback)
