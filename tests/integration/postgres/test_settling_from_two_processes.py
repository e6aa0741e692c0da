"""One budget, two processes: nothing lost, nothing announced twice."""

import asyncio
import sys
from pathlib import Path

import pytest

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from domain.budget import BudgetScope
from tests.support.ledger_worlds import PostgresWorld, postgres_world

ROOT = Path(__file__).parents[3]
TURNS = 100
COST_MICROS = 10


async def settle_from_two_processes(world: PostgresWorld, at_once: int) -> list[int]:
    """How many turns each of them saw committed."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.settle_turns",
            world.database_url,
            str(world.project_id),
            str(world.session_id),
            *map(str, (TURNS, COST_MICROS, at_once)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        for _ in range(2)
    ]
    async with asyncio.timeout(60):
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        ended = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    return [int(stdout) for stdout, _ in ended]


@pytest.mark.parametrize("at_once", [10, TURNS])
async def test_the_sum_is_exact_and_each_threshold_comes_once(database_url: str, at_once: int) -> None:
    limit_micros = 2 * TURNS * COST_MICROS
    async with postgres_world(database_url) as world:
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, limit_micros))
        world.add_budget(BudgetEntry(BudgetScope.SESSION, world.session_id, 10 * limit_micros))
        world.add_area("dev", AreaEntry())

        assert await settle_from_two_processes(world, at_once) == [TURNS, TURNS]

        assert len(world.rows()) == 2 * TURNS
        project = world.budget(BudgetScope.PROJECT, world.project_id)
        assert project.spent_micros == limit_micros
        assert project.last_threshold_notified == 100
        assert world.budget(BudgetScope.SESSION, world.session_id).spent_micros == limit_micros
        assert world.area_spent_micros("dev") == limit_micros
        announced = [each["payload"] for each in world.announcements()]
        assert [(each["threshold"], each["spentMicros"]) for each in announced] == [
            (percent, limit_micros * percent // 100) for percent in (70, 90, 100)
        ]
        if at_once < TURNS:  # with all of them at once, one commit may take several thresholds
            (commits,) = world.execute("SELECT count(DISTINCT xmin::text) AS commits FROM outbox_events")
            assert commits["commits"] == 3
