"""Our api as a process of its own: real signals, real exit statuses, and nothing of the test in its event loop."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.engine import http_client
from tests.support.live import environment

_T = TypeVar("_T")

SERVE = (sys.executable, "-m", "entrypoints.cli.main", "serve")


@dataclass
class ServedApi:
    """A process that serves, or did."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path
    """What it wrote to stderr."""
    signalled_s: float = field(default=0.0, init=False)
    """When the last signal was sent, on the monotonic clock."""

    def turn_url(self, session_id: object, *, stream: bool = False) -> str:
        return f"{self.url}/internal/sessions/{session_id}/llm-turn{'-stream' if stream else ''}"

    def send(self, number: signal.Signals) -> None:
        self.signalled_s = time.monotonic()
        self.process.send_signal(number)

    async def ended(self, within_s: float) -> tuple[int, float]:
        """Exit status, and seconds since the last signal."""
        status = await asyncio.to_thread(self.process.wait, within_s)
        return status, time.monotonic() - self.signalled_s

    def lines(self) -> list[dict[str, Any]]:
        """Its log: every line has to be a JSON object, but for what the command says to whoever started it."""
        text = self.log.read_text(encoding="utf-8")
        found = [json.loads(line) for line in text.splitlines() if not line.startswith("brabo: ")]
        assert all(isinstance(line, dict) for line in found)
        return found

    async def until_ready(self, status: int = 200) -> httpx.Response:
        """Wait for that answer of `readyz`."""

        async def look() -> httpx.Response | None:
            assert self.process.poll() is None, self.log.read_text(encoding="utf-8")
            try:
                async with http_client(timeout=5) as client:
                    answer = await client.get(f"{self.url}/readyz")
            except httpx.TransportError:
                return None
            return answer if answer.status_code == status else None

        deadline_s = time.monotonic() + 60
        while (answer := await look()) is None:
            assert time.monotonic() < deadline_s, self.log.read_text(encoding="utf-8")
            await asyncio.sleep(0.05)
        return answer


@asynccontextmanager
async def served_api(
    folder: Path, *, command: Sequence[str] = SERVE, **variables: str
) -> AsyncIterator[ServedApi]:
    """Start it in `folder` and wait until it is ready; whatever is left of it when the block ends is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "PYTHONPATH") if name in os.environ
    }
    environ = {**inherited, **environment(folder / "data", **variables)}
    log = folder / "stderr"
    with log.open("wb") as stderr, (folder / "stdout").open("wb") as stdout:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr
        )
    api = ServedApi(f"http://127.0.0.1:{environ['BRABO_PORT']}", process, log)
    try:
        await api.until_ready()
        yield api
    finally:
        if process.poll() is None:
            process.kill()
        await asyncio.to_thread(process.wait)


async def eventually(look: Callable[[], _T], *, within_s: float = 10.0) -> _T:
    """What `look` gives once it gives something true."""
    deadline_s = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.02)
    return found
