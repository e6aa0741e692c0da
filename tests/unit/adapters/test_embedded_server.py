"""Processes that end in the moment they are asked."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from adapters.embedded_postgres import EmbeddedPostgresError, PostgresBinaries
from adapters.embedded_postgres.account import Quarters, RunAs
from adapters.embedded_postgres.process import Process
from adapters.embedded_postgres.server import Server, _signal_and_wait


class EndingAtOnce(RunAs):
    """Starts a shell that ends before it has said which process it began."""

    def launch(
        self, script: str, command: Sequence[str], *, stderr: IO[bytes], environment: dict[str, str]
    ) -> "subprocess.Popen[bytes]":
        return super().launch("echo no memory >&2", command, stderr=stderr, environment=environment)


def test_a_launcher_that_says_nothing_is_an_error_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "15").mkdir()
    binaries = PostgresBinaries(tmp_path, 15, "PATH")
    quarters = Quarters(tmp_path / "15", binaries, EndingAtOnce())
    server = Server(tmp_path, quarters, durable=False, say=lambda _: None)

    with pytest.raises(EmbeddedPostgresError, match=r"pid unknown\) was ended; its log .*:\nno memory"):
        server.ensure_running(5, os.open(tmp_path, os.O_RDONLY))


def test_a_process_that_ended_by_itself_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    answers = iter([True, False])
    monkeypatch.setattr(Process, "is_running", lambda _: next(answers))

    assert _signal_and_wait(Process(gone.pid, ""), signal.SIGINT, 1)
