"""The README's figures are those of the last measurement."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bench.results import keep
from scripts.figures import BEGIN, END, main, with_figures

RESULTS: dict[str, Any] = {
    "date": "2026-11-30",
    "python": "3.11.7",
    "cores": 2,
    "bare_call_cpu_ms": 0.03,
    "pieces": 20,
    "json_turn": {
        "cpu_ms": 0.912,
        "cpu_ratio": 30.4,
        "latency_ms": 2.5,
        "direct_latency_ms": 0.5,
        "added_latency_ms": 2.0,
    },
    "streamed_turn": {
        "cpu_ms": 1.234,
        "cpu_ratio": 41.1,
        "latency_ms": 3.5,
        "direct_latency_ms": 0.5,
        "added_latency_ms": 3.0,
    },
    "paced": {
        "streams": 128,
        "pieces": 60,
        "offered_per_s": 185.507,
        "reached_per_s": 170.2,
        "ratio": 0.917,
        "direct_ratio": 0.99,
        "errors": 0,
    },
}
ROUTER = {
    "date": "2026-12-01",
    "python": "3.11.7",
    "cores": 2,
    "decision_ms": 300,
    "pairs": 50,
    "added_ms": 303.4,
    "beyond_decision_ms": 3.4,
    "cpu_off_ms": 2.801,
    "cpu_on_ms": 3.702,
    "cpu_added_ms": 0.904,
    "cpu_added_ratio": 27.4,
    "menu_before": 5,
    "menu_after": 2,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bench").mkdir()
    write_results(tmp_path, RESULTS)
    (tmp_path / "README.md").write_text(f"# Title\n\n{BEGIN}\n{END}\n\nThe rest.\n")
    return tmp_path


def write_results(root: Path, results: dict[str, Any]) -> None:
    (root / "bench" / "results.json").write_text(json.dumps(results))


def test_puts_the_figures_between_the_marks_and_leaves_the_rest(root: Path) -> None:
    assert main(["--check"], root) == 1
    assert main([], root) == 0

    text = (root / "README.md").read_text()
    assert main(["--check"], root) == 0
    assert text.startswith(f"# Title\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nThe rest.\n")
    assert "| processor time of the api | 0.91 ms | 1.23 ms |" in text
    assert "186 turns a second offered, 170 reached (92%), 0 errors" in text
    assert "2026-11-30" in text


def test_the_routers_figures_are_there_once_they_were_measured(root: Path) -> None:
    main([], root)
    assert "router" not in (root / "README.md").read_text()
    write_results(root, {**RESULTS, "router": ROUTER})

    assert main(["--check"], root) == 1
    assert main([], root) == 0

    text = (root / "README.md").read_text()
    assert "A tool router that takes 300 ms adds 303 ms to a turn (median of 50 pairs" in text
    assert (
        "0.90 ms of the api's processor time more (27 bare HTTP calls): 3.70 ms a turn, and 2.80 ms" in text
    )
    assert "ms without it." in text
    assert "`make bench-router` on 2026-12-01" in text


def test_one_measurement_leaves_the_figures_of_the_other(root: Path) -> None:
    results = root / "bench" / "results.json"

    keep({"router": {**ROUTER, "added_ms": 303.40001}}, results)
    keep({"json_turn": {"cpu_ms": 1.23456}}, results)

    assert json.loads(results.read_text()) == {**RESULTS, "json_turn": {"cpu_ms": 1.235}, "router": ROUTER}


def test_the_first_measurement_makes_the_file(tmp_path: Path) -> None:
    keep({"router": ROUTER}, tmp_path / "results.json")

    assert json.loads((tmp_path / "results.json").read_text()) == {"router": ROUTER}


def test_putting_them_again_changes_nothing(root: Path) -> None:
    main([], root)
    once = (root / "README.md").read_text()

    assert main([], root) == 0
    assert (root / "README.md").read_text() == once


def test_the_check_writes_nothing_and_fails_for_another_measurement(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([], root)
    before = (root / "README.md").read_text()
    other = copy.deepcopy(RESULTS)
    other["json_turn"]["cpu_ms"] = 0.922
    write_results(root, other)

    assert main(["--check"], root) == 1
    assert (root / "README.md").read_text() == before
    assert "make figures" in capsys.readouterr().err


def test_without_a_measurement_it_says_how_to_make_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "bench" / "results.json").unlink()

    assert main(["--check"], root) == 1
    assert "make bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["no marks", BEGIN, f"{END} {BEGIN}", f"{BEGIN} {END} {END}", f"{BEGIN} {BEGIN} {END}"],
    ids=["none", "one", "in the wrong order", "two ends", "two beginnings"],
)
def test_a_readme_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        with_figures(text, "figures")
