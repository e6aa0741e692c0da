"""The machine's clocks, and what makes ids of version 7 sort."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
import uvloop

from adapters.in_memory.clock import CountedIds, ManualClock
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids, uuid7


def unix_ms(id_: UUID) -> int:
    return id_.int >> 80


def test_the_clock_tells_the_machine_s_time() -> None:
    assert abs(SystemClock().now() - datetime.fromtimestamp(time.time(), UTC)) < timedelta(seconds=1)


@pytest.mark.parametrize(
    "new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_monotonic_is_the_clock_of_the_event_loop(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    loop = new_loop()
    try:
        assert SystemClock().monotonic() == pytest.approx(loop.time(), abs=1.0)
    finally:
        loop.close()


def test_the_layout_is_that_of_the_standard_s_example() -> None:
    """RFC 9562, A.6."""
    random = 0xCC3 << 62 | 0x18C4DC0C0C07398F

    assert uuid7(0x017F22E279B0, random) == UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")


def test_an_id_holds_the_millisecond_it_was_made_in() -> None:
    before_ms = time.time_ns() // 1_000_000
    made = UuidV7Ids().new()

    assert before_ms <= unix_ms(made) <= time.time_ns() // 1_000_000


def test_ids_stay_in_order_when_the_wall_clock_is_set_back() -> None:
    times_ms: Iterator[int] = iter([1000, 1000, 400, 401, 1000, 1001])
    ids = UuidV7Ids(time_ns=lambda: next(times_ms) * 1_000_000)
    made = [ids.new() for _ in range(6)]

    assert made == sorted(set(made))
    assert [unix_ms(id_) for id_ in made] == [1000] * 5 + [1001]


def test_a_full_millisecond_goes_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.urandom", lambda size: b"\xff" * size)
    ids = UuidV7Ids(time_ns=lambda: 5_000_000)
    ids.new()
    ids._random = (1 << 74) - 2
    made = [ids.new(), ids.new()]

    assert unix_ms(made[0]) == 6
    assert made[0] < made[1]
    assert all(id_.version == 7 for id_ in made)


def test_an_id_cannot_be_guessed_from_the_one_before() -> None:
    ids = UuidV7Ids(time_ns=lambda: 5_000_000)
    made = [ids.new().int & (1 << 62) - 1 for _ in range(200)]

    assert len({later - earlier for earlier, later in pairwise(made)}) == 199


def test_the_manual_clock_moves_when_it_is_told() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC), monotonic_s=7.0)
    clock.advance(1.5)
    assert clock.now() == datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)
    assert clock.monotonic() == 8.5

    clock.advance(-3600)
    assert clock.now() < datetime(2026, 1, 1, tzinfo=UTC)
    assert clock.monotonic() == 8.5


def test_counted_ids_are_told_apart_by_eye_and_hold_the_clock_s_time() -> None:
    clock = ManualClock(datetime.fromtimestamp(1, UTC))
    ids = CountedIds(clock, process=3)

    assert str(ids.new()) == "00000000-03e8-7000-8000-000000010003"
    clock.advance(-1)
    assert str(ids.new()) == "00000000-03e8-7000-8000-000000020003"
