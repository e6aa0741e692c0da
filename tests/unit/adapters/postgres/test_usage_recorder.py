"""What the recorder does with locks and faults, at a pace and with a database that a test decides on."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from adapters.in_memory.journal import InMemoryJournal
from adapters.postgres import usage_recorder
from adapters.postgres.pool import Pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from domain.usage import TokenUsage
from tests.support.ledger_worlds import in_memory_world, row_of, usage_of

LOCK_PATIENCE_S = 0.5
PATIENCE_S = 4.0


class Database:
    """Takes `write_s` for a write. A locked project holds a write up, for as long as the pool waits for a lock."""

    def __init__(self, write_s: float) -> None:
        self._write_s = write_s
        self.locked: set[str] = set()
        self.written: set[UUID] = set()
        self.fault: Callable[[], BaseException] | None = None

    async def fetch_row(
        self, _pool: Pool, _query: object, parameters: Mapping[str, Any], *, deadline_s: float
    ) -> tuple[str]:
        records = json.loads(parameters["rows"])
        assert records
        started_s = time.monotonic()
        while self.locked & {record["project_id"] for record in records}:
            await asyncio.sleep(0.005)
            if time.monotonic() - started_s > LOCK_PATIENCE_S:
                raise psycopg.errors.LockNotAvailable
        if self.fault is not None:
            raise self.fault()
        await asyncio.sleep(self._write_s)
        self.written.update(UUID(record["id"]) for record in records)
        return ("[]",)


class Rig:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.world = in_memory_world()
        self.unrecorded: list[TokenUsage] = []
        pool: Any = SimpleNamespace(max_size=4)
        self.recorder = PostgresUsageRecorder(
            pool,
            InMemoryJournal(is_full=True),
            process_id=uuid4(),
            host="here",
            on_unrecorded=self.unrecorded.append,
            patience_s=PATIENCE_S,
        )

    def record(self, project: UUID) -> asyncio.Task[bool]:
        return asyncio.create_task(self.recorder.record(row_of(usage_of(self.world, 1, project_id=project))))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    database = Database(write_s=0.02)
    monkeypatch.setattr(usage_recorder, "fetch_row", database.fetch_row)
    return Rig(database)


async def test_a_lock_costs_no_other_project_a_record_under_load(rig: Rig) -> None:
    locked, *others = (uuid4() for _ in range(151))
    rig.database.locked.add(str(locked))
    settling = [rig.record(project) for project in (locked, *others)]  # a burst, and then a steady load

    for at in range(500):
        settling += [rig.record(others[(at * 5 + one) % 150]) for one in range(5)]
        settling.append(rig.record(locked))
        await asyncio.sleep(0.002)
        if at == 250:
            rig.database.locked.clear()
    await asyncio.gather(*settling)

    assert {usage.project_id for usage in rig.unrecorded} <= {locked}
    assert len(rig.database.written) == len(settling)


async def test_several_locks_that_stay_cost_their_own_records_only(rig: Rig) -> None:
    locked, others = [uuid4() for _ in range(5)], [uuid4() for _ in range(60)]
    rig.database.locked.update(map(str, locked))

    settled = await asyncio.gather(*(rig.record(project) for project in (*others, *locked)))

    assert settled == [True] * 60 + [False] * 5
    assert {usage.project_id for usage in rig.unrecorded} == set(locked)
    assert rig.recorder.unkept == 5

    rig.database.locked.clear()
    async with asyncio.timeout(5):
        while rig.recorder.unkept:
            await asyncio.sleep(0.01)
    assert len(rig.database.written) == 65


async def test_a_fault_is_told_of_and_its_records_are_tried_again(rig: Rig) -> None:
    project = uuid4()
    rig.database.locked.add(str(project))
    held_up = rig.record(project)
    await asyncio.sleep(LOCK_PATIENCE_S + 0.1)
    rig.database.locked.clear()
    rig.database.fault = lambda: OSError("no file left")
    assert await rig.record(uuid4()) is False
    assert await held_up is False

    rig.database.fault = None
    assert all(await asyncio.gather(rig.record(project), rig.record(uuid4())))
    async with asyncio.timeout(5):
        while rig.recorder.unkept:
            await asyncio.sleep(0.01)
    assert len(rig.database.written) == 4
