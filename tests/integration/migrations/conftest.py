import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

PROCESS = """
import sys
from adapters.postgres.migrate import upgrade
print("ready", flush=True)
for line in sys.stdin:
    print("applied", *upgrade(line.strip()).applied, flush=True)
"""


class MigratingProcesses:
    """Processes that each stand ready to migrate; started once, since starting takes longer than migrating."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        assert self._answers() == [["ready"]] * len(processes)

    def upgrade(self, database_url: str) -> list[list[str]]:
        """Let all of them upgrade this database at one moment; what each of them applied, sorted."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{database_url}\n")
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.flush()
        return sorted(answer[1:] for answer in self._answers())

    def _answers(self) -> list[list[str]]:
        answers: list[list[str]] = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "a migrating process died; its error is above"
            answers.append(line.split())
        return answers


@pytest.fixture(scope="session")
def five_processes() -> Iterator[MigratingProcesses]:
    with ExitStack() as stack:
        processes = []
        for _ in range(5):
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        yield MigratingProcesses(processes)
