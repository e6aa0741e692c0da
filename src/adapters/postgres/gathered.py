"""Reading for many at once.

Under load reads of one turn each queue for connections, and every hand-over takes several rounds of the event loop.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import psycopg

from adapters.postgres.pool import is_connection_failure

_Key = TypeVar("_Key")
_Row = TypeVar("_Row")

_MOST: Final = 100
"""Keys of one read."""
_SAYING_WHY_S: Final = 0.05
"""What a read that has failed by the deadline may take to say so: it knows the reason, and a clock does not."""


@dataclass(slots=True, eq=False)
class _Asked(Generic[_Key, _Row]):
    key: _Key
    answer: asyncio.Future[_Row]
    deadline_s: float


class GatheredReads(Generic[_Key, _Row]):
    """Whoever asks while `at_once` reads are under way is answered by the next one, together with all the others.

    `read` takes keys and a deadline on the event loop's clock, and gives a row for each key. What it raises goes to
    those who asked; after a psycopg.Error that a key may be the cause of, each is read for alone.
    """

    def __init__(
        self, read: Callable[[Sequence[_Key], float], Awaitable[Sequence[_Row]]], *, at_once: int
    ) -> None:
        self._read = read
        self._at_once = at_once
        self._asked: deque[_Asked[_Key, _Row]] = deque()
        self._readers: set[asyncio.Task[None]] = set()

    async def ask(self, key: _Key, *, deadline_s: float) -> _Row:
        """The row of this key, as it was committed after this call. Raises psycopg.Error, by the deadline."""
        loop = asyncio.get_running_loop()
        asked: _Asked[_Key, _Row] = _Asked(key, loop.create_future(), deadline_s)
        self._asked.append(asked)
        self._start_reader()
        expiry = loop.call_at(deadline_s + _SAYING_WHY_S, _expire, asked.answer)
        try:
            return await asked.answer
        finally:
            expiry.cancel()

    def _start_reader(self) -> None:
        if len(self._readers) < self._at_once:
            reader = asyncio.get_running_loop().create_task(self._run(), context=contextvars.Context())
            self._readers.add(reader)
            reader.add_done_callback(self._reader_ended)

    def _reader_ended(self, reader: asyncio.Task[None]) -> None:
        self._readers.discard(reader)
        if self._asked and not reader.cancelled():
            # Asked after this reader had looked for more, and before it counted as ended.
            self._start_reader()

    async def _run(self) -> None:
        while batch := self._next():
            try:
                await self._answer(batch)
            except Exception as error:  # noqa: BLE001 - theirs who asked: a reader that died would leave them waiting
                if len(batch) == 1 or not isinstance(error, psycopg.Error) or is_connection_failure(error):
                    _fail(batch, error)
                else:
                    # One of them is at fault, and must not take the others with it.
                    for asked in batch:
                        await self._answer_alone(asked)

    async def _answer_alone(self, asked: _Asked[_Key, _Row]) -> None:
        try:
            await self._answer([asked])
        except Exception as error:  # noqa: BLE001 - as above
            _fail([asked], error)

    async def _answer(self, batch: Sequence[_Asked[_Key, _Row]]) -> None:
        deadline_s = max(asked.deadline_s for asked in batch)
        rows = await self._read([asked.key for asked in batch], deadline_s)
        for asked, row in zip(batch, rows, strict=True):
            if not asked.answer.done():
                asked.answer.set_result(row)

    def _next(self) -> list[_Asked[_Key, _Row]]:
        """Those that still wait; none when there are none."""
        batch: list[_Asked[_Key, _Row]] = []
        while self._asked and len(batch) < _MOST:
            asked = self._asked.popleft()
            if not asked.answer.done():
                batch.append(asked)
        return batch


def _fail(batch: Sequence[_Asked[_Key, _Row]], error: Exception) -> None:
    for asked in batch:
        if not asked.answer.done():
            asked.answer.set_exception(error)


def _expire(answer: asyncio.Future[_Row]) -> None:
    if not answer.done():
        answer.set_exception(psycopg.OperationalError("the database did not answer in time"))
