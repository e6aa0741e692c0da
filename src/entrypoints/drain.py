"""Leaving without losing a turn (contract, section 2, "Draining")."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final, Protocol

from domain.failure import FailureCode

LAST_S: Final = 2.0
"""What an ended turn has for its answer and its row."""


class Interruptible(Protocol):
    """A turn under way."""

    def interrupt(self, code: FailureCode) -> None:
        """End it early, with an answer."""
        ...


class _Phase(Enum):
    SERVING = 0
    GRACE = 1
    CLOSED = 2
    ENDING = 3


class Place:
    """A request on its way to become a turn, and then that turn."""

    def __init__(self, *, is_taken: bool) -> None:
        self.is_taken = is_taken
        """Whether it may become a turn. Its first byte decides: one that is still sending its body is not new."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the drain has ended it."""
        self._turn: Interruptible | None = None

    def hold(self, turn: Interruptible) -> None:
        """From now on the drain can end it with an answer."""
        self._turn = turn
        if self.ended.done():
            turn.interrupt(FailureCode.DRAINING)

    def end(self) -> None:
        """End the request, and its turn if there is one yet."""
        if not self.ended.done():
            self.ended.set_result(None)
        if self._turn is not None:
            self._turn.interrupt(FailureCode.DRAINING)


class Drain:
    """Which turns run, and whether new ones are taken."""

    def __init__(self) -> None:
        self._phase = _Phase.SERVING
        self._places: set[Place] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_begun(self) -> bool:
        """From here on `readyz` fails, and every answer asks for its connection to be closed."""
        return self._phase is not _Phase.SERVING

    @contextmanager
    def place(self) -> Iterator[Place]:
        """While inside, the drain waits for this request."""
        place = Place(is_taken=self._phase in (_Phase.SERVING, _Phase.GRACE))
        if self._phase is _Phase.ENDING:
            place.end()
        self._places.add(place)
        self._idle.clear()
        try:
            yield place
        finally:
            self._places.discard(place)
            if not self._places:
                self._idle.set()

    async def run(self, *, grace_s: float, drain_s: float) -> None:
        """Take turns for `grace_s`, let the running ones have `drain_s`, then end them within `LAST_S`."""
        self._phase = _Phase.GRACE
        await asyncio.sleep(grace_s)
        self._phase = _Phase.CLOSED
        await self._wait_idle(drain_s)
        await self.end(LAST_S)

    async def end(self, bound_s: float) -> None:
        """Take no more turns, end those that run, and wait for their answers, `bound_s` at the most."""
        self._phase = _Phase.ENDING
        for place in list(self._places):
            place.end()
        await self._wait_idle(bound_s)

    async def _wait_idle(self, bound_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(bound_s):
                await self._idle.wait()
