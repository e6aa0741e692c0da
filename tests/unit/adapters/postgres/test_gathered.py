"""Reads that are asked for together become one, and answer each by itself."""

import asyncio
from collections.abc import Sequence

import psycopg
import pytest

from adapters.postgres.gathered import GatheredReads


class Database:
    """Doubles numbers, when it is let; a negative one fails the read it is in."""

    def __init__(self) -> None:
        self.reads: list[list[int]] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_away = False
        self.fault: Exception | None = None

    async def read(self, numbers: Sequence[int], _deadline_s: float) -> Sequence[int]:
        self.reads.append(list(numbers))
        await self.may_answer.wait()
        if self.fault is not None:
            raise self.fault
        if self.is_away:
            raise psycopg.OperationalError("the server went away")
        if min(numbers) < 0:
            raise psycopg.DataError("no such number")
        return [2 * number for number in numbers]


def deadline_s(patience_s: float = 5) -> float:
    return asyncio.get_running_loop().time() + patience_s


def ask(reads: GatheredReads[int, int], number: int, patience_s: float = 5) -> asyncio.Task[int]:
    return asyncio.create_task(reads.ask(number, deadline_s=deadline_s(patience_s)))


async def test_who_asks_alone_is_read_for_at_once() -> None:
    database = Database()
    reads = GatheredReads(database.read, at_once=1)

    assert [await reads.ask(number, deadline_s=deadline_s()) for number in (1, 2)] == [2, 4]
    assert database.reads == [[1], [2]]


async def test_who_asks_meanwhile_is_read_for_together() -> None:
    database = Database()
    database.may_answer.clear()
    reads = GatheredReads(database.read, at_once=2)
    asked = [ask(reads, number) for number in range(10)]
    await asyncio.sleep(0.01)
    later = [ask(reads, number) for number in range(10, 300)]
    await asyncio.sleep(0.01)
    database.may_answer.set()

    assert await asyncio.gather(*asked, *later) == [2 * number for number in range(300)]
    assert len(database.reads) <= 6
    assert max(map(len, database.reads)) == 100


async def test_one_that_fails_takes_no_other_with_it() -> None:
    database = Database()
    database.may_answer.clear()
    reads = GatheredReads(database.read, at_once=1)
    asked = [ask(reads, number) for number in (1, 2, -3, 4)]
    await asyncio.sleep(0.01)
    database.may_answer.set()

    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [answers[at] for at in (0, 1, 3)] == [2, 4, 8]
    assert isinstance(answers[2], psycopg.DataError)


async def test_a_server_that_went_away_fails_them_together_and_is_not_asked_for_each() -> None:
    database = Database()
    database.may_answer.clear()
    database.is_away = True
    reads = GatheredReads(database.read, at_once=1)
    asked = [ask(reads, number) for number in range(5)]
    await asyncio.sleep(0.01)
    database.may_answer.set()

    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(answer, psycopg.OperationalError) for answer in answers)
    assert len(database.reads) <= 2


async def test_who_waits_too_long_behind_others_is_told_so_and_who_left_is_not_read_for() -> None:
    database = Database()
    database.may_answer.clear()
    reads = GatheredReads(database.read, at_once=1)
    first = ask(reads, 1)
    await asyncio.sleep(0.01)
    impatient, left, patient = ask(reads, 2, 0.05), ask(reads, 3), ask(reads, 4)
    await asyncio.sleep(0.01)
    left.cancel()
    with pytest.raises(psycopg.OperationalError, match="in time"):
        await impatient
    database.may_answer.set()

    assert (await first, await patient) == (2, 8)
    assert database.reads == [[1], [4]]


async def test_nobody_is_forgotten_whenever_he_asks() -> None:
    database = Database()
    reads = GatheredReads(database.read, at_once=1)

    async def keep_asking(start: int) -> None:
        for number in range(start, start + 200):
            assert await reads.ask(number, deadline_s=deadline_s(2)) == 2 * number
            for _ in range(number % 4):
                await asyncio.sleep(0)

    await asyncio.gather(*(keep_asking(1_000 * at) for at in range(1, 6)))


async def test_any_other_fault_is_theirs_at_once_and_nobodys_later() -> None:
    database = Database()
    database.fault = OSError("no file left")
    reads = GatheredReads(database.read, at_once=1)

    answers = await asyncio.wait_for(
        asyncio.gather(ask(reads, 1), ask(reads, 2), return_exceptions=True), timeout=1
    )
    database.fault = None

    assert [type(answer) for answer in answers] == [OSError, OSError]
    assert await reads.ask(3, deadline_s=deadline_s()) == 6
