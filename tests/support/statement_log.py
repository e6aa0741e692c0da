"""PostgreSQL's own log of the statements that reach a database."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import psycopg

from tests.support.database_proxy import DatabaseProxy, free_port

_OF_THE_POOLS = "SET statement_timeout"
_BESIDE_TURNS = (
    "api_processes",
    "api_leases",
    "turn_starts s LEFT JOIN",
    "INSERT INTO turn_starts AS s",
    "FROM usage_truths",
    "FROM audit_runs",
    "WITH stray AS",
)
"""What a process does by the clock, however many turns there are."""


class StatementLog(DatabaseProxy):
    """The log as the server sends it to its client when told to; kept on the way."""

    def __init__(self, database_url: str) -> None:
        super().__init__(database_url, free_port())
        self._streams: list[bytearray] = []

    @property
    def url(self) -> str:
        """The database's URL by way of the proxy, which reads along."""
        return f"{super().url}?sslmode=disable&gssencmode=disable"

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        stream = bytearray()
        self._streams.append(stream)
        with suppress(ConnectionError):
            while data := await source.read(65536):
                stream += data
                sink.write(data)
                await sink.drain()
        sink.close()

    def statements(self) -> list[str]:
        """Every statement that was logged so far, without `statement:` or `execute <name>:` before it."""
        found = []
        for stream in self._streams:
            if stream[:1] == b"R":  # the server's half: it begins with the request to log in
                found += [
                    text
                    for said in _notices(bytes(stream))
                    if (text := re.sub(r"\A(statement|execute \S+): ", "", said)) != said
                ]
        return found

    def of_turns(self) -> list[str]:
        """The same without those with which the pools set their connections up, and what runs by the clock, sorted."""
        return sorted(
            text
            for text in self.statements()
            if not text.startswith(_OF_THE_POOLS)
            and ("INSERT INTO token_usage" in text or not any(part in text for part in _BESIDE_TURNS))
        )

    def of_pools(self) -> list[str]:
        """Those with which the pools set their connections up."""
        return [text for text in self.statements() if text.startswith(_OF_THE_POOLS)]


@asynccontextmanager
async def statement_log(database_url: str) -> AsyncIterator[StatementLog]:
    """A log of what reaches the database by the log's URL."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = connection.info.dbname
        for setting in ("log_statement = 'all'", "client_min_messages = 'log'"):
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())
    log = StatementLog(database_url)
    await log.start()
    try:
        yield log
    finally:
        await log.stop()


def _notices(stream: bytes) -> list[str]:
    found = []
    at = 0
    while at + 5 <= len(stream):
        kind, end = stream[at : at + 1], at + 1 + int.from_bytes(stream[at + 1 : at + 5])
        if kind == b"N":
            fields = {part[:1]: part[1:].decode() for part in stream[at + 5 : end].split(b"\0")}
            found.append(fields[b"M"])
        at = end
    return found
