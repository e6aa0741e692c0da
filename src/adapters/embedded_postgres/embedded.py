"""Several processes, one server: the first starts it, the last one out stops it."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg import errors, sql

from adapters.embedded_postgres.account import choose_quarters
from adapters.embedded_postgres.binaries import PostgresBinaries, find_binaries
from adapters.embedded_postgres.errors import EmbeddedPostgresError
from adapters.embedded_postgres.server import DATABASE, RunningServer, Server

_LOCK_POLL_S = 0.02


def _say_nothing(_: str) -> None: ...


class EmbeddedPostgres:
    """A real PostgreSQL for whoever has none.

    `binaries` defaults to what `find_binaries` finds. `durable=False` gives up crash safety for speed, for tests.
    `account_root` holds data and binaries where root has to use another account. `say` gets a sentence for each
    step that takes time.
    """

    def __init__(
        self,
        *,
        binaries: PostgresBinaries | None = None,
        durable: bool = True,
        account_root: Path = Path("/var/lib/brabo"),
        say: Callable[[str], None] = _say_nothing,
    ) -> None:
        self._binaries = binaries
        self._durable = durable
        self._account_root = account_root
        self._say = say

    def join(self, data_root: Path, *, timeout_s: float = 120) -> "Membership":
        """Join the server whose files lie below `data_root`/postgres; start it, or create its data, where needed.

        Blocks, in all at most about twice `timeout_s`. The database `brabo` exists afterwards. Raises
        EmbeddedPostgresError: no binaries, data of another major version, a start that failed.
        """
        binaries = self._binaries or find_binaries()
        home = data_root.resolve() / "postgres"
        try:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _starting_or_stopping(home, timeout_s, self._say) as lock:
                quarters = choose_quarters(home, binaries, self._account_root)
                server = Server(home, quarters, durable=self._durable, say=self._say)
                return Membership(home, server, lock, timeout_s, self._say)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"PostgreSQL could not be set up in {home}: {error}. See who owns these files and whether there is "
                f"room, or choose another data directory."
            ) from error


class Membership:
    """The use of a running server until `leave`, or until the `with` block or the process ends."""

    def __init__(
        self, home: Path, server: Server, lock: int, timeout_s: float, say: Callable[[str], None]
    ) -> None:
        # Made by EmbeddedPostgres.join, which holds the lock on starting and stopping.
        self._home = home
        self._server = server
        self._timeout_s = timeout_s
        self._say = say
        # Held for the life of this process at most: the kernel lets go of it however the process ends.
        self._seat: int | None = os.open(home / "members.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._seat, fcntl.LOCK_SH)
        try:
            self._running: RunningServer = server.ensure_running(timeout_s, lock)
            self.url = self.ensure_database(DATABASE)
        except BaseException:
            self._give_up_seat()
            raise

    def __repr__(self) -> str:
        return f"Membership(port={self._running.port}, home={str(self._home)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def ensure_database(self, name: str) -> str:
        """Create the database unless it exists; its `postgresql://` URL, with the password in it."""
        try:
            with psycopg.connect(
                self._server.url(self._running.port, "postgres"), autocommit=True
            ) as connection:
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
                # Somebody else may create it just now.
                with suppress(errors.DuplicateDatabase, errors.UniqueViolation):
                    if known is None:
                        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except psycopg.Error as error:
            raise EmbeddedPostgresError(f"The database {name!r} could not be made: {error}") from error
        return self._server.url(self._running.port, name)

    def leave(self) -> None:
        """Give the use up; the last one out stops the server. A second call does nothing.

        Raises EmbeddedPostgresError when the server does not stop.
        """
        if self._seat is not None:
            with _starting_or_stopping(self._home, self._timeout_s, self._say):
                self._give_up_seat()

    def _give_up_seat(self) -> None:
        assert self._seat is not None
        seat, self._seat = self._seat, None
        try:
            fcntl.flock(seat, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # others are still in
        else:
            self._server.stop()
        finally:
            _let_go(seat)


@contextmanager
def _starting_or_stopping(home: Path, timeout_s: float, say: Callable[[str], None]) -> Iterator[int]:
    """Nobody else starts or stops this server, joins or leaves it, meanwhile."""
    deadline = time.monotonic() + timeout_s
    waited = False
    lock = os.open(home / "start-stop.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"Another process has been starting or stopping the PostgreSQL in {home} for more than "
                        f"{timeout_s:g} s: see what it says, or end it."
                    ) from None
                if not waited:
                    say("Waiting for another process that is starting or stopping PostgreSQL.")
                    waited = True
                time.sleep(_LOCK_POLL_S)
        yield lock
    finally:
        _let_go(lock)


def _let_go(lock: int) -> None:
    # Closing alone does not unlock while a forked child holds a copy of the descriptor.
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)
