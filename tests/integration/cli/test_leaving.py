"""However a command is told to end, an embedded database that only it uses is stopped."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from tests.support.brabo import BRABO, environment
from tests.support.embedded import servers_below
from tests.support.live import free_port

SECRETS = {
    "BRABO_SERVICE_TOKEN": "service-token-of-the-tests",
    "AUTH_JWT_SECRET": "jwt-secret-of-the-tests",
    "CREDENTIALS_MASTER_KEY": "master-key-of-the-tests",
    "OPENROUTER_API_KEY": "sk-or-of-the-tests",
}
BECOME_A_SESSION = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
LONGEST_S = 30


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Each test has the data directory to itself; only the first has to create the database."""
    data = tmp_path_factory.mktemp("leaving") / "data"
    return environment(
        data,
        **SECRETS,
        OPENROUTER_API_BASE="http://127.0.0.1:1",
        BRABO_PORT=str(free_port()),
        BRABO_DRAIN_GRACE_S="0",
    )


@pytest.fixture(autouse=True)
def nothing_runs_afterwards(environ: dict[str, str]) -> Iterator[None]:
    yield
    left = servers_below(Path(environ["BRABO_DATA_DIR"]))
    for server in left:
        os.kill(server, signal.SIGQUIT)
    assert left == []


class AtATerminal:
    """A command at a terminal of its own, which can be closed."""

    def __init__(self, arguments: list[str], environ: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", BECOME_A_SESSION, *BRABO, *arguments],
            env=environ,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def wait_until(self, look: Callable[[str], bool]) -> None:
        """Wait until what it has written meanwhile looks right."""
        seen = ""
        deadline_s = time.monotonic() + LONGEST_S
        while not look(seen):
            assert time.monotonic() < deadline_s, seen
            if select.select([self._ours], [], [], 0.05)[0]:
                seen += os.read(self._ours, 4096).decode()

    def close(self) -> int:
        """Close the terminal; the exit status."""
        os.close(self._ours)
        try:
            return self.process.wait(LONGEST_S)
        finally:
            self.process.kill()
            self.process.wait()


def is_ready(environ: dict[str, str]) -> bool:
    with suppress(httpx.TransportError):
        url = f"http://127.0.0.1:{environ['BRABO_PORT']}/readyz"
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    return False


def test_a_closed_terminal_drains_a_server(environ: dict[str, str]) -> None:
    serve = AtATerminal(["serve"], environ)
    try:
        serve.wait_until(lambda _: is_ready(environ))
    finally:
        status = serve.close()

    assert status == 0


def test_a_closed_terminal_ends_a_command_in_order(environ: dict[str, str]) -> None:
    given = ["--email", "me@example.com", "--name", "Me", "--workspace", "W", "--project", "P"]
    init = AtATerminal(["init", *given, "--provider", "openrouter", "--model", "some/model"], environ)
    try:
        init.wait_until(lambda said: "Budget" in said)
    finally:
        status = init.close()

    assert status == 128 + signal.SIGTERM


def test_signals_again_and_again_from_the_start_leave_no_server(environ: dict[str, str]) -> None:
    process = subprocess.Popen([*BRABO, "serve"], env=environ, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert any(line.startswith("brabo: Starting PostgreSQL") for line in process.stderr)
        deadline_s = time.monotonic() + LONGEST_S
        for number in cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
            if process.poll() is not None:
                break
            assert time.monotonic() < deadline_s, "it does not end"
            process.send_signal(number)
            time.sleep(0.005)
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_simulator_ends_in_order(number: signal.Signals) -> None:
    process = subprocess.Popen([*BRABO, "simulate", "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "Simulated OpenRouter" in process.stdout.readline()
    process.send_signal(number)
    said, _ = process.communicate(timeout=LONGEST_S)

    assert process.returncode == 0
    assert "Stopped. 0 calls" in said
