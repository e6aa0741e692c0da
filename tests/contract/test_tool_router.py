"""What every ToolRouter promises: the scripted twin, and Jev over real sockets to the simulator."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pytest

from adapters.in_memory.tool_router import ScriptedRouter
from adapters.jev import JevToolRouter, decisions_url
from adapters.system.clock import SystemClock
from adapters.tokenizer import O200kTokenEstimator
from adapters.transport.way_out import WayOut
from application.ports.tool_router import ToolRouter
from domain.routing import Choice, Fallback, FallbackReason, RouterSpend, RunnerUp, Verdict
from domain.secret import Secret
from domain.step import Step
from domain.usage import TokenCounts
from entrypoints.simulator import Simulator
from tests.support.steps import Said, a_step, tools

KEY = Secret("sk-or-v1-0123456789abcdef")
TIMEOUT_S = 1.5
SPEND = RouterSpend(
    Decimal("0.000051912"),
    TokenCounts(1236, 7),
    is_estimated=False,
    generation_id="gen-dec-1",
    resolved_model="typesafe/jev-1.13-20260917",
)


class Harness(Protocol):
    @property
    def router(self) -> ToolRouter: ...
    def will_say(self, verdict: Verdict, *, pause_s: float = 0.0) -> None: ...
    def asked(self) -> Sequence[str]:
        """The agents of the steps that were asked about."""
        ...


class TwinHarness:
    def __init__(self) -> None:
        self.router = ScriptedRouter()

    def will_say(self, verdict: Verdict, *, pause_s: float = 0.0) -> None:
        self.router.will_say(verdict, pause_s=pause_s)

    def asked(self) -> Sequence[str]:
        return [step.agent for step in self.router.asked]


class SimulatedHarness:
    """Has the simulator play the verdict; the generation id is its own."""

    def __init__(self, simulator: Simulator, way_out: WayOut) -> None:
        self._simulator = simulator
        url = decisions_url(simulator.base_url)
        self.router: ToolRouter = JevToolRouter(
            url, way_out, O200kTokenEstimator(), SystemClock(), timeout_s=TIMEOUT_S
        )

    def will_say(self, verdict: Verdict, *, pause_s: float = 0.0) -> None:
        outcome, spend = verdict.outcome, verdict.spend
        script: dict[str, Any] = {"path": "decisions"}
        reply: dict[str, Any] = {"first_token_ms": pause_s * 1000}
        if isinstance(outcome, Choice):
            reply |= {"answers": {"ferramenta_do_passo": _answer(outcome)}}
        elif outcome.reason is FallbackReason.CHOICE_NOT_OFFERED:
            reply |= {"answers": {"ferramenta_do_passo": {"type": "choice", "choice": "outra"}}}
        else:
            script["fault"] = {
                FallbackReason.HTTP_ERROR: "overloaded",
                FallbackReason.TIMEOUT: "silence-headers",
                FallbackReason.NETWORK_ERROR: "reset-headers",
                FallbackReason.INVALID_ANSWER: "html-200",
            }[outcome.reason]
        if spend is None:
            reply["usage"] = {"cost": None}
        else:
            reply["cost"] = str(spend.charged_usd)
            reply["usage"] = {
                "input_tokens": spend.tokens.input,
                "output_tokens": spend.tokens.output,
            }
        self._simulator.script({**script, "reply": reply})

    def asked(self) -> Sequence[str]:
        return [request["body"]["state"]["agente"] for request in self._simulator.requests()]


def _answer(choice: Choice) -> dict[str, Any]:
    answer: dict[str, Any] = {"type": "choice", "choice": choice.option}
    if choice.confidence is not None:
        answer["confidence"] = choice.confidence
    if choice.runner_up is not None:
        answer["probabilities"] = {choice.runner_up.option: choice.runner_up.probability, choice.option: 0.9}
    return answer


@pytest.fixture(params=["in_memory", "jev"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "in_memory":
        yield TwinHarness()
        return
    async with Simulator.start() as simulator, WayOut() as way_out:
        yield SimulatedHarness(simulator, way_out)


async def ask(harness: Harness, step: Step | None = None) -> Verdict:
    question = await harness.router.prepare(step or a_step(), KEY)
    assert not isinstance(question, Fallback)
    return await question.ask()


async def test_it_names_its_model(harness: Harness) -> None:
    assert harness.router.model


@pytest.mark.parametrize(
    "choice",
    [
        Choice("editar", 0.87, RunnerUp("rodar", 0.1)),
        Choice("responder_sem_ferramenta", 1.0, RunnerUp("ler", 0.0)),
        Choice("ler"),
        Choice("ler", 0.01),
    ],
    ids=lambda choice: repr(choice)[:45],
)
async def test_a_choice_comes_as_it_was_made_with_its_spend(harness: Harness, choice: Choice) -> None:
    harness.will_say(Verdict(choice, 3, SPEND))

    verdict = await ask(harness)

    assert verdict.outcome == choice
    assert verdict.latency_ms > 0
    assert verdict.spend is not None
    assert (verdict.spend.charged_usd, verdict.spend.tokens) == (SPEND.charged_usd, SPEND.tokens)
    assert not verdict.spend.is_estimated
    assert verdict.spend.resolved_model == SPEND.resolved_model
    assert verdict.spend.generation_id


async def test_an_answer_without_a_cost_has_no_spend(harness: Harness) -> None:
    harness.will_say(Verdict(Choice("ler"), 3))

    verdict = await ask(harness)

    assert (verdict.outcome, verdict.spend) == (Choice("ler"), None)


async def test_a_choice_that_was_not_offered_costs_all_the_same(harness: Harness) -> None:
    harness.will_say(Verdict(Fallback(FallbackReason.CHOICE_NOT_OFFERED), 3, SPEND))

    verdict = await ask(harness)

    assert isinstance(verdict.outcome, Fallback)
    assert verdict.outcome.reason is FallbackReason.CHOICE_NOT_OFFERED
    assert verdict.spend is not None
    assert verdict.spend.charged_usd == SPEND.charged_usd


@pytest.mark.parametrize(
    "reason",
    [
        FallbackReason.HTTP_ERROR,
        FallbackReason.TIMEOUT,
        FallbackReason.NETWORK_ERROR,
        FallbackReason.INVALID_ANSWER,
    ],
)
async def test_what_goes_wrong_is_a_fallback_and_no_error(harness: Harness, reason: FallbackReason) -> None:
    harness.will_say(Verdict(Fallback(reason), 3))

    verdict = await ask(harness)

    assert isinstance(verdict.outcome, Fallback)
    assert verdict.outcome.reason is reason
    assert verdict.latency_ms > 0
    assert verdict.spend is None


async def test_preparing_sends_nothing_and_asking_sends_once(harness: Harness) -> None:
    question = await harness.router.prepare(a_step(agent="dev-one"), KEY)
    assert not isinstance(question, Fallback)
    await asyncio.sleep(0.02)
    assert list(harness.asked()) == []

    await question.ask()
    assert list(harness.asked()) == ["dev-one"]


async def test_a_tool_of_the_reserved_name_is_not_asked_about(harness: Harness) -> None:
    prepared = await harness.router.prepare(a_step(tools("ler", "responder_sem_ferramenta")), KEY)

    assert isinstance(prepared, Fallback)
    assert prepared.reason is FallbackReason.NAME_COLLISION
    assert list(harness.asked()) == []


async def test_leaving_ends_the_wait(harness: Harness) -> None:
    harness.will_say(Verdict(Choice("ler"), 3), pause_s=30)
    question = await harness.router.prepare(a_step(), KEY)
    assert not isinstance(question, Fallback)
    asking = asyncio.create_task(question.ask())
    await asyncio.sleep(0.05)

    asking.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait([asking])
    assert asking.cancelled()


async def test_many_are_asked_at_once_and_none_waits_for_another(harness: Harness) -> None:
    steps = [a_step(agent=f"dev-{at}") for at in range(20)]
    for _ in steps:
        harness.will_say(Verdict(Choice("ler"), 3), pause_s=0.2)

    async with asyncio.timeout(3.5):
        verdicts = await asyncio.gather(*(ask(harness, step) for step in steps))

    assert [verdict.outcome for verdict in verdicts] == [Choice("ler")] * 20
    assert sorted(harness.asked()) == sorted(step.agent for step in steps)


async def test_contents_and_keys_are_not_in_a_repr(harness: Harness) -> None:
    question = await harness.router.prepare(
        a_step(messages=[Said("user", "o meu segredo"), Said("tool", "segredo")]), KEY
    )

    assert "segredo" not in repr(question)
    assert "0123456789abcdef" not in repr(question)
