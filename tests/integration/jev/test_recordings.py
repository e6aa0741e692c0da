"""Recorded decisions, read where they lie."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.jev import JevToolRouter
from adapters.jev.request import MODEL, request_for
from adapters.system.clock import SystemClock
from adapters.transport.way_out import WayOut
from domain.routing import Choice, Fallback, FallbackReason, RouterSpend, RunnerUp, Verdict
from domain.secret import Secret
from domain.usage import TokenCounts
from tests.support.raw_upstream import RawUpstream, whole
from tests.support.recordings import RECORDINGS
from tests.support.steps import a_step, tools

FOLDER = "fixtures/openrouter"
DATED = "typesafe/jev-1.13-20260917"
pytestmark = pytest.mark.skipif(RECORDINGS.folder is None, reason="the shared recordings are not here")


@dataclass(frozen=True)
class Recorded:
    """A recording whose choice is taken for the answer to our question, and what it must come to."""

    answer: str
    options: Sequence[str]
    """The tools; those of the recording, in an order of our own."""
    choice: Choice
    charged_usd: str
    tokens: TokenCounts
    generation_id: str


RECORDED = {
    "decisions_200_btc.json": Recorded(
        "direction",
        ["down", "flat", "up"],
        Choice("up", 0.3, RunnerUp("down", 0.35)),
        "0.00008064",
        TokenCounts(1920, 120),
        "gen-dec-1791168980-wL4vIZGwKNDNpCpH5z4g",
    ),
    "decisions_200_cookbook.json": Recorded(
        "category",
        ["sales", "recruiting", "other", "finance"],
        Choice("recruiting", 1, RunnerUp("sales", 0)),
        "0.000019992",
        TokenCounts(476, 87),
        "gen-dec-1789740481-u4wdrIIU8JY0rDMInGEO",
    ),
    "decisions_200_docs_tutorial.json": Recorded(
        "team",
        ["account", "frontend", "payments"],
        Choice("payments", 0.67, RunnerUp("frontend", 0.22)),
        "0.000019992",
        TokenCounts(476, 70),
        "gen-dec-1790015143-AIaTutprXsJ5EwohRSjb",
    ),
    "decisions_200_score_rounding.json": Recorded(
        "support",
        ["contradicted", "insufficient", "supported"],
        Choice("supported", 0.98, RunnerUp("insufficient", 0.02)),
        "0.000018438",
        TokenCounts(439, 74),
        "gen-dec-1789773497-ORHpy0L0VGkEBoyO9SxG",
    ),
    "decisions_200_three_types.json": Recorded(
        "read_class",
        ["chatty_ok", "wall_1308", "clean_ok"],
        Choice("chatty_ok", 1, RunnerUp("wall_1308", 0)),
        "0.000026292",
        TokenCounts(626, 139),
        "gen-dec-1789778139-WHrLNLMSgc6erVL54RiK",
    ),
}
REFUSED = ("decisions_400_chat_endpoint.json", "decisions_400_unknown_model.json")
OTHERS = ("decisions_200.headers.txt", "decisions_200_three_types.request.json")


async def answered(body: bytes, status: str, options: Sequence[str], **headers: str) -> Verdict:
    async with RawUpstream() as upstream, WayOut() as way_out:
        upstream.will(whole(body, status, "application/json", **headers))
        router = JevToolRouter(upstream.url, way_out, WordTokenEstimator(), SystemClock(), timeout_s=5)
        question = await router.prepare(a_step(tools(*options)), Secret("sk-or-v1-0123"))
        assert not isinstance(question, Fallback)
        return await question.ask()


@pytest.mark.parametrize("name", RECORDED)
async def test_reads_the_recorded_choice_beside_answers_of_other_types(name: str) -> None:
    recorded = RECORDED[name]
    content = RECORDINGS.read_bytes(f"{FOLDER}/{name}")
    ours = content.replace(f'"{recorded.answer}":'.encode(), b'"ferramenta_do_passo":')

    verdict = await answered(ours, "200 OK", recorded.options)

    assert verdict.outcome == recorded.choice
    assert verdict.spend == RouterSpend(
        Decimal(recorded.charged_usd),
        recorded.tokens,
        is_estimated=False,
        generation_id=recorded.generation_id,
        resolved_model=DATED,
    )


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recording_of_other_questions_is_no_answer_and_costs_all_the_same(name: str) -> None:
    verdict = await answered(RECORDINGS.read_bytes(f"{FOLDER}/{name}"), "200 OK", ["ler", "rodar"])

    assert isinstance(verdict.outcome, Fallback)
    assert verdict.outcome.reason is FallbackReason.INVALID_ANSWER
    assert verdict.spend is not None
    assert verdict.spend.charged_usd == Decimal(RECORDED[name].charged_usd)


@pytest.mark.parametrize("name", REFUSED)
async def test_a_recorded_refusal_says_its_status_and_nothing_of_its_text(name: str) -> None:
    verdict = await answered(RECORDINGS.read_bytes(f"{FOLDER}/{name}"), "400 Bad Request", ["ler", "rodar"])

    assert (verdict.outcome, verdict.spend) == (Fallback(FallbackReason.HTTP_ERROR, "HTTP 400"), None)


async def test_an_answer_without_an_id_has_the_one_of_the_recorded_headers() -> None:
    lines = RECORDINGS.read_bytes(f"{FOLDER}/decisions_200.headers.txt").decode().splitlines()[1:]
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    del headers["content-type"]
    body = b'{"answers": {}, "usage": {"input_tokens": 1, "cost": 0.1}}'

    verdict = await answered(body, "200 OK", ["ler", "rodar"], **headers)

    assert verdict.spend is not None
    assert verdict.spend.generation_id == "gen-dec-1789780694-bhd2XYNdKkyeUNhYc3yU"


def test_what_is_sent_has_the_shape_of_the_recorded_request() -> None:
    recorded = json.loads(RECORDINGS.read_bytes(f"{FOLDER}/decisions_200_three_types.request.json"))
    request = request_for(a_step())
    assert not isinstance(request, Fallback)
    sent: dict[str, Any] = json.loads(request.body)

    assert recorded["model"] == sent["model"] == MODEL
    assert set(sent) == set(recorded)
    (question,) = sent["questions"].values()
    theirs = recorded["questions"]["read_class"]
    assert question["type"] == theirs["type"] == "choice"
    assert {key: type(value) for key, value in question.items()} == {
        key: type(theirs[key]) for key in ("type", "instructions", "criteria")
    }


def test_no_recording_is_left_out() -> None:
    named = {Path(path).name for path in RECORDINGS.named("decisions_*")}

    assert named == {*RECORDED, *REFUSED, *OTHERS}
