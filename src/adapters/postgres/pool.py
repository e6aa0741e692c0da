"""The turn's connections to PostgreSQL, and the one way to run a statement on them."""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql import ClauseElement

from application.ports.database import DatabaseFailed

_T = TypeVar("_T")

_dialect: Final[Dialect] = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it so

PATIENCE_S: Final = 2.0
"""How long a turn waits for the database, connection included."""

_LOCK_PATIENCE_MS: Final = 500
"""Short of the patience, so that a batch held up by one locked row can be split while there is time left."""

# One plan serves every turn, and making it takes the server longer than running it. Compiling it never pays.
_SETTINGS: Final = "; ".join(
    (
        f"SET statement_timeout = {int(PATIENCE_S * 1000)}",
        "SET plan_cache_mode = force_generic_plan",
        "SET jit = off",
    )
)

_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""Shut down by an administrator, crashed, not accepting connections, idle for too long."""


class Connection(psycopg.AsyncConnection[TupleRow]):
    """A connection that nobody has to wait for: it hangs up when told to, or when its statement is cancelled."""

    @classmethod
    async def connect(cls, conninfo: str = "", **options: Any) -> Self:
        """As psycopg does it. The option `on_attempt` is told the error that kept it from coming about, or None."""
        on_attempt: Callable[[psycopg.Error | None], None] = options.pop("on_attempt")
        try:
            connection = await super().connect(conninfo, **options)
        except psycopg.Error as error:
            on_attempt(error)
            raise
        on_attempt(None)
        return connection

    def hang_up(self) -> None:
        """Let the pending read end at once, as if the server had closed the connection."""
        try:
            duplicate = socket.socket(fileno=os.dup(self.fileno()))
        except psycopg.OperationalError:
            return  # closed already
        with duplicate, suppress(OSError):  # the server was quicker
            duplicate.shutdown(socket.SHUT_RDWR)

    async def cancel_safe(self, *, timeout: float = 0) -> None:  # noqa: ARG002 - the signature is psycopg's
        """Hang up. psycopg calls this for a cancelled statement, and would ask the server, which may be silent."""
        self.hang_up()


class Pool(AsyncConnectionPool[Connection]):
    """Connections, and what kept the last one from coming about: its error, None after a success."""

    refusal: psycopg.Error | None = None

    def note_attempt(self, refusal: psycopg.Error | None) -> None:
        """Keep the outcome of an attempt to connect."""
        self.refusal = refusal


def read_pool(database_url: str, *, size: int = 8) -> Pool:
    """The pool for reading contexts, not yet open: open it in the event loop that uses it, and close it there.

    It opens without a database and fills itself as soon as there is one.
    """
    return _pool(database_url, "read", size, _SETTINGS)


def write_pool(database_url: str, *, size: int = 4) -> Pool:
    """The pool for settling, not yet open. Writers of one budget wait for one another: more of them help no one."""
    return _pool(database_url, "write", size, f"{_SETTINGS}; SET lock_timeout = {_LOCK_PATIENCE_MS}")


def holds_pool(database_url: str, *, size: int = 4) -> Pool:
    """The pool for placing holds, not yet open. Those of one budget follow one another: more would only wait."""
    return _pool(database_url, "holds", size, f"{_SETTINGS}; SET lock_timeout = {_LOCK_PATIENCE_MS}")


def owners_pool(database_url: str, *, size: int = 2) -> Pool:
    """The pool for what owners ask, not yet open: apart, so that no page of theirs holds up a turn."""
    return _pool(database_url, "owners", size, f"{_SETTINGS}; SET lock_timeout = {_LOCK_PATIENCE_MS}")


def _pool(database_url: str, name: str, size: int, session_settings: str) -> Pool:
    async def configure(connection: Connection) -> None:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        await _bounded(connection, deadline_s, connection.execute(session_settings.encode()))

    pool: Pool = Pool(
        conninfo_of(database_url),
        connection_class=Connection,
        kwargs=lambda: {
            "autocommit": True,
            "connect_timeout": int(PATIENCE_S),
            "client_encoding": "UTF8",
            "on_attempt": pool.note_attempt,
        },
        configure=configure,
        name=name,
        # All of them from the start: to connect in the middle of a burst costs milliseconds of the event loop each.
        min_size=size,
        open=False,
        timeout=PATIENCE_S,
        # The pool doubles its pauses for as long as it goes on trying. Given up soon, it tries again with the
        # next turn that asks, so that a database that is back is found within a second.
        reconnect_timeout=PATIENCE_S,
    )
    return pool


def conninfo_of(database_url: str) -> str:
    """What libpq takes, of a `postgres://` or `postgresql://` URL, with or without SQLAlchemy's driver suffix.

    Raises ValueError, without the URL in it, when libpq could not read it.
    """
    url = re.sub(r"\Apostgres(ql)?(\+\w+)?://", "postgresql://", database_url)
    try:
        if not url.startswith("postgresql://"):
            raise psycopg.ProgrammingError
        return make_conninfo(url)
    except psycopg.ProgrammingError:
        # What libpq says may quote the URL, and the password with it.
        raise ValueError(
            "DATABASE_URL cannot be read: write postgresql://user:password@host:port/database, with the special "
            "characters of user and password percent-encoded, and with no parameters but libpq's"
        ) from None


def as_query(statement: ClauseElement) -> bytes:
    """A statement of SQLAlchemy's as psycopg runs it; its bind parameters keep their names."""
    return str(statement.compile(dialect=_dialect)).encode()


