"""Every fault of the simulator that a decision can have: a named reason, and the books hold."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import httpx
import pytest
import structlog

from adapters.jev import JevToolRouter, decisions_url
from adapters.system.clock import SystemClock
from adapters.tokenizer import O200kTokenEstimator
from adapters.transport.way_out import WayOut
from domain.routing import Choice, Fallback, Verdict
from domain.secret import Secret
from entrypoints.simulator import Simulator
from tests.support import decision_faults
from tests.support.decision_faults import (
    BILLED_ANOTHER_WAY,
    INVALID,
    NETWORK,
    NO_COUNTS_CAME,
    REASONS,
    SLOWER,
    TIMEOUT,
    is_costly,
)
from tests.support.steps import Said, a_step

TIMEOUT_S: Final = 0.8
DETAILS: Final = {**decision_faults.DETAILS, "document-silence": "sem a resposta inteira em 800 ms"}


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


async def test_every_fault_has_its_reason_and_the_books_hold(logs: list[Any]) -> None:
    outcomes: list[str] = []
    unseen: list[None] = []
    estimator = O200kTokenEstimator()
    estimator.load()  # nothing else runs meanwhile
    async with Simulator.start() as simulator, WayOut() as way_out:
        async with httpx.AsyncClient(trust_env=False) as client:
            listed = (await client.get(f"{simulator.control_url}/_faults")).json()["faults"]
        faults = [fault["name"] for fault in listed if "decisions" in fault["applies_to"]]
        router = JevToolRouter(
            decisions_url(simulator.base_url),
            way_out,
            estimator,
            SystemClock(),
            timeout_s=TIMEOUT_S,
            on_decision=outcomes.append,
            on_unseen_charge=lambda: unseen.append(None),
        )
        at_once = asyncio.Semaphore(8)

        async def asked(fault: str) -> Verdict:
            simulator.script({"fault": SLOWER.get(fault, fault), "mark": f"[mark:{fault}]"})
            step = a_step(messages=[Said("user", f"Leia a.ts [mark:{fault}]")])
            async with at_once:
                # A key of its own: five failures in a row would open the circuit of one that is shared.
                question = await router.prepare(step, Secret(f"sk-or-v1-{fault}"))
                assert not isinstance(question, Fallback)
                return await question.ask()

        verdicts = dict(zip(faults, await asyncio.gather(*map(asked, faults)), strict=True))
        entries = {entry["mark"]: entry for entry in simulator.bill()["entries"]}
        paths = [request["path"] for request in simulator.requests()]

    assert set(faults) == set(REASONS)
    problems = [
        f"{fault}: {problem}"
        for fault, verdict in verdicts.items()
        for problem in check(fault, verdict, entries.get(fault))
    ]
    assert problems == []
    assert set(paths) == {"/api/alpha/decisions"}  # the redirect was not followed
    assert len(paths) == len(
        [fault for fault in faults if not fault.endswith("-accept")]
    )  # and nothing repeated
    assert sorted(outcomes) == sorted(reason.value if reason else "ok" for reason in REASONS.values())
    assert len(unseen) == len(
        [
            fault
            for fault, reason in REASONS.items()
            if reason in (TIMEOUT, NETWORK) or (reason is INVALID and not is_costly(fault))
        ]
    )
    said = str([verdict.outcome for verdict in verdicts.values()]) + str(logs)
    assert not [
        secret for secret in ("sk-or", "127.0.0.1", "http://", "openrouter.ai", "Provider") if secret in said
    ]


def check(fault: str, verdict: Verdict, entry: dict[str, Any] | None) -> list[str]:
    problems = []
    outcome, spend = verdict.outcome, verdict.spend
    reason = REASONS.get(fault)
    if isinstance(outcome, Choice):
        if reason is not None:
            problems.append(f"{outcome} and not {reason}")
    elif outcome.reason is not reason:
        problems.append(f"{outcome} and not {reason}")
    elif (
        not outcome.detail
        or len(outcome.detail) > 200
        or outcome.detail != DETAILS.get(fault, outcome.detail)
    ):
        problems.append(f"detail {outcome.detail!r}")
    if not 0 < verdict.latency_ms < TIMEOUT_S * 1000 + 1_000:
        problems.append(f"latency {verdict.latency_ms}")
    if (spend is not None) != is_costly(fault):
        problems.append(f"spend {spend}")
    if spend is None:
        return problems
    assert entry is not None
    if spend.charged_usd != Decimal(entry["cost"]) and fault not in BILLED_ANOTHER_WAY:
        problems.append(f"the bill says {entry['cost']}, the spend {spend.charged_usd}")
    if spend.is_estimated != (fault in NO_COUNTS_CAME):
        problems.append(f"estimated {spend.is_estimated}")
    if spend.is_estimated:
        if not 50 < spend.tokens.input < 1_000:
            problems.append(f"counted {spend.tokens}")
    elif (spend.tokens.input, spend.tokens.output) != (entry["prompt_tokens"], entry["completion_tokens"]):
        problems.append(f"the bill counts {entry['prompt_tokens']}, the spend {spend.tokens}")
    return problems
