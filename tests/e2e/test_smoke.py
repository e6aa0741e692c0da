"""The look at the real service, taken at the simulated one."""

import asyncio

import pytest

from entrypoints.simulator import Simulator
from scripts.smoke import CALLS, main

KEY = "sk-or-of-the-smoke-test-0123456789"


async def look(simulator: Simulator, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status, and what was printed."""
    environment = {"OPENROUTER_TEST_KEY": KEY, "OPENROUTER_API_BASE": simulator.base_url}
    status = await asyncio.to_thread(main, environment)
    said = capsys.readouterr()
    assert KEY not in said.out + said.err
    return status, said.out + said.err


def changes(said: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("CHANGED")]


def test_without_a_key_it_says_that_nothing_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"OPENROUTER_TEST_KEY": " "}) == 0

    [sentence] = capsys.readouterr().out.splitlines()
    assert sentence.startswith("Skipped: OPENROUTER_TEST_KEY is not set.")


async def test_nothing_has_changed(simulator: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = await look(simulator, capsys)

    assert (status, changes(said)) == (0, []), said
    assert len(simulator.bill()["entries"]) == CALLS
    assert f"{simulator.bill()['total']} USD of 0.05" in said
    assert "as before  the model's dated name: typesafe/jev-1.13-20260917" in said
    assert "as before  latency: median 317 ms and 95th percentile 449 ms by the contract, and now" in said
    assert "the adapter reads a choice: " in said


@pytest.mark.parametrize(
    ("script", "change"),
    [
        ({"fault": "answers-list"}, "shape: answers: object by the contract, and now list"),
        ({"fault": "confidence-string"}, "confidence: number by the contract, and now string"),
        ({"fault": "probabilities-strings"}, "probabilities.*: number by the contract, and now string"),
        ({"fault": "choice-missing"}, "ferramenta_do_passo.choice is missing"),
        ({"fault": "no-confidence"}, "confidence may be missing, and was not; now it is"),
        ({"fault": "usage-missing"}, "shape: usage is missing"),
        ({"fault": "cost-string"}, "usage.cost: number by the contract, and now string"),
        ({"fault": "unknown-answers"}, " is new: object"),
        ({"fault": "json-array"}, "the answer: object by the contract, and now list"),
        ({"fault": "choice-outside"}, "the adapter cannot use it: escolha_fora_das_opcoes"),
        ({"fault": "other-model"}, "20260917 by the contract, and now typesafe/jev-1.14-20261015"),
        (
            {"reply": {"cost": "0.0001", "usage": {"input_tokens": 1000}}},
            "USD per input token: 0.000000042 by the contract, and now 0.0000001",
        ),
        ({"fault": "delay-headers;ms=460"}, "95th percentile 449 ms by the contract, and now a median of 4"),
    ],
    ids=lambda value: value.get("fault", "price") if isinstance(value, dict) else "",
)
async def test_a_change_is_named(
    simulator: Simulator, capsys: pytest.CaptureFixture[str], script: dict[str, object], change: str
) -> None:
    simulator.script({"path": "decisions", "times": None, **script})

    status, said = await look(simulator, capsys)

    assert status == 1
    assert any(change in found for found in changes(said)), said
    assert len(changes(said)) == len(set(changes(said)))


async def test_one_answer_of_many_that_differs_is_named(
    simulator: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator.script({"path": "decisions", "times": CALLS - 1, "reply": {}})
    simulator.script({"path": "decisions", "fault": "other-model"})

    status, said = await look(simulator, capsys)

    assert status == 1
    [change] = changes(said)
    assert "typesafe/jev-1.14-20261015" in change


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("moved", "answered 404 where the contract has 200"),
        ("missing-authentication", "answered 401"),
        ("malformed-document", "with what is not JSON"),
        ("reset-headers", "This did not work"),
    ],
)
async def test_what_cannot_be_compared_is_said(
    simulator: Simulator, capsys: pytest.CaptureFixture[str], fault: str, sentence: str
) -> None:
    simulator.script({"path": "decisions", "times": None, "fault": fault})

    status, said = await look(simulator, capsys)

    assert status == 1
    assert sentence in said
    assert len([request for request in simulator.requests() if request["path"].endswith("decisions")]) == 1


async def test_it_stops_before_the_ceiling_could_be_passed(
    simulator: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator.script({"path": "decisions", "times": None, "reply": {"cost": "0.02"}})

    status, said = await look(simulator, capsys)

    assert status == 1
    assert simulator.bill()["total"] == "0.04"
    assert "one more call could pass the ceiling of 0.05 USD" in said


async def test_a_cost_that_does_not_come_is_counted_all_the_same(
    simulator: Simulator, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator.script({"path": "decisions", "reply": {"cost": "0.02"}})
    simulator.script({"path": "decisions", "times": None, "fault": "cost-absent"})

    status, said = await look(simulator, capsys)

    assert status == 1
    assert "0.04 USD of 0.05" in said
    assert len(simulator.bill()["entries"]) == 2
