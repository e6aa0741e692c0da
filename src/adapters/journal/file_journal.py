"""The journal of this process, in files of a folder of its own."""

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog

from adapters.journal.entries import Entry, encode_entry
from application.ports.journal import Journal, NotEntered
from domain.settlement import Settlement, TurnStart

LOCK: Final = "lock"
SETTLED: Final = "settled"
"""The marker in a folder that nobody needs to look at again."""
_SEGMENT_BYTES: Final = 8 * 1024 * 1024
_BOUND_BYTES: Final = 256 * 1024 * 1024
_RESERVE_BYTES: Final = 32 * 1024 * 1024
"""Above the bound, for the rest of turns that have begun."""

_log: Final = structlog.get_logger("brabo.journal")


def segments_of(folder: Path) -> list[Path]:
    """The files with a process's entries, the oldest first."""
    return sorted(folder.glob("[0-9]*.jsonl"))


class FileJournal(Journal):
    """Appends each entry with one write, on the event loop: it takes microseconds, and the kernel has it then.

    The folder of all processes has `bound_bytes` at the most; what is flushed makes room, the oldest first. With
    `fsync_always` the disk has an entry before its method returns; those that wait together share one fsync.
    """

    def __init__(
        self,
        directory: Path,
        process_id: UUID,
        *,
        fsync_always: bool = False,
        segment_bytes: int = _SEGMENT_BYTES,
        bound_bytes: int = _BOUND_BYTES,
    ) -> None:
        self._directory = directory
        self._folder = directory / str(process_id)
        self._fsync_always = fsync_always
        self._segment_bytes = segment_bytes
        self._bound_bytes = bound_bytes
        self._lock_fd = -1
        self._fd = -1
        self._segment = 0
        self._size = 0
        """Of the segment that is written."""
        self._others_bytes = 0
        """Of all other files, those of other processes as of the last look."""
        self._open_turns: dict[UUID, tuple[int, set[UUID]]] = {}
        """Of each turn that has not ended, or has unflushed settlements: its first segment, and those settlements."""
        self._ended: set[UUID] = set()
        self._syncing: asyncio.Task[None] | None = None
        self._sync_waiters: list[asyncio.Future[bool]] = []

    def open(self) -> None:
        """Make the folder, and lock it for as long as the process lives. Raises NotEntered."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Locked before it has its name: nobody takes it for a dead one's.
            draft = self._directory / f".{self._folder.name}"
            draft.mkdir(mode=0o700)
            self._lock_fd = os.open(draft / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            draft.rename(self._folder)
            self._next_segment()
        except OSError as error:
            raise NotEntered(_words_of(error, self._directory)) from error

    def close(self) -> None:
        """Let go of the folder. What is not flushed is left for the next process to settle."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._lock_fd >= 0:
            if not self._open_turns:
                (self._folder / SETTLED).touch(mode=0o600)
            os.close(self._lock_fd)
            self._lock_fd = -1

    async def begin(self, start: TurnStart) -> None:
        self._require_room()
        self._enter(Entry(begin=start))
        self._open_turns[start.turn_id] = (self._segment, set())
        try:
            await self._synced()
        except NotEntered:
            self._open_turns.pop(start.turn_id, None)
            raise

    async def asking(self, turn_id: UUID) -> None:
        self._enter(Entry(asking=turn_id))
        await self._synced()

    async def sending(self, turn_id: UUID) -> None:
        self._enter(Entry(sending=turn_id))
        await self._synced()

    def generation(self, turn_id: UUID, generation_id: str) -> None:
        try:
            self._enter(Entry(generation=(turn_id, generation_id)))
        except NotEntered as error:
            _log.error("journal_entry_lost", kind="generation", turn_id=str(turn_id), reason=str(error))

    def keep(self, settlement: Settlement) -> asyncio.Future[bool]:
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        began_elsewhere = settlement.turn_id not in self._open_turns
        if settlement.end is not None or began_elsewhere:
            self._ended.add(settlement.turn_id)
        self._open_turns.setdefault(settlement.turn_id, (self._segment, set()))[1].add(settlement.id)
        try:
            self._enter(Entry(settle=settlement))
        except NotEntered as error:
            _log.error(
                "journal_entry_lost", kind="settle", turn_id=str(settlement.turn_id), reason=str(error)
            )
            kept.set_result(False)
            return kept
        if self._fsync_always:
            self._sync_waiters.append(kept)
            self._start_sync()
        else:
            kept.set_result(True)
        return kept

    def flushed(self, settlements: Iterable[Settlement]) -> None:
        ids = [(settlement.turn_id, settlement.id) for settlement in settlements]
        for turn_id, settlement_id in ids:
            if (turn := self._open_turns.get(turn_id)) is None:
                continue
            turn[1].discard(settlement_id)
            if turn_id in self._ended and not turn[1]:
                self._ended.discard(turn_id)
                del self._open_turns[turn_id]
        try:
            self._enter(Entry(flushed=ids))
        except NotEntered as error:
            _log.warning("journal_entry_lost", kind="flushed", reason=str(error))

    def _enter(self, entry: Entry) -> None:
        """Append an entry, whole or not at all. Raises NotEntered."""
        line = encode_entry(entry)
        try:
            if self._fd < 0:
                raise OSError(errno.EBADF, "the journal is closed")
            if self._size + len(line) > self._segment_bytes and self._size:
                self._next_segment()
            written = os.write(self._fd, line)
            if written < len(line):
                # A full disk takes a part. The rest of the line would make the next entry unreadable.
                os.ftruncate(self._fd, self._size)
                raise OSError(errno.ENOSPC, "the disk took a part of an entry")
        except OSError as error:
            raise NotEntered(_words_of(error, self._folder)) from error
        self._size += len(line)

    def _next_segment(self) -> None:
        path = self._folder / f"{self._segment + 1:06}.jsonl"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._fsync_always:
            for folder in (self._folder, self._directory):
                _fsync_folder(folder)
        if self._fd >= 0:
            if self._fsync_always:
                os.fsync(self._fd)
            os.close(self._fd)
        self._fd, self._size, self._segment = fd, os.fstat(fd).st_size, self._segment + 1
        self._make_room()

    def _make_room(self) -> None:
        """Remove what is flushed while all the folders have more than the bound, the oldest first."""
        used = self._used_bytes()
        if used > self._bound_bytes - self._segment_bytes:
            for path, size in self._removable():
                if used <= self._bound_bytes - self._segment_bytes:
                    break
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
                used -= size
        self._others_bytes = used - self._size

    def _used_bytes(self) -> int:
        return sum(_size_of(segment) for segment in self._directory.glob("*/*.jsonl"))

    def _removable(self) -> list[tuple[Path, int]]:
        """What nobody needs, with its size: folders of processes that are settled, and segments of ours before the
        first that a turn still needs."""
        settled = [marker.parent for marker in self._directory.glob(f"*/{SETTLED}")]
        folders = [
            (folder, sum(map(_size_of, segments_of(folder)))) for folder in sorted(settled, key=_changed_s)
        ]
        needed = min((first for first, _ in self._open_turns.values()), default=self._segment)
        mine = [(path, _size_of(path)) for path in segments_of(self._folder) if int(path.stem) < needed]
        return folders + mine

    def _require_room(self) -> None:
        if self._others_bytes + self._size > self._bound_bytes:
            self._make_room()
            if self._others_bytes + self._size > self._bound_bytes:
                raise NotEntered(
                    f"the journal in {self._directory} has its whole {self._bound_bytes} bytes, and none is flushed"
                )

    async def _synced(self) -> None:
        """Wait until the disk has what was entered, where that is wanted. Raises NotEntered."""
        if not self._fsync_always:
            return
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sync_waiters.append(waiter)
        self._start_sync()
        if not await waiter:
            raise NotEntered(f"the disk under {self._folder} did not confirm an entry")

    def _start_sync(self) -> None:
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        try:
            while self._sync_waiters:
                waiters, self._sync_waiters = self._sync_waiters, []
                try:
                    await asyncio.to_thread(os.fdatasync, self._fd)
                    is_done = True
                except OSError as error:
                    _log.error("journal_fsync_failed", reason=_words_of(error, self._folder))
                    is_done = False
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(is_done)
        finally:
            self._syncing = None


def _words_of(error: OSError, path: Path) -> str:
    return f"the journal in {path} cannot be written: {error.strerror or type(error).__name__}"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
