"""The journal's files: what survives, what is refused, what makes room."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from adapters.journal.file_journal import SETTLED, FileJournal, segments_of
from adapters.journal.other_journals import FileJournals, read_turns
from application.ports.journal import NotEntered
from tests.contract.test_journal import settlement_of
from tests.support.ledger_worlds import start_of

WRITER = """
import asyncio, sys
from pathlib import Path
from uuid import uuid4
from adapters.journal.file_journal import FileJournal
from tests.support.ledger_worlds import start_of

async def main():
    journal = FileJournal(Path(sys.argv[1]), uuid4())
    journal.open()
    while True:
        start = start_of()
        await journal.begin(start)
        await journal.sending(start.turn_id)
        print(start.turn_id, flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[FileJournal]:
    journal = FileJournal(tmp_path / "journal", uuid4())
    journal.open()
    yield journal
    journal.close()


def writing(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": "src:."},
    )


def test_what_was_entered_survives_a_kill(tmp_path: Path) -> None:
    process = writing(tmp_path)
    assert process.stdout is not None
    entered = [UUID(process.stdout.readline().strip()) for _ in range(500)]
    process.send_signal(signal.SIGKILL)
    entered += [UUID(line) for line in process.communicate()[0].split() if len(line) == 36]

    (dead,) = FileJournals(tmp_path).dead()
    turns = {turn.start.turn_id: turn for turn in dead.turns() if turn.start}
    assert set(entered) <= set(turns)
    assert all(turns[turn_id].was_sent for turn_id in entered)
    dead.close(is_settled=True)
    assert list(FileJournals(tmp_path).dead()) == []


def test_a_paused_process_is_not_dead(tmp_path: Path) -> None:
    process = writing(tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    try:
        assert list(FileJournals(tmp_path).dead()) == []
    finally:
        process.kill()
        process.communicate()
    assert len(list(FileJournals(tmp_path).dead())) == 1


async def test_a_torn_end_is_passed_over_and_other_damage_is_told_of(
    journal: FileJournal, tmp_path: Path
) -> None:
    starts = [start_of() for _ in range(3)]
    for start in starts:
        await journal.begin(start)
    (folder,) = (tmp_path / "journal").iterdir()
    (segment,) = segments_of(folder)
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"escriba", b"escribA")
    segment.write_bytes(b"".join(lines) + lines[0][:40])

    with capture_logs() as logs:
        turns = list(read_turns(folder, only_unsettled=False))

    assert [turn.start for turn in turns] == [starts[0], starts[2]]
    assert [(log["event"], log["line"]) for log in logs] == [("journal_entry_damaged", 2)]


async def test_nobody_else_reads_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = FileJournal(tmp_path / "journal", uuid4())
        journal.open()
        await journal.begin(start_of())
        journal.close()
    finally:
        os.umask(before)
    folders = [tmp_path / "journal", *(tmp_path / "journal").iterdir()]
    files = list(folders[1].iterdir())
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


async def test_a_full_disk_refuses_and_leaves_a_readable_file(journal: FileJournal, tmp_path: Path) -> None:
    before, after = start_of(), start_of()
    await journal.begin(before)
    (folder,) = (tmp_path / "journal").iterdir()
    (segment,) = segments_of(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (segment.stat().st_size + 40, limits[1]))  # a part fits
    try:
        with pytest.raises(NotEntered, match="cannot be written"):
            await journal.begin(start_of())
        assert await journal.keep(settlement_of(before)) is False
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await journal.begin(after)

    with capture_logs() as logs:
        turns = list(read_turns(folder, only_unsettled=False))
    assert [turn.start for turn in turns] == [before, after]
    assert logs == []


async def test_what_is_flushed_makes_room_and_what_is_not_refuses(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, uuid4(), segment_bytes=4_000, bound_bytes=24_000)
    journal.open()
    for _ in range(100):
        start = start_of()
        await journal.begin(start)
        settlement = settlement_of(start)
        await journal.keep(settlement)
        journal.flushed([settlement])
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*.jsonl")) <= 24_000 + 4_000

    begun = []

    async def fill() -> None:
        for _ in range(100):
            start = start_of()
            await journal.begin(start)
            begun.append(start)

    with pytest.raises(NotEntered, match="none is flushed"):
        await fill()
    # What has begun is settled all the same.
    assert await journal.keep(settlement_of(begun[-1])) is True
    journal.close()
    (folder,) = tmp_path.iterdir()
    assert not (folder / SETTLED).exists()


async def test_a_turn_that_outlives_its_segment_is_read_whole(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, uuid4(), segment_bytes=3_000, bound_bytes=12_000)
    journal.open()
    old = start_of()
    await journal.begin(old)
    for _ in range(5):
        start = start_of()
        await journal.begin(start)
        settlement = settlement_of(start)
        await journal.keep(settlement)
        journal.flushed([settlement])
    await journal.sending(old.turn_id)
    (folder,) = tmp_path.iterdir()
    assert len(segments_of(folder)) > 2

    (turn,) = (turn for turn in read_turns(folder, only_unsettled=True) if turn.start == old)
    assert turn.was_sent
    journal.close()


async def test_a_folder_with_nothing_left_is_settled_when_it_is_closed(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, uuid4())
    journal.open()
    start = start_of()
    await journal.begin(start)
    settlement = settlement_of(start)
    await journal.keep(settlement)
    journal.flushed([settlement])
    journal.close()
    (folder,) = tmp_path.iterdir()
    assert (folder / SETTLED).exists()
    assert list(FileJournals(tmp_path).dead()) == []


async def test_a_settlement_of_a_turn_that_began_elsewhere_is_kept_too(
    journal: FileJournal, tmp_path: Path
) -> None:
    settlement = settlement_of(start_of())
    assert await journal.keep(settlement) is True
    (turn,) = FileJournals(tmp_path / "journal").all_turns()
    assert (turn.start, list(turn.settlements)) == (None, [settlement])


async def test_entries_that_come_together_share_an_fsync_and_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def slow(fd: int) -> None:
        time.sleep(0.2)
        synced.append(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    journal = FileJournal(tmp_path, uuid4(), fsync_always=True)
    journal.open()
    loop = asyncio.get_running_loop()
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(loop.time())
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    await asyncio.gather(*(journal.begin(start_of()) for _ in range(50)))
    ticking.cancel()

    assert len(synced) <= 2
    assert max(after - before for before, after in pairwise(ticks)) < 0.15
    journal.close()


async def test_an_fsync_that_fails_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    journal = FileJournal(tmp_path, uuid4(), fsync_always=True)
    journal.open()
    with pytest.raises(NotEntered, match="did not confirm"):
        await journal.begin(start_of())
    assert await journal.keep(settlement_of(start_of())) is False
    journal.close()


def test_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / str(uuid4())).mkdir()
    with capture_logs() as logs:
        assert list(FileJournals(tmp_path).dead()) == []
    assert [log["event"] for log in logs] == ["journal_folder_odd"]
