"""`brabo serve` as a user starts it, and the turn that `brabo init` says how to take."""

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.brabo import BRABO, environment, run_process, simulated_openrouter
from tests.support.live import free_port

SECRETS = {
    "BRABO_SERVICE_TOKEN": "service-token-of-the-tests",
    "AUTH_JWT_SECRET": "jwt-secret-of-the-tests",
    "CREDENTIALS_MASTER_KEY": "master-key-of-the-tests",
}
QUICK = {"BRABO_DRAIN_GRACE_S": "0.1", "BRABO_DRAIN_S": "0.2"}


class Serving:
    def __init__(self, process: "subprocess.Popen[str]", log: Path, url: str) -> None:
        self.process = process
        self._log = log
        self._url = url

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_until_ready_is(self, status: int) -> httpx.Response:
        """Wait for that answer, which has to come within 30 s."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.said()}")
            try:
                answer = httpx.get(f"{self._url}/readyz", timeout=5, trust_env=False)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code == status:
                return answer
            time.sleep(0.05)
        raise AssertionError(f"readyz never answered {status}: {self.said()}")

    def leave(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def serving(environ: Mapping[str, str], log: Path) -> Iterator[Serving]:
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen([*BRABO, "serve"], env=environ, stdout=output, stderr=output, text=True)
    try:
        yield Serving(process, log, f"http://127.0.0.1:{environ['BRABO_PORT']}")
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            finally:
                process.kill()


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    with simulated_openrouter() as base:
        yield environment(tmp_path / "data", OPENROUTER_API_BASE=base, BRABO_PORT=str(free_port()), **QUICK)


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="what init prints is for curl, which is not installed"
)
def test_what_init_prints_takes_a_turn_and_a_streamed_one(environ: dict[str, str], tmp_path: Path) -> None:
    init = run_process(["init"], {**environ, "OPENROUTER_API_KEY": "sk-or-of-the-tests"})
    assert init.returncode == 0, init.stderr
    export, turn, stream = (
        line for line in init.stdout.splitlines() if line.startswith(("export ", "curl "))
    )
    with serving(environ, tmp_path / "log") as server:
        server.wait_until_ready_is(200)
        answer, events = (
            subprocess.run(
                ["sh", "-c", f"{export}\n{line}"], capture_output=True, text=True, check=True
            ).stdout
            for line in (turn, stream)
        )
        assert server.leave() == 0

    assert json.loads(answer)["message"]["content"]
    assert json.loads(answer)["usage"]["costMicros"] > 0
    assert events.count("data: ") > 1
    assert "sk-or-of-the-tests" not in server.said()
    assert "Stopping PostgreSQL" in server.said()


def test_a_database_that_is_not_current_is_no_reason_not_to_start(
    environ: dict[str, str], tmp_path: Path, empty_database_url: str
) -> None:
    environ.update(SECRETS, DATABASE_URL=empty_database_url)
    with serving(environ, tmp_path / "log") as server:
        not_ready = server.wait_until_ready_is(503)
        assert run_process(["migrate"], environ).returncode == 0
        server.wait_until_ready_is(200)
        assert server.leave() == 0

    assert "brabo migrate" in not_ready.text
    assert "warning: not ready to serve: the database lacks 0065" in server.said()


def test_a_database_out_of_reach_is_no_reason_either(environ: dict[str, str], tmp_path: Path) -> None:
    environ.update(SECRETS, DATABASE_URL="postgresql://brabo:a-secret-password@127.0.0.1:1/brabo")
    with serving(environ, tmp_path / "log") as server:
        server.wait_until_ready_is(503)
        assert server.leave() == 0

    assert "warning: not ready to serve" in server.said()
    assert "a-secret-password" not in server.said()


def test_the_options_win_over_the_environment(environ: dict[str, str], tmp_path: Path) -> None:
    ran = run_process(["serve", "--host", "0.0.0.0", "--port", "many"], environ)

    assert ran.returncode == 1
    assert "BRABO_PORT must be a whole number" in ran.stderr
