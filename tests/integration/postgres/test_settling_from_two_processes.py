"""One budget, two processes, a pipeline in each: nothing lost, nothing announced twice."""

import asyncio
import sys
from itertools import pairwise
from pathlib import Path

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from domain.binding import BindingScope
from domain.budget import THRESHOLDS_PERCENT, BudgetScope
from domain.provider import Provider
from tests.support.ledger_worlds import PostgresWorld, postgres_world
from tests.support.take_turns import COMMITTED_TOGETHER_MAX

ROOT = Path(__file__).parents[3]
TURNS = 100
COST_MICROS = 10
LIMIT_MICROS = 2 * TURNS * COST_MICROS


async def take_turns_in_two_processes(world: PostgresWorld) -> list[int]:
    """How many turns each of them answered."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.take_turns",
            world.database_url,
            str(world.project_id),
            str(world.session_id),
            str(TURNS),
            str(COST_MICROS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    try:
        async with asyncio.timeout(60):
            for process in processes:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"admitted\n"
            ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return [int(stdout) for stdout, _ in ended]


async def test_the_sum_is_exact_and_each_threshold_comes_once(database_url: str) -> None:
    # No commit reaches from one threshold to the next.
    steps = pairwise(THRESHOLDS_PERCENT)
    nearest_micros = min(LIMIT_MICROS * (later - sooner) // 100 for sooner, later in steps)
    assert nearest_micros > COMMITTED_TOGETHER_MAX * COST_MICROS

    async with postgres_world(database_url) as world:
        world.bind(
            world.bound(BindingScope.PROJECT, provider=Provider.OLLAMA, name="llama"), str(world.project_id)
        )
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, LIMIT_MICROS))
        world.add_budget(BudgetEntry(BudgetScope.SESSION, world.session_id, 10 * LIMIT_MICROS))
        world.add_area("dev", AreaEntry())

        assert await take_turns_in_two_processes(world) == [TURNS, TURNS]

        assert len(world.rows()) == 2 * TURNS
        project = world.budget(BudgetScope.PROJECT, world.project_id)
        assert project.spent_micros == LIMIT_MICROS
        assert project.last_threshold_notified == 100
        assert world.budget(BudgetScope.SESSION, world.session_id).spent_micros == LIMIT_MICROS
        assert world.area_spent_micros("dev") == LIMIT_MICROS
        announced = [each["payload"] for each in world.announcements()]
        assert [(each["threshold"], each["spentMicros"]) for each in announced] == [
            (percent, LIMIT_MICROS * percent // 100) for percent in THRESHOLDS_PERCENT
        ]
        (commits,) = world.execute("SELECT count(DISTINCT xmin::text) AS commits FROM outbox_events")
        assert commits["commits"] == len(THRESHOLDS_PERCENT)
