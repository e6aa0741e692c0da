"""A database that was restored lacks rows; the whole journal, written again, brings exactly those back."""

import asyncio
import random
from pathlib import Path
from uuid import uuid4

from adapters.in_memory.ledger import BudgetEntry
from adapters.journal.file_journal import FileJournal
from adapters.journal.other_journals import FileJournals
from adapters.postgres.audit import PostgresAudit
from adapters.postgres.pool import write_pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from domain.budget import BudgetScope
from tests.contract.test_journal import settlement_of
from tests.support.ledger_worlds import postgres_world, start_of

TURNS, LOST = 1_000, 100


async def test_exactly_what_is_missing_comes_back(database_url: str, tmp_path: Path) -> None:
    async with postgres_world(database_url) as world, write_pool(database_url) as pool:
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**9))
        journal = FileJournal(tmp_path, uuid4())
        journal.open()
        recorder = PostgresUsageRecorder(pool, journal, process_id=uuid4(), host="here")
        starts = [start_of(session_id=world.session_id, project_id=world.project_id) for _ in range(TURNS)]
        for start in starts:
            await journal.begin(start)
        assert all(await asyncio.gather(*(recorder.record(settlement_of(start)) for start in starts)))
        await recorder.close()
        journal.close()
        before = world.rows()
        lost = random.Random(4).sample(sorted(before), LOST)
        world.execute("DELETE FROM token_usage WHERE id = ANY(%s)", lost)
        world.execute(
            "UPDATE budgets SET spent_micros = spent_micros - %s",
            sum(before[row]["cost_micros"] for row in lost),
        )

        # Another process, whose own journal is elsewhere.
        other = FileJournal(tmp_path / "other", uuid4())
        other.open()
        replay = PostgresUsageRecorder(pool, other, process_id=uuid4(), host="here")
        settlements = [one for turn in FileJournals(tmp_path).all_turns() for one in turn.settlements]
        assert len(settlements) == TURNS
        assert all(await asyncio.gather(*map(replay.record, settlements)))
        await replay.close()
        other.close()

        assert world.rows() == before
        assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 36 * TURNS
        assert [one for one in PostgresAudit(database_url).run(since=None) if one.violations] == []
