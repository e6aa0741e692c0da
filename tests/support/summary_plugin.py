"""Lines that tests have for whoever reads the end of a run, from whichever process they ran in."""

from collections.abc import Callable

import pytest

_LINE = "line of the summary"
_lines: list[str] = []


@pytest.fixture
def summarise(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Says a line at the end of the run."""
    return lambda line: request.node.user_properties.append((_LINE, line))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "teardown":
        _lines.extend(str(line) for name, line in report.user_properties if name == _LINE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _lines:
        terminalreporter.write_line(line)
