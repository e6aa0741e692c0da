"""The running simulator, as tests and commands hold it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from entrypoints.simulator.control import ClockChange, add_scripts, move_clock
from entrypoints.simulator.server import Connection
from entrypoints.simulator.state import Script, State


class Simulator:
    """A simulated OpenRouter listening on a port of its own."""

    def __init__(self, state: State, host: str, port: int) -> None:
        self.state = state
        self.control_url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        """Where the control routes are: `/_bill`, `/_faults`, …"""
        self.base_url = f"{self.control_url}/api"
        """What an api takes for https://openrouter.ai/api."""

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        faults: str = "",
        first_token_ms: float = 0,
        between_ms: float = 0,
        generation_delay_ms: float = 25_000,
    ) -> AsyncIterator["Simulator"]:
        """Listens while the block runs; port 0 takes a free one.

        `faults` apply to every call they fit, in the notation of X-Simulator-Fault (UnknownFaultError); the two
        pauses are the default agent's pace; `generation_delay_ms` is how long GET /generation says 404.
        """
        state = State(
            faults=faults,
            first_token_ms=first_token_ms,
            between_ms=between_ms,
            generation_delay_ms=generation_delay_ms,
        )
        connections: set[Connection] = set()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(state, connections), host, port, backlog=1024)
        try:
            bound_port: int = server.sockets[0].getsockname()[1]
            yield cls(state, host, bound_port)
        finally:
            server.close()
            leaving = list(connections)
            for connection in leaving:
                connection.abort()
            await asyncio.gather(*(connection.gone for connection in leaving))
            await server.wait_closed()

    def script(self, *scripts: dict[str, Any]) -> None:
        """POST /_script from Python: dicts of the same fields. Raises on a script that is wrong."""
        add_scripts(self.state, msgspec.convert(list(scripts), list[Script]))

    def bill(self) -> dict[str, Any]:
        """GET /_bill from Python, with amounts as decimal strings."""
        return self.state.bill.view()

    def requests(self) -> list[dict[str, Any]]:
        """GET /_requests from Python, oldest first."""
        return list(self.state.requests)

    def advance_clock(self, ms: float) -> None:
        """POST /_clock from Python."""
        move_clock(self.state, ClockChange(advance_ms=ms))

    def reset(self) -> None:
        """POST /_reset from Python."""
        self.state.reset()
