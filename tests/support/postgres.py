"""The PostgreSQL that the tests use, and a fresh database for each test.

`BRABO_TEST_DATABASE_URL` names a server to use (its user must be allowed to create databases); without it an embedded
one is started for the run, of the major version `BRABO_TEST_POSTGRES_MAJOR` where that is set.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from adapters.embedded_postgres import EmbeddedPostgres, find_binaries


@contextmanager
def server_url(folder: Path) -> Iterator[str]:
    """A `postgresql://` URL of the server for this run; an embedded one lives in `folder` and ends with the block."""
    given = os.environ.get("BRABO_TEST_DATABASE_URL")
    if given:
        yield given
        return
    major = os.environ.get("BRABO_TEST_POSTGRES_MAJOR")
    binaries = find_binaries(int(major)) if major else find_binaries()
    with EmbeddedPostgres(binaries=binaries, durable=False).join(folder) as membership:
        yield membership.url


class Databases:
    """Databases of one run on one server, each with a name of its own; `close` drops those that are left."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._run = secrets.token_hex(4)
        self._made = 0
        self._live: set[str] = set()
        self._to_drop: list[str] = []

    def create(self, template: str | None = None) -> str:
        """The URL of a new database: empty, or a copy of the one whose URL is `template`, which nobody may be using."""
        name = f"test_{self._run}_{self._made}"
        self._made += 1
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
            sql.Identifier(name), sql.Identifier(_name(template) if template else "template0")
        )
        with psycopg.connect(self._server, autocommit=True) as connection:
            self._drop_old(connection)
            connection.execute(statement)
        self._live.add(name)
        return urlsplit(self._server)._replace(path=f"/{name}").geturl()

    def create_template(self, migrate: Callable[[str], object]) -> str:
        """The URL of a new database that `migrate` has been given to bring to its schema."""
        template = self.create()
        migrate(template)
        return template

    def drop(self, url: str) -> None:
        """Drop the database, whoever is connected: just before the next is made.

        PostgreSQL waits 100 ms for a connection that closed this instant, and none for one that closed a little ago.
        """
        self._live.remove(_name(url))
        self._to_drop.append(_name(url))

    def close(self) -> None:
        self._to_drop += self._live
        self._live.clear()
        with psycopg.connect(self._server, autocommit=True) as connection:
            self._drop_old(connection)

    def _drop_old(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        while self._to_drop:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(self._to_drop[-1]))
            )
            self._to_drop.pop()


def _name(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")
