"""The parts under the turns, and how each is broken: real processes, signals, sockets, limits."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from adapters.embedded_postgres import EmbeddedPostgres
from adapters.embedded_postgres.embedded import Membership
from tests.support.database_proxy import free_port


class Api:
    """The api as a process, always on the same port and with the same journal."""

    def __init__(self, source: Path, folder: Path, variables: Mapping[str, str]) -> None:
        self.port = free_port()
        self.kills = 0
        self._source = source
        self._log: IO[bytes] = (folder / "api.log").open("ab")
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._environ = {
            **inherited,
            **variables,
            "PYTHONPATH": str(source),
            "BRABO_DATA_DIR": str(folder / "data"),
            "BRABO_JOURNAL_DIR": str(folder / "journal"),
            "BRABO_PORT": str(self.port),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._relay: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start it, and wait until it listens: the database may be away."""
        # The log goes through a pipe: a limit on the size of files is for the journal alone.
        self._process = subprocess.Popen(
            (sys.executable, "-m", "entrypoints.cli.main", "serve"),
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=self._source.parent,
        )
        self._relay = asyncio.create_task(asyncio.to_thread(self._keep_log, self._process))
        for _ in range(600):
            if self._process.poll() is not None:
                await asyncio.sleep(0.3)
                return await self.start()  # the database was away: whoever runs it starts it again
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return None
            await asyncio.sleep(0.05)
        raise RuntimeError("the api did not start within 30 s")

    async def kill(self) -> None:
        """Kill it outright, and start the next."""
        assert self._process is not None
        self.kills += 1
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self.start()

    async def terminate(self) -> None:
        """Tell it to end, wait until it has, and start the next."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, 40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        await self.start()

    async def stop(self) -> None:
        """End it for good."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 40)
            if self._process.poll() is None:
                self._process.kill()
        if self._relay is not None:
            await self._relay
        self._log.close()

    async def command(self, name: str) -> str:
        """Run a command of `brabo` in the same surroundings; what it says."""
        done = await asyncio.to_thread(
            subprocess.run,
            (sys.executable, "-m", "entrypoints.cli.main", name),
            env=self._environ,
            cwd=self._source.parent,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return f"{done.stdout}{done.stderr}".strip()

    def fill_disk(self) -> None:
        """Let no file of it grow by more than a few bytes: a part of the next entry is written, as on a full disk."""
        assert self._process is not None
        folder = Path(self._environ["BRABO_JOURNAL_DIR"])
        largest = max((path.stat().st_size for path in folder.glob("*/*.jsonl")), default=0)
        self._limit(largest + 40)

    def free_disk(self) -> None:
        """The disk has room again."""
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, file_bytes: int) -> None:
        if self._process is not None and self._process.poll() is None:
            _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (file_bytes, hard))

    def _keep_log(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.write(line)
            self._log.flush()


class Postgres:
    """A PostgreSQL of its own, that stops and comes back, on another port if somebody else has taken its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._membership: Membership | None = None
        self.url = ""

    def start(self) -> None:
        """Start it; blocks."""
        self._membership = EmbeddedPostgres(durable=True).join(self._folder)
        self.url = self._membership.ensure_database("chaos")

    @property
    def port(self) -> int:
        """Where it listens now."""
        return urlsplit(self.url).port or 5432

    def stop(self) -> None:
        """Stop it; blocks. Who is connected is cut off."""
        if self._membership is not None:
            self._membership.leave()
            self._membership = None
