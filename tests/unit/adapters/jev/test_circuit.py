"""When the endpoint is not asked, transition by transition."""

from collections.abc import Callable

import pytest

from adapters.in_memory.clock import ManualClock
from adapters.jev import circuit
from adapters.jev.circuit import FAILURES_TO_OPEN, REST_S, Circuits
from domain.routing import FallbackReason
from domain.secret import Secret

KEY, OTHER = Secret("sk-or-v1-one"), Secret("sk-or-v1-two")
TIMEOUT, NETWORK, HTTP = (
    FallbackReason.TIMEOUT,
    FallbackReason.NETWORK_ERROR,
    FallbackReason.HTTP_ERROR,
)


class World:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.told: list[int] = []
        self.circuits = Circuits(self.clock.monotonic, on_open=self.told.append)

    def fail(self, times: int, key: Secret = KEY, reason: FallbackReason = TIMEOUT) -> None:
        """Calls one after the other, each granted and failed."""
        for _ in range(times):
            assert self.circuits.refusal(key) is None
            self.circuits.failed(key, reason)

    def is_granted(self, key: Secret = KEY) -> bool:
        return self.circuits.refusal(key) is None

    @property
    def open(self) -> int:
        return self.told[-1] if self.told else 0


@pytest.fixture
def world() -> World:
    return World()


def test_the_constants_of_the_contract() -> None:
    assert (FAILURES_TO_OPEN, REST_S) == (5, 30.0)


def test_four_failures_leave_it_closed_and_the_fifth_opens_it(world: World) -> None:
    world.fail(4)
    assert world.is_granted()
    assert world.open == 0

    world.circuits.failed(KEY, NETWORK)
    assert world.circuits.refusal(KEY) is NETWORK
    assert world.open == 1


def test_failures_of_different_kinds_make_one_row_and_the_last_is_the_reason(world: World) -> None:
    for reason in (TIMEOUT, HTTP, TIMEOUT, NETWORK, HTTP):
        world.fail(1, reason=reason)

    assert world.circuits.refusal(KEY) is HTTP


def test_an_answer_in_between_starts_the_row_anew(world: World) -> None:
    world.fail(4)
    world.circuits.answered(KEY)
    world.fail(4)

    assert world.is_granted()


def test_time_alone_does_not_start_the_row_anew(world: World) -> None:
    for _ in range(FAILURES_TO_OPEN):
        world.clock.advance(3600)
        world.fail(1)

    assert not world.is_granted()


def test_it_rests_for_thirty_seconds_and_is_then_probed_once(world: World) -> None:
    world.fail(5)
    world.clock.advance(29.99)
    assert not world.is_granted()

    world.clock.advance(0.01)
    assert [world.is_granted() for _ in range(5)] == [True, False, False, False, False]
    assert world.open == 1


def test_a_probe_that_is_answered_closes_it(world: World) -> None:
    world.fail(5)
    world.clock.advance(30)
    assert world.is_granted()
    world.circuits.answered(KEY)

    assert world.open == 0
    world.fail(4)
    assert world.is_granted()


def test_a_probe_that_fails_leaves_it_open_until_the_next_one(world: World) -> None:
    world.fail(5)
    world.clock.advance(30)
    assert world.is_granted()
    world.clock.advance(2)
    world.circuits.failed(KEY, HTTP)

    world.clock.advance(27.75)
    assert world.circuits.refusal(KEY) is HTTP
    world.clock.advance(0.25)
    assert world.is_granted()
    assert world.open == 1


def test_a_probe_that_is_abandoned_blocks_nothing(world: World) -> None:
    world.fail(5)
    for _ in range(3):
        world.clock.advance(30)
        assert world.is_granted()
        assert not world.is_granted()


def test_calls_that_fail_at_once_open_it_once(world: World) -> None:
    assert all(world.is_granted() for _ in range(20))
    for _ in range(20):
        world.circuits.failed(KEY, TIMEOUT)

    assert world.open == 1
    world.clock.advance(30)
    assert world.is_granted()
    assert not world.is_granted()


def test_a_late_failure_of_a_call_sent_before_does_not_make_the_rest_longer(world: World) -> None:
    world.fail(5)
    world.clock.advance(20)
    world.circuits.failed(KEY, NETWORK)
    assert world.circuits.refusal(KEY) is NETWORK

    world.clock.advance(10)
    assert world.is_granted()


def test_a_late_answer_of_a_call_sent_before_closes_it(world: World) -> None:
    world.fail(5)
    world.circuits.answered(KEY)

    assert world.is_granted()
    assert world.open == 0


def test_a_late_failure_after_it_closed_begins_a_row(world: World) -> None:
    world.fail(5)
    world.circuits.answered(KEY)
    world.circuits.failed(KEY, TIMEOUT)
    world.fail(3)
    assert world.is_granted()

    world.fail(1)
    assert not world.is_granted()


def test_each_key_has_its_own(world: World) -> None:
    world.fail(5)
    world.fail(4, OTHER)
    assert world.is_granted(OTHER)
    assert not world.is_granted(KEY)
    assert world.open == 1

    world.fail(1, OTHER)
    assert world.open == 2
    world.circuits.answered(KEY)
    assert world.open == 1


def test_only_so_many_keys_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "_MOST_KEYS", 3)
    keys = [Secret(f"sk-or-v1-{at}") for at in range(4)]
    for key in keys[:3]:
        world.fail(5, key)
    assert world.open == 3
    assert not world.is_granted(keys[0])  # used last

    world.fail(1, keys[3])
    assert world.open == 2
    assert [world.is_granted(key) for key in keys] == [False, True, False, True]


@pytest.mark.parametrize("show", [repr, str, vars], ids=["repr", "str", "vars"])
def test_no_key_is_kept(world: World, show: Callable[[object], object]) -> None:
    world.fail(5)

    assert "sk-or" not in str(show(world.circuits))
