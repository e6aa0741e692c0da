"""A process that takes turns at once: `python -m tests.support.take_turns URL PROJECT SESSION TURNS COST_MICROS`.

It says `admitted` when all of them are, waits for a line, lets them run, and says how many were answered.
"""

import asyncio
import logging
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Final
from unittest.mock import patch
from uuid import UUID, uuid4

from adapters.in_memory.credential_vault import InMemoryVault
from adapters.in_memory.holds import InMemoryHolds
from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import InMemoryLedger
from adapters.in_memory.llm_provider import ScriptedProvider
from adapters.in_memory.router_switches import InMemoryRouterSwitches
from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.in_memory.tool_router import ScriptedRouter
from adapters.in_memory.turn_starts import InMemoryTurnStarts
from adapters.metrics.telemetry import PrometheusTelemetry
from adapters.postgres import usage_recorder
from adapters.postgres.pool import read_pool, write_pool
from adapters.postgres.turn_contexts import PostgresTurnContexts
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from application.decide_step_menu import DecideStepMenu
from application.record_usage import RecordUsage
from application.strict_budgets import StrictBudgets
from application.turn import Turn, TurnFinished, TurnPipeline, TurnRequest
from domain.provider import Provider
from domain.step import CalledTool
from domain.usage import ReportedUsage, TokenCounts
from entrypoints.logs import configure_logs

COMMITTED_TOGETHER_MAX: Final = 10
"""Few enough for a test to know that two sums lie in different commits."""
_PATIENCE_S: Final = 30


@dataclass(frozen=True)
class _Said:
    role: str = "user"
    content: str = "duas palavras"
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


async def main(url: str, project: str, session: str, turns: int, cost_micros: int) -> None:
    provider, journal = ScriptedProvider(), InMemoryJournal()
    usage = ReportedUsage(TokenCounts(1, 1), Decimal(cost_micros) / 1_000_000)
    telemetry, clock = PrometheusTelemetry(), SystemClock()
    async with read_pool(url) as reading, write_pool(url) as writing:
        recorder = PostgresUsageRecorder(
            writing,
            journal,
            process_id=uuid4(),
            host="here",
            on_unrecorded=telemetry.usage_unrecorded,
            patience_s=_PATIENCE_S,
        )
        pipeline = TurnPipeline(
            contexts=PostgresTurnContexts(reading, patience_s=_PATIENCE_S),
            provider=provider,
            served=frozenset({Provider.OLLAMA}),
            vault=InMemoryVault(),
            decide_menu=DecideStepMenu(
                router=ScriptedRouter(),
                switches=InMemoryRouterSwitches(),
                recorder=recorder,
                clock=clock,
                on_internal_failure=telemetry.internal_failure,
                on_switch_unreadable=telemetry.router_switch_unreadable,
            ),
            record_usage=RecordUsage(WordTokenEstimator(), recorder),
            recorder=recorder,
            journal=journal,
            starts=InMemoryTurnStarts(),
            strict_budgets=StrictBudgets(output_tokens=8_192, bounded={Provider.OPENROUTER}),
            holds=InMemoryHolds(InMemoryLedger()),
            longest_drain_s=1,
            clock=clock,
            ids=UuidV7Ids(),
            telemetry=telemetry,
        )
        request = TurnRequest(
            session_id=UUID(session),
            project_id=UUID(project),
            agent="dev-api",
            messages=[_Said()],
            tools=(),
            wants_whole_catalogue=False,
            started_s=clock.monotonic(),
            ceiling_s=_PATIENCE_S,
            body_bytes=100,
        )
        for _ in range(turns):
            provider.will_say("um ", "dois", usage=usage)
        admitted = await asyncio.gather(*(pipeline.admit(request) for _ in range(turns)))
        print("admitted", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answers = await asyncio.gather(*map(_answer_of, admitted))
        await recorder.close()
    print(sum(answer.failure is None and answer.text == "um dois" for answer in answers), flush=True)


async def _answer_of(turn: Turn) -> TurnFinished:
    (answer,) = [event async for event in turn.events() if isinstance(event, TurnFinished)]
    return answer


if __name__ == "__main__":
    configure_logs(logging.ERROR)
    url, project, session, *numbers = sys.argv[1:]
    with patch.object(usage_recorder, "_BATCH_MAX", COMMITTED_TOGETHER_MAX):
        asyncio.run(main(url, project, session, *map(int, numbers)))
