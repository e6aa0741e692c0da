"""Our api on a real socket, in the test's own event loop, over a real database."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from entrypoints.container import Container
from entrypoints.http.presentations import Patience
from entrypoints.http.server import make_server
from entrypoints.settings import read_settings
from tests.support.brabo_data import MASTER_KEY

SERVICE_TOKEN = "service-token-of-the-tests"
HEADERS = {"X-Brabo-Service-Token": SERVICE_TOKEN}


@dataclass(frozen=True)
class LiveApi:
    url: str
    container: Container

    def turn_url(self, session_id: object, *, stream: bool = False) -> str:
        return f"{self.url}/internal/sessions/{session_id}/llm-turn{'-stream' if stream else ''}"


def environment(data_dir: os.PathLike[str], **over: str) -> dict[str, str]:
    """What a server of the tests is started with."""
    return {
        "BRABO_DATA_DIR": str(data_dir),
        "BRABO_PORT": str(free_port()),
        "BRABO_SERVICE_TOKEN": SERVICE_TOKEN,
        "CREDENTIALS_MASTER_KEY": MASTER_KEY,
        "AUTH_JWT_SECRET": "jwt-secret-of-the-tests",
        **over,
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def live_api(
    database_url: str, environ: Mapping[str, str], patience: Patience | None = None
) -> AsyncIterator[LiveApi]:
    """Serve until the block ends; the drain is left out, and tested on processes of its own."""
    settings = read_settings(environ)
    container = Container(settings=settings, database_url=database_url)
    server = make_server(container, patience)
    # The listening socket is ours, so that no other process can take the port in between.
    listener = socket.create_server((settings.host, settings.port))
    serving = asyncio.create_task(server._serve([listener]))
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise RuntimeError("the api ended while starting")
            await asyncio.sleep(0.01)
        yield LiveApi(f"http://{settings.host}:{settings.port}", container)
    finally:
        server.should_exit = True
        await serving
