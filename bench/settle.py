"""Measures settling on one budget: ours, which writes together, against a transaction of three statements a turn.

200 turns end at once, again and again; both with `synchronous_commit` on, on an embedded PostgreSQL that is durable.
The transaction gets the pool size that is best for it.
"""

import asyncio
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

# Of a script only its own folder is on the path; the other modules are found from the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adapters.embedded_postgres import EmbeddedPostgres
from adapters.journal.file_journal import FileJournal
from adapters.postgres import migrate
from adapters.postgres.pool import write_pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome
from tests.support.brabo_data import World, create_world
from tests.support.ledger_worlds import start_of, usage_of_session

TURNS: Final = 200
ROUNDS: Final = 7
POOL_SIZES: Final = (1, 2, 4, 8, 16)
LEAST_RATIO: Final = 8.0


def main() -> int:
    """Print both; 1 when ours is not at least eight times as fast."""
    with (
        tempfile.TemporaryDirectory(prefix="brabo-bench-") as folder,
        EmbeddedPostgres(durable=True).join(Path(folder)) as server,
    ):
        url = server.ensure_database("settle")
        migrate.upgrade(url)
        world = create_world(url, project_limit_micros=10**12)
        with psycopg.connect(url) as connection:
            commit = connection.execute("SHOW synchronous_commit").fetchone()
        print(
            f"{TURNS} turns that end at once, on one budget; synchronous_commit {commit[0] if commit else '?'}"
        )
        plain = {}
        for size in POOL_SIZES:
            plain[size] = asyncio.run(measure_transactions(url, world, size))
            print(f"a transaction of three statements a turn, pool of {size:>2}: {plain[size]:>8.0f} turns/s")
        ours = asyncio.run(measure_ours(url, world, Path(folder) / "journal"))
        print(f"written together, with journal, start and end:  {ours:>8.0f} turns/s")
    ratio = ours / max(plain.values())
    print(f"{ratio:.1f} times the best of them")
    return 0 if ratio >= LEAST_RATIO else 1


async def measure_ours(url: str, world: World, journal_folder: Path) -> float:
    """Turns a second, the median of the rounds."""
    journal = FileJournal(journal_folder, uuid4())
    journal.open()
    rates = []
    async with write_pool(url) as pool:
        recorder = PostgresUsageRecorder(pool, journal, process_id=uuid4(), host="bench")
        for _ in range(ROUNDS):
            settlements = [_settlement(world) for _ in range(TURNS)]
            started_s = time.perf_counter()
            assert all(await asyncio.gather(*map(recorder.record, settlements)))
            rates.append(TURNS / (time.perf_counter() - started_s))
        await recorder.close()
    journal.close()
    return median(rates)


async def measure_transactions(url: str, world: World, size: int) -> float:
    """The same without us: insert the row, move the budget, note the event."""
    rates = []
    pool: AsyncConnectionPool[psycopg.AsyncConnection] = AsyncConnectionPool(
        url, min_size=size, max_size=size, open=False
    )
    async with pool:
        await pool.wait()
        for _ in range(ROUNDS):
            ids = [uuid4() for _ in range(TURNS)]
            started_s = time.perf_counter()
            await asyncio.gather(*(_transaction(pool, world, usage_id) for usage_id in ids))
            rates.append(TURNS / (time.perf_counter() - started_s))
    return median(rates)


async def _transaction(
    pool: AsyncConnectionPool[psycopg.AsyncConnection], world: World, usage_id: UUID
) -> None:
    async with pool.connection(timeout=60) as connection:
        await connection.execute(
            "INSERT INTO token_usage (id, session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
            " output_tokens, cost_micros, latency_ms) VALUES (%s, %s, 'agent', 'a', 'openrouter', 'm', 1, 1, 10, 5)",
            (usage_id, world.session_id),
        )
        await connection.execute(
            "UPDATE budgets SET spent_micros = spent_micros + 10, updated_at = now() WHERE project_id = %s",
            (world.project_id,),
        )
        await connection.execute(
            "SELECT limit_micros, spent_micros, last_threshold_notified FROM budgets WHERE project_id = %s",
            (world.project_id,),
        )


def _settlement(world: World) -> Settlement:
    turn_id, now = uuid4(), datetime.now(UTC)
    start = start_of(
        turn_id=turn_id,
        workspace_id=world.workspace_id,
        project_id=world.project_id,
        session_id=world.session_id,
        started_at=now,
        due_at=now,
    )
    usage = usage_of_session(world.session_id, world.project_id, 10, id=turn_id, created_at=now)
    end = TurnEnd(start=start, outcome=TurnOutcome.ANSWERED, ended_at=now, router=RouterOutcome.FREE)
    return Settlement(turn_id=turn_id, usage=usage, end=end)


if __name__ == "__main__":
    sys.exit(main())
