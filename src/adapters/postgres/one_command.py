"""The database for one command: it may block, and one connection is enough."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from sqlalchemy import Connection, Engine, NullPool, create_engine
from sqlalchemy.exc import DBAPIError

from adapters.postgres.pool import conninfo_of
from application.ports.database import DatabaseFailed

_CONNECT_TIMEOUT_S: Final = 10


def engine_of(database_url: str) -> Engine:
    """An engine that keeps no connection and waits 10 s for one. Raises ValueError, without the URL in it."""
    conninfo = conninfo_of(database_url)
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(conninfo, connect_timeout=_CONNECT_TIMEOUT_S, client_encoding="UTF8"),
        poolclass=NullPool,
    )


@contextmanager
def transaction(database_url: str) -> Iterator[Connection]:
    """A connection and a transaction, committed when the block ends and undone when it raises.

    Raises DatabaseFailed for whatever the server, or the way to it, refuses.
    """
    try:
        engine = engine_of(database_url)
    except ValueError as error:
        raise DatabaseFailed(f"{error}.") from None
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        # The statement and its parameters stay out: they can hold an envelope.
        cause = error.orig if isinstance(error.orig, psycopg.Error) else None
        reason = (cause.diag.message_primary or str(cause)) if cause else type(error).__name__
        raise DatabaseFailed(f"The database refused: {reason.strip()}") from None
