"""Says at the end of a run how many recordings were read, and fails a whole run that left out one of its own."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.recordings import RECORDINGS

_READ = "recordings_read"


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker(session.config):
        session.config.workeroutput[_READ] = list(RECORDINGS.read())  # type: ignore[attr-defined]  # by pytest-xdist
    elif (
        session.exitstatus == pytest.ExitCode.OK and _ran_whole_suite(session.config) and RECORDINGS.skipped()
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    RECORDINGS.note_read(node.workeroutput.get(_READ, ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(RECORDINGS.summary())
    if _ran_whole_suite(terminalreporter.config):
        for path in RECORDINGS.skipped():
            terminalreporter.write_line(f"recordings: {path} is there and no test read it", red=True)


def _is_worker(config: pytest.Config) -> bool:
    """One of several processes that run tests for another, which alone sees all of them."""
    return hasattr(config, "workerinput")


def _ran_whole_suite(config: pytest.Config) -> bool:
    tests = Path(__file__).parents[1]
    roots = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    is_deselecting = bool(reporter and reporter.stats.get("deselected"))
    return bool(roots & {tests, tests.parent}) and not is_deselecting and not config.option.collectonly
