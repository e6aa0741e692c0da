"""A TCP proxy that can reset every connection that goes through it."""

import asyncio
import socket
import struct
from contextlib import suppress


class ResettingProxy:
    """Between somebody who connects to `port`, which stays the same, and a target that may move."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._server: asyncio.Server | None = None
        self._sockets: set[socket.socket] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End, with every connection."""
        if self._server is not None:
            self._server.close()
        self.reset_all()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def reset_all(self) -> int:
        """Reset what is open, in both directions; how many connections those were."""
        sockets, self._sockets = self._sockets, set()
        for one in sockets:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.shutdown(socket.SHUT_RDWR)
        return len(sockets) // 2

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        mine = {_socket_of(writer), _socket_of(there_writer)}
        self._sockets |= mine
        pumps = [
            asyncio.create_task(_pump(reader, there_writer)),
            asyncio.create_task(_pump(there_reader, writer)),
        ]
        self._pumps.update(pumps)
        for pump in pumps:
            pump.add_done_callback(self._pumps.discard)
        await asyncio.wait(pumps)
        self._sockets -= mine


def _socket_of(writer: asyncio.StreamWriter) -> socket.socket:
    wrapped = writer.get_extra_info("socket")
    found: socket.socket = wrapped._sock if hasattr(wrapped, "_sock") else wrapped
    return found


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        sink.transport.abort()
    finally:
        with suppress(ConnectionError, RuntimeError):
            sink.close()
