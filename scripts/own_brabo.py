"""A Brabo of one's own for a while: PostgreSQL, a simulated OpenRouter and an api, as processes in a temporary folder.

Everything goes through the command `brabo`, as a user would type it, and nothing of it is left afterwards.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeVar

import httpx

from adapters.embedded_postgres import EmbeddedPostgres
from entrypoints.settings import SERVICE_TOKEN, kept_secrets_path

Found = TypeVar("Found")

BRABO: Final = Path(sys.executable).with_name("brabo")
SHOWN_LOG_LINES: Final = 20
START_PATIENCE_S: Final = 60.0
STOP_PATIENCE_S: Final = 10.0
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Nothing else of the caller's environment is seen: a DATABASE_URL in it names a database that is not ours."""


class StageFailedError(Exception):
    """A step did not work. The text says which, and holds the last lines of what the program concerned said."""


class OwnBrabo:
    """The processes, and what they are reached by. Made by `own_brabo`."""

    def __init__(self, folder: Path, environment: Mapping[str, str], database_url: str) -> None:
        self.folder = folder
        self.database_url = database_url
        self.api_url = ""
        """Once `serve` has returned."""
        self.api_pid = 0
        self._environment = dict(environment)
        self._running: list[_Program] = []

    @property
    def service_token(self) -> str:
        """What engines send, as `init` made it."""
        kept = json.loads(kept_secrets_path(self.folder).read_text(encoding="utf-8"))
        token: str = kept[SERVICE_TOKEN]
        return token

    def simulate(self, *options: str) -> str:
        """Start `brabo simulate`; the root of its control routes. The api and `init` use it from now on."""
        program = self._start("simulate", "--port", "0", *options)
        found = program.wait_for(lambda: re.search(r"OPENROUTER_API_BASE=(\S+)", program.said()))
        self._environment["OPENROUTER_API_BASE"] = found[1]
        return found[1].removesuffix("/api")

    def init(self, *options: str, key: str) -> str:
        """Run `brabo init` with the provider's key; what it printed."""
        program = self._start("init", *options, OPENROUTER_API_KEY=key)
        if program.wait() != 0:
            raise program.failed("did not succeed")
        return program.said()

    def token(self, email: str) -> str:
        """Run `brabo token` for this user; the token."""
        program = self._start("token", "--email", email)
        if program.wait() != 0:
            raise program.failed("did not succeed")
        [token] = re.findall(r"^[\w-]+\.[\w-]+\.[\w-]+$", program.said(), re.MULTILINE)
        return str(token)

    def switch_router_off(self, workspace_id: str) -> None:
        """Run `brabo router off` for this workspace."""
        program = self._start("router", "off", "--workspace", workspace_id)
        if program.wait() != 0:
            raise program.failed("did not succeed")

    def serve(self) -> None:
        """Start `brabo serve` on a free port and wait until it is ready for turns."""
        port = _free_port()
        program = self._start("serve", "--port", str(port), BRABO_DRAIN_GRACE_S="0", BRABO_DRAIN_S="2")
        url = f"http://127.0.0.1:{port}"
        program.wait_for(lambda: _is_ready(url))
        self.api_url, self.api_pid = url, program.pid

    def last_words(self) -> str:
        """The last lines that the api said."""
        return next((program.last_lines() for program in self._running if program.pid == self.api_pid), "")

    def stop(self) -> None:
        """End the processes, the last one first."""
        while self._running:
            self._running[-1].stop()
            self._running.pop()

    def _start(self, command: str, *options: str, **variables: str) -> "_Program":
        log = self.folder / f"{command}.log"
        program = _Program(command, options, {**self._environment, **variables}, log)
        self._running.append(program)
        return program


class _Program:
    """A running `brabo COMMAND`, in a session of its own: a Ctrl-C on the terminal is for us, who end it in order."""

    def __init__(
        self, command: str, options: tuple[str, ...], environment: Mapping[str, str], log: Path
    ) -> None:
        self._name = f"brabo {command}"
        self._log = log
        with log.open("w", encoding="utf-8") as output:
            self._process = subprocess.Popen(
                [BRABO, command, *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def last_lines(self) -> str:
        return "\n".join(f"    {line}" for line in self.said().splitlines()[-SHOWN_LOG_LINES:])

    def failed(self, how: str) -> StageFailedError:
        return StageFailedError(f"{self._name} {how}. It said:\n{self.last_lines()}")

    def wait(self) -> int:
        try:
            return self._process.wait(START_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise self.failed(f"took longer than {START_PATIENCE_S:g} s") from None

    def wait_for(self, look: Callable[[], Found | None]) -> Found:
        """What `look` finds, as soon as it finds something."""
        deadline_s = time.monotonic() + START_PATIENCE_S
        while not (found := look()):
            if self._process.poll() is not None:
                raise self.failed(f"ended with exit status {self._process.returncode}")
            if time.monotonic() > deadline_s:
                raise self.failed(f"was not ready after {START_PATIENCE_S:g} s")
            time.sleep(0.02)
        return found

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def own_brabo(openrouter_base: str | None = None) -> Iterator[OwnBrabo]:
    """A folder and a PostgreSQL in it, and no process yet; all gone when the block ends, however it ends.

    `openrouter_base` is where turns go unless `simulate` is called; None: the real service. We are a member of the
    PostgreSQL ourselves and leave last, so that it stops even where another member had to be killed.
    """
    with ExitStack() as stack:
        stack.enter_context(_signals_as_before())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brabo-")))
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment["BRABO_DATA_DIR"] = str(folder)
        if openrouter_base is not None:
            environment["OPENROUTER_API_BASE"] = openrouter_base
        membership = stack.enter_context(EmbeddedPostgres().join(folder))
        brabo = OwnBrabo(folder, environment, membership.url)
        stack.callback(brabo.stop)
        stack.enter_context(_undisturbed_at_the_end())
        yield brabo


def leave_in_order_on_signals() -> None:
    """Let SIGTERM and a closed terminal unwind the program, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def _signals_as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _undisturbed_at_the_end() -> Iterator[None]:
    """Once the block has ended, no further signal interrupts what clears up after it, which is bounded in time."""
    try:
        yield
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False  # not listening yet


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
