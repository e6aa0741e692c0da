"""What every adapter of the ports Clock and Ids does."""

import threading
from collections.abc import Callable
from datetime import UTC, timedelta
from itertools import pairwise

import pytest

from adapters.in_memory.clock import CountedIds, ManualClock
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from application.ports.clock import Clock, Ids

MakeIds = Callable[[int], Ids]


@pytest.fixture(params=[ManualClock, SystemClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


@pytest.fixture(params=["in_memory", "system"])
def make_ids(request: pytest.FixtureRequest) -> MakeIds:
    """Makes the ids of a process, which has a number."""
    return (
        (lambda process: CountedIds(process=process))
        if request.param == "in_memory"
        else lambda _: UuidV7Ids()
    )


def test_the_wall_clock_is_aware_and_in_utc(clock: Clock) -> None:
    assert clock.now().tzinfo is UTC
    assert clock.now().utcoffset() == timedelta(0)


def test_the_monotonic_clock_never_goes_back(clock: Clock) -> None:
    readings = [clock.monotonic() for _ in range(1000)]

    assert readings == sorted(readings)


def test_ids_are_of_version_7(make_ids: MakeIds) -> None:
    for made in (make_ids(0).new() for _ in range(100)):
        assert made.version == 7
        assert made.variant == "specified in RFC 4122"


def test_each_id_is_greater_than_the_one_before(make_ids: MakeIds) -> None:
    ids = make_ids(0)
    made = [ids.new() for _ in range(20_000)]

    assert all(earlier < later for earlier, later in pairwise(made))
    assert sorted(map(str, made)) == [str(id_) for id_ in made]


def test_two_processes_make_no_id_in_common(make_ids: MakeIds) -> None:
    one, other = make_ids(1), make_ids(2)

    assert len({source.new() for _ in range(5000) for source in (one, other)}) == 10_000


def test_threads_make_no_id_in_common(make_ids: MakeIds) -> None:
    ids, made = make_ids(0), list[list[object]]()
    threads = [
        threading.Thread(target=lambda: made.append([ids.new() for _ in range(3000)])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id_ for part in made for id_ in part}) == 12_000
