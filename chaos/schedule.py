"""What happens when: the seed fixes this, and not the timing."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Engine(StrEnum):
    """What the engine does with its turn."""

    STAYS = "stays"
    LEAVES_MID_STREAM = "leaves mid-stream"
    LEAVES_MID_DECISION = "leaves mid-decision"
    REPEATS = "repeats"


class Upstream(StrEnum):
    """What the provider does with the chat call."""

    WELL = "well"
    CUTS = "cuts the stream"
    RESETS = "resets after the headers"
    SAYS_NO_USAGE = "says no usage"
    STALLS = "stalls"
    REFUSES = "refuses"
    DECIDES_LATE = "decides too late"


class Break(StrEnum):
    """What is broken under the turns."""

    KILL = "the api is killed"
    TERMINATE = "the api is told to end"
    DATABASE = "PostgreSQL is stopped"
    RESET_ENGINES = "connections of engines are reset"
    RESET_PROVIDER = "connections to the provider are reset"
    FULL_DISK = "the journal's disk is full"
    DELETE_SESSION = "a session is deleted"


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """A turn, with an agent id that is its mark on the bill too."""

    agent: str
    after_ms: int
    """Since the turn before it."""
    streamed: bool
    routed: bool
    strict: bool
    engine: Engine
    upstream: Upstream


@dataclass(frozen=True, slots=True)
class Schedule:
    """Turns in their order, and what is broken when so many of them have begun."""

    turns: Sequence[PlannedTurn]
    breaks: Sequence[tuple[int, Break]]

    def counts(self) -> Counter[str]:
        """How often each fault is planned."""
        of_turns = Counter[str](
            kind.value
            for turn in self.turns
            for kind in (turn.engine, turn.upstream)
            if kind not in (Engine.STAYS, Upstream.WELL)
        )
        return of_turns + Counter(kind.value for _, kind in self.breaks)


_FAULTS: Final = tuple(kind for kind in Upstream if kind is not Upstream.WELL)
_LEAVINGS: Final = tuple(kind for kind in Engine if kind is not Engine.STAYS)
_EDGE: Final = 8
"""Turns at the beginning and at the end of which nothing is broken: the bill has to have calls that are in order."""


_MOST_ROUNDS: Final = 25
"""Of everything that is broken under the turns: each costs seconds."""


def make_schedule(seed: int, turns: int) -> Schedule:
    """The schedule of a seed. Each fault is in it once in fifteen turns or so, and once at the least."""
    dice = random.Random(seed)
    each = max(1, turns // 15)
    engines: list[Engine] = [kind for kind in _LEAVINGS for _ in range(each)]
    upstreams: list[Upstream] = [kind for kind in _FAULTS for _ in range(each)]
    engines = dice.sample(engines + [Engine.STAYS] * max(0, turns - len(engines)), turns)
    upstreams = dice.sample(upstreams + [Upstream.WELL] * max(0, turns - len(upstreams)), turns)
    planned = []
    for at, (engine, upstream) in enumerate(zip(engines, upstreams, strict=True)):
        is_routed = (
            engine is Engine.LEAVES_MID_DECISION or upstream is Upstream.DECIDES_LATE or dice.random() < 0.4
        )
        planned.append(
            PlannedTurn(
                agent=f"dev-c{seed}x{at:06}",
                after_ms=dice.randint(5, 60),
                streamed=engine is Engine.LEAVES_MID_STREAM or dice.random() < 0.6,
                routed=is_routed,
                strict=dice.random() < 0.25,
                engine=engine,
                upstream=upstream,
            )
        )
    rounds = max(1, min(turns // 150, _MOST_ROUNDS))
    breaks = [kind for kind in Break for _ in range(rounds)]
    dice.shuffle(breaks)
    room = max(1, turns - 2 * _EDGE)
    places = sorted(_EDGE + dice.randrange(room) for _ in breaks)
    return Schedule(planned, list(zip(places, breaks, strict=True)))
