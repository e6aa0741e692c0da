"""The journal's contract, for files and for memory."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.journal import InMemoryJournal
from adapters.journal.file_journal import FileJournal
from adapters.journal.other_journals import FileJournals
from application.ports.journal import Journal, JournaledTurn
from domain.settlement import Settlement, TurnEnd, TurnOutcome, TurnStart
from tests.support.ledger_worlds import start_of, usage_of_session


@dataclass
class Kept:
    journal: Journal
    turns: Callable[[], Sequence[JournaledTurn]]
    """What another process would read."""


@pytest.fixture(params=["files", "files, fsync", "memory"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kept]:
    if request.param == "memory":
        memory = InMemoryJournal()
        yield Kept(memory, memory.turns)
        return
    files = FileJournal(tmp_path, uuid4(), fsync_always="fsync" in request.param)
    files.open()
    yield Kept(files, lambda: list(FileJournals(tmp_path).all_turns()))
    files.close()


def settlement_of(start: TurnStart, *, usage_id: UUID | None = None, ends: bool = True) -> Settlement:
    usage = usage_of_session(
        start.session_id, start.project_id, 36, id=usage_id or start.turn_id, turn_id=start.turn_id
    )
    end = TurnEnd(start=start, outcome=TurnOutcome.ANSWERED, ended_at=start.due_at) if ends else None
    return Settlement(turn_id=start.turn_id, usage=usage, end=end)


async def test_a_turn_is_read_as_it_was_entered(kept: Kept) -> None:
    start = start_of(agent="dev-ção", traceparent="00-1-2-01")
    router = settlement_of(start, usage_id=start.router_usage_id, ends=False)
    chat = settlement_of(start)

    await kept.journal.begin(start)
    (begun,) = kept.turns()
    assert (begun.start, begun.was_asked, begun.was_sent, begun.has_ended) == (start, False, False, False)
    await kept.journal.asking(start.turn_id)
    assert await kept.journal.keep(router) is True
    await kept.journal.sending(start.turn_id)
    kept.journal.generation(start.turn_id, "gen-1")
    assert await kept.journal.keep(chat) is True

    (turn,) = kept.turns()
    assert (turn.was_asked, turn.was_sent, turn.generation_id) == (True, True, "gen-1")
    assert list(turn.settlements) == [router, chat]
    assert turn.has_ended
    assert turn.flushed == frozenset()
    kept.journal.flushed([router, chat])
    (turn,) = kept.turns()
    assert turn.flushed == {start.router_usage_id, start.turn_id}


async def test_turns_come_in_the_order_in_which_they_began(kept: Kept) -> None:
    starts = [start_of() for _ in range(20)]
    for start in starts:
        await kept.journal.begin(start)
    for start in reversed(starts):
        await kept.journal.keep(settlement_of(start))

    assert [turn.start for turn in kept.turns()] == starts
