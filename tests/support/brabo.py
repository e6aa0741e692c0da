"""The command `brabo`, as a process of its own or, quicker, inside the test's."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from entrypoints.cli.main import main

BRABO = [sys.executable, "-m", "entrypoints.cli.main"]


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    """What the process sees: of ours, nothing but these."""
    kept = ("PATH", "HOME", "PYTHONPATH", "LANG")
    inherited = {name: os.environ[name] for name in kept if name in os.environ}
    return {**inherited, "BRABO_DATA_DIR": str(data_dir), **variables}


def run_process(arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run to the end, without a terminal."""
    return subprocess.run(
        [*BRABO, *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what has no need of one: an error without a handler comes out as itself."""
    stdout, stderr = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        with (
            patch.dict(os.environ, environ, clear=True),
            patch.object(sys, "stdin", io.StringIO()),
            redirect_stdout(stdout),
            redirect_stderr(stderr),
        ):
            status: int | str | None = main(arguments)
    except SystemExit as end:
        status = end.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert isinstance(status, int)
    return subprocess.CompletedProcess(list(arguments), status, stdout.getvalue(), stderr.getvalue())


@contextmanager
def simulated_openrouter() -> Iterator[str]:
    """A simulated OpenRouter of its own process; what OPENROUTER_API_BASE has to be."""
    process = subprocess.Popen(
        [*BRABO, "simulate", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"OPENROUTER_API_BASE=(\S+)", line):
                yield found[1]
                break
        else:
            raise RuntimeError("the simulated OpenRouter did not start")
    finally:
        process.terminate()
        process.communicate(timeout=10)
