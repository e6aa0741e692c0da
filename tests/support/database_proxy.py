"""A TCP proxy before a database, that can fall silent, hang up, and come back."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


def free_port() -> int:
    """A port of the loopback address that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class DatabaseProxy:
    """Passes bytes on while `is_talking`; connections are accepted either way."""

    def __init__(self, database_url: str, port: int) -> None:
        self._target = urlsplit(database_url)
        self.port = port
        self.accepted = 0
        self._talking = asyncio.Event()
        self._talking.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The database's URL by way of the proxy."""
        user = f"{self._target.username}:{self._target.password or ''}"
        return f"postgresql://{user}@127.0.0.1:{self.port}{self._target.path}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def fall_silent(self) -> None:
        self._talking.clear()

    def talk(self) -> None:
        self._talking.set()

    async def stop(self) -> None:
        """Refuse connections, and hang up on those there are."""
        if self._server is not None:
            self._server.close()
        self._server = None
        for pump in self._pumps:
            pump.cancel()
        for writer in self._writers:
            writer.close()
        closing = [*self._pumps, *(writer.wait_closed() for writer in self._writers)]
        await asyncio.gather(*closing, return_exceptions=True)
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            host, port = self._target.hostname, self._target.port or 5432
            database_reader, database_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        if self._server is None:  # stopped meanwhile
            writer.close()
            database_writer.close()
            return
        self._writers |= {writer, database_writer}
        for source, sink in ((reader, database_writer), (database_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._talking.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def database_proxy(database_url: str, port: int | None = None) -> AsyncIterator[DatabaseProxy]:
    """A proxy that is running, on a port of its own unless one is given."""
    proxy = DatabaseProxy(database_url, port or free_port())
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
