"""The turn's connections to PostgreSQL, and the one way to run a statement on them."""

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.sql import ClauseElement

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
Pool: TypeAlias = AsyncConnectionPool[Connection]

_T = TypeVar("_T")

_dialect: Final[Dialect] = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it so

PATIENCE_S: Final = 2.0
"""How long a turn waits for the database, connection included."""

_LOCK_PATIENCE_MS: Final = 500
"""Short of the patience, so that a batch held up by one locked row can be split while there is time left."""

_LOST: Final = frozenset({"57P01", "57P02", "57P03", "57P05"})
"""Shut down by an administrator, crashed, not accepting connections, idle for too long."""


def read_pool(database_url: str, *, size: int = 8) -> Pool:
    """The pool for reading contexts, not yet open: open it in the event loop that uses it, and close it there.

    It opens without a database and fills itself as soon as there is one.
    """
    return _pool(database_url, "read", size, f"SET statement_timeout = {int(PATIENCE_S * 1000)}")


def write_pool(database_url: str, *, size: int = 4) -> Pool:
    """The pool for settling, not yet open. Writers of one budget wait for one another: more of them help no one."""
    return _pool(
        database_url,
        "write",
        size,
        f"SET statement_timeout = {int(PATIENCE_S * 1000)}; SET lock_timeout = {_LOCK_PATIENCE_MS}",
    )


def _pool(database_url: str, name: str, size: int, session_settings: str) -> Pool:
    async def configure(connection: Connection) -> None:
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        await _bounded(connection, deadline_s, connection.execute(session_settings.encode()))

    return AsyncConnectionPool(
        conninfo_of(database_url),
        kwargs={"autocommit": True, "connect_timeout": int(PATIENCE_S), "client_encoding": "UTF8"},
        configure=configure,
        name=name,
        min_size=min(2, size),
        max_size=size,
        open=False,
        timeout=PATIENCE_S,
        # The pool doubles its pauses for as long as it goes on trying. Given up soon, it tries again with the
        # next turn that asks, so that a database that is back is found within a second.
        reconnect_timeout=PATIENCE_S,
    )


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


async def _run(connection: Connection, query: bytes, parameters: Mapping[str, Any] | None) -> TupleRow | None:
    cursor = await connection.execute(query, parameters, prepare=True)
    return await cursor.fetchone()


async def _bounded(connection: Connection, deadline_s: float, work: Awaitable[_T]) -> _T:
    """Await work on the connection; at the deadline the connection is cut under it.

    To cancel it instead would hold us up: psycopg then asks the server to cancel, and waits for its answer.
    """
    timer = asyncio.get_running_loop().call_at(deadline_s, _cut, connection)
    try:
        return await work
    finally:
        timer.cancel()


def _cut(connection: Connection) -> None:
    """Let the pending read of the connection end, as if the server had hung up."""
    try:
        duplicate = socket.socket(fileno=os.dup(connection.fileno()))
    except psycopg.OperationalError:
        return  # closed already
    with duplicate, suppress(OSError):  # the server has hung up
        duplicate.shutdown(socket.SHUT_RDWR)


def is_connection_failure(error: psycopg.Error) -> bool:
    """Whether the server could not be reached or hung up, or no connection was free: another attempt may do."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    return error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate in _LOST
