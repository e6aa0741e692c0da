"""The seed fixes the schedule, and each fault is in it."""

import pytest

from chaos.schedule import Break, Engine, Upstream, make_schedule


def test_a_seed_is_a_schedule() -> None:
    assert make_schedule(7, 100) == make_schedule(7, 100)
    assert make_schedule(7, 100) != make_schedule(8, 100)


@pytest.mark.parametrize(("turns", "least"), [(60, 1), (300, 1), (5_000, 20)])
def test_each_fault_is_in_it_often_enough(turns: int, least: int) -> None:
    schedule = make_schedule(1, turns)

    counts = schedule.counts()
    faults = [kind for kind in (*Break, *Engine, *Upstream) if kind not in (Engine.STAYS, Upstream.WELL)]
    assert all(counts[kind.value] >= least for kind in faults), counts
    assert len(schedule.turns) == turns
    assert len({turn.agent for turn in schedule.turns}) == turns


def test_a_fault_is_given_to_a_turn_that_it_can_hit() -> None:
    for turn in make_schedule(3, 500).turns:
        if turn.engine is Engine.LEAVES_MID_STREAM:
            assert turn.streamed
        if turn.engine is Engine.LEAVES_MID_DECISION or turn.upstream is Upstream.DECIDES_LATE:
            assert turn.routed