async def fetch_row(
    pool: Pool, query: bytes, parameters: Mapping[str, Any] | None, *, deadline_s: float
) -> TupleRow | None:
    """Run one statement, a transaction of its own, and give its first row.

    `deadline_s` is on the event loop's clock; by then it has ended, also when the server says nothing. Raises
    psycopg.Error; `is_connection_failure` tells whether the server was out of reach.
    """
    patience_s = deadline_s - asyncio.get_running_loop().time()
    connection = await pool.getconn(timeout=patience_s)
    try:
        return await _bounded(connection, deadline_s, _run(connection, query, parameters))
    finally:
        await pool.putconn(connection)


async def fetch_row_from_the_living(
    pool: Pool, query: bytes, parameters: Mapping[str, Any] | None, *, deadline_s: float
) -> TupleRow | None:
    """The same for what may run twice: connections that the server closed while they lay there are passed over."""
    attempts_left = pool.max_size
    while True:
        try:
            return await fetch_row(pool, query, parameters, deadline_s=deadline_s)
        except psycopg.Error as error:
            is_late = asyncio.get_running_loop().time() >= deadline_s
            if not attempts_left or is_late or not is_connection_failure(error):
                raise
            attempts_left -= 1


async def fetch_row_or_fail(pool: Pool, query: bytes, parameters: Mapping[str, Any]) -> TupleRow | None:
    """The same, within the usual patience. Raises DatabaseFailed, whose text is for whoever asked."""
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    try:
        return await fetch_row_from_the_living(pool, query, parameters, deadline_s=deadline_s)
    except psycopg.Error as error:
        # The server's own words stay out: they can quote what a row holds.
        raise DatabaseFailed(
            f"The database did not do it within {PATIENCE_S:g} s "
            f"({type(error).__name__}, SQLSTATE {error.sqlstate})."
        ) from error


async def _run(connection: Connection, query: bytes, parameters: Mapping[str, Any] | None) -> TupleRow | None:
    cursor = await connection.execute(query, parameters, prepare=True)
    return await cursor.fetchone()


async def _bounded(connection: Connection, deadline_s: float, work: Awaitable[_T]) -> _T:
    """Await work on the connection, which hangs up at the deadline."""
    timer = asyncio.get_running_loop().call_at(deadline_s, connection.hang_up)
    try:
        return await work
    finally:
        timer.cancel()


def is_connection_failure(error: psycopg.Error) -> bool:
    """Whether the server could not be reached or hung up, or no connection was free: another attempt may do."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate in _LOST
