"""The journals of other processes of this host, those that have died first of all."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from adapters.journal.entries import Entry, Fold, decode_entry, encode_entry
from adapters.journal.file_journal import LOCK, SETTLED, segments_of
from application.ports.journal import DeadJournal, JournaledTurn, Journals
from domain.settlement import Settlement

_log: Final = structlog.get_logger("brabo.journal")


class _DeadFileJournal(DeadJournal):
    def __init__(self, folder: Path, process_id: UUID, lock_fd: int) -> None:
        self._folder = folder
        self._process_id = process_id
        self._lock_fd = lock_fd

    @property
    def process_id(self) -> UUID:
        return self._process_id

    @property
    def died_at(self) -> datetime:
        changed_s = max((path.stat().st_mtime for path in segments_of(self._folder)), default=0.0)
        return datetime.fromtimestamp(changed_s, UTC)

    def turns(self) -> Iterator[JournaledTurn]:
        return read_turns(self._folder, only_unsettled=True)

    def flushed(self, settlements: Iterable[Settlement]) -> None:
        ids = [(settlement.turn_id, settlement.id) for settlement in settlements]
        # In a file of its own: the last one may end in a torn line.
        with open(self._folder / "999999.jsonl", "ab", opener=_private) as file:
            file.write(encode_entry(Entry(flushed=ids)))

    def close(self, *, is_settled: bool) -> None:
        if is_settled:
            (self._folder / SETTLED).touch(mode=0o600)
        os.close(self._lock_fd)


class FileJournals(Journals):
    """The folders beside this process's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def processes(self) -> list[UUID]:
        return [UUID(folder.name) for folder in _folders(self._directory)]

    def dead(self) -> Iterator[DeadJournal]:
        for folder in _folders(self._directory):
            if not (folder / SETTLED).exists() and (lock_fd := _lock(folder)) is not None:
                yield _DeadFileJournal(folder, UUID(folder.name), lock_fd)

    def all_turns(self) -> Iterator[JournaledTurn]:
        """The turns of every process, dead or alive, settled or not: what a database that was restored may lack."""
        for folder in _folders(self._directory):
            yield from read_turns(folder, only_unsettled=False)


def read_turns(folder: Path, *, only_unsettled: bool) -> Iterator[JournaledTurn]:
    """The turns of one process, the oldest first. A torn last line is passed over; other damage is logged."""
    fold = Fold(only_unsettled=only_unsettled)
    for segment in segments_of(folder):
        fold.add(_entries(segment))
    return fold.turns()


def _entries(segment: Path) -> Iterator[Entry]:
    try:
        file = segment.open("rb")
    except FileNotFoundError:  # its room was needed meanwhile
        return
    with file:
        for number, line in enumerate(file, start=1):
            entry = decode_entry(line.removesuffix(b"\n"))
            if entry is not None:
                yield entry
            elif line.endswith(b"\n"):
                _log.error("journal_entry_damaged", file=str(segment), line=number)


def _folders(directory: Path) -> list[Path]:
    """One for each process, the oldest first: their names begin with the time they were made."""
    folders = []
    with suppress(FileNotFoundError):
        for path in sorted(directory.iterdir()):
            with suppress(ValueError):
                UUID(path.name)
                folders.append(path)
    return [path for path in folders if path.is_dir()]


def _lock(folder: Path) -> int | None:
    """The lock of a process that has died; None while it lives, or somebody else has it."""
    try:
        lock_fd = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        _log.warning("journal_folder_odd", folder=str(folder), reason=error.strerror)
        return None
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock_fd)
        return None
    if (folder / SETTLED).exists():  # by whoever had the lock just now
        os.close(lock_fd)
        return None
    return lock_fd


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
