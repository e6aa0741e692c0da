"""Says at the end of a run how many recordings were read, and fails a whole run that left out one of its own."""

from pathlib import Path

import pytest

from tests.support.recordings import RECORDINGS


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK and _ran_whole_suite(session.config) and RECORDINGS.skipped():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(RECORDINGS.summary())
    if _ran_whole_suite(terminalreporter.config):
        for path in RECORDINGS.skipped():
            terminalreporter.write_line(f"recordings: {path} is there and no test read it", red=True)


def _ran_whole_suite(config: pytest.Config) -> bool:
    tests = Path(__file__).parents[1]
    roots = {Path(config.invocation_params.dir, argument).resolve() for argument in config.args}
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    is_deselecting = bool(reporter and reporter.stats.get("deselected"))
    return bool(roots & {tests, tests.parent}) and not is_deselecting and not config.option.collectonly
