"""The demo as a newcomer starts it: what it shows, when it says no, and that nothing stays behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from scripts.agent import Sandbox
from scripts.demo import Typed, shortened
from scripts.ledger import Budget, Charge, Row, disagreements
from scripts.own_brabo import StageFailedError, own_brabo

DEMO = [sys.executable, str(Path(__file__).parents[2] / "scripts" / "demo.py")]
KEY = "sk-or-of-the-demo-test-0123456789"
PATIENCE_S = 120

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the demo with its temporary folders below `tmp_path`, in a group of its own as a terminal would."""
    started: list[subprocess.Popen[str]] = []

    def start_demo(*options: str, **variables: str) -> subprocess.Popen[str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        process = subprocess.Popen(
            [*DEMO, *options],
            env={
                **kept,
                "TMPDIR": str(tmp_path),
                # What a developer has set for other work must not be used, nor written to.
                "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere",
                **variables,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )
        started.append(process)
        return process

    yield start_demo
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_service_out_of_reach_is_said_before_anything_is_made(start: Start) -> None:
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE="http://127.0.0.1:1/api")
    said = finish(process)

    assert process.returncode == 1
    assert said.strip().startswith(
        "This did not work: http://127.0.0.1:1/api/v1/models gave no list of models"
    )
    assert len(said.strip().splitlines()) == 1


def finish(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=PATIENCE_S)
    return printed


async def finish_real(process: subprocess.Popen[str], simulator: Simulator) -> str:
    """The same of a demo that takes this simulator for the real service: its records come after a first 404."""
    finishing = asyncio.create_task(asyncio.to_thread(finish, process))
    while not finishing.done() and not lookups(simulator):
        await asyncio.sleep(0.02)
    simulator.advance_clock(30_000)
    return await finishing


def lookups(simulator: Simulator) -> list[dict[str, Any]]:
    return [request for request in simulator.requests() if request["path"] == "/api/v1/generation"]


def left_behind(folder: Path) -> list[str]:
    """Files below the folder, and processes that name it."""
    found = [str(path) for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if os.fsencode(folder) in words:
            found.append(f"process {process.name}: {words[:80]!r}")
    return found


def ledger_lines(printed: str) -> list[str]:
    return re.findall(r"^ +\d+  (?:JSON|streamed) .*$", printed, re.MULTILINE)


def test_every_turn_is_shown_and_agrees_with_the_bill(start: Start, tmp_path: Path) -> None:
    process = start()
    printed = finish(process)

    rows = ledger_lines(printed)
    assert process.returncode == 0, printed
    assert len(rows) == len(re.findall(r"^ +turn \d+ ", printed, re.MULTILINE)) >= 6
    assert all(row.endswith("agrees") for row in rows)
    assert {row.split()[1] for row in rows} == {"JSON", "streamed"}
    for row in rows:
        micros, usd = int(row.split()[4]), Decimal(row.split()[5])
        assert abs(micros - usd * 1_000_000) <= Decimal("0.5")
    assert re.search(r"The rows are [0-9.]+ micro-USD (above|below) the bill", printed)
    total = sum(int(row.split()[4]) for row in rows)
    assert f"{total} of 50000 after" in printed
    assert "Everything agrees." in printed
    assert max(map(len, printed.splitlines())) <= 92
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("when", ["-- brabo init", "turn 2"])
def test_ctrl_c_leaves_nothing_behind(start: Start, tmp_path: Path, when: str) -> None:
    process = start()
    assert process.stdout is not None
    for line in process.stdout:
        if when in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    printed = finish(process)

    assert process.returncode == 130, printed
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert left_behind(tmp_path) == []


def test_sigterm_leaves_nothing_behind(start: Start, tmp_path: Path) -> None:
    process = start()
    assert process.stdout is not None
    for line in process.stdout:
        if "turn 1" in line:
            break
    process.terminate()
    finish(process)

    assert process.returncode == 128 + signal.SIGTERM
    assert left_behind(tmp_path) == []


def test_real_without_a_key_says_what_to_set(start: Start, tmp_path: Path) -> None:
    process = start("--real")
    printed = finish(process)

    assert process.returncode == 2
    assert "OPENROUTER_API_KEY" in printed
    assert len(printed.splitlines()) == 1
    assert left_behind(tmp_path) == []


async def test_real_asks_the_service_what_each_call_cost(
    start: Start, simulator: Simulator, tmp_path: Path
) -> None:
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE=simulator.base_url)
    printed = await finish_real(process, simulator)

    rows = ledger_lines(printed)
    assert process.returncode == 0, printed
    assert len(rows) == len(simulator.bill()["entries"]) >= 6
    assert all(row.endswith("agrees") for row in rows)
    assert len(lookups(simulator)) > len(rows)
    assert KEY not in printed
    assert left_behind(tmp_path) == []


async def test_real_stops_before_the_ceiling_could_be_passed(
    start: Start, simulator: Simulator, tmp_path: Path
) -> None:
    simulator.script({"times": None, "reply": {"text": "Done.", "cost": "0.018"}})
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE=simulator.base_url)
    printed = await finish_real(process, simulator)

    assert process.returncode == 1
    assert simulator.bill()["total"] == "0.036"
    assert "one more could pass the ceiling of 0.05 USD" in printed
    assert left_behind(tmp_path) == []


async def test_real_says_which_call_the_service_charged_otherwise(start: Start, simulator: Simulator) -> None:
    simulator.script({"reply": {"text": "Done.", "billed_cost": "0.001"}})
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE=simulator.base_url)
    printed = await finish_real(process, simulator)

    assert process.returncode == 1, printed
    assert [row.endswith("DISAGREES") for row in ledger_lines(printed)[:2]] == [True, False]
    assert "the bill 0.001 USD" in printed


def test_its_end_leaves_signals_as_they_were() -> None:
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in ending]
    with own_brabo():
        pass
    assert [signal.getsignal(number) for number in ending] == before


def test_a_stage_that_fails_shows_what_was_said(tmp_path: Path) -> None:
    with (
        own_brabo("ftp://nowhere") as brabo,
        pytest.raises(StageFailedError, match="OPENROUTER_API_BASE must be"),
    ):
        brabo.init(key=KEY)


ROW = Row(turn_id="t", generation_id="g", input_tokens=10, output_tokens=2, cost_micros=71)
CHARGE = Charge(Decimal("0.0000705"), 10, 2)


def test_rounds_half_up() -> None:
    assert [Charge(Decimal(usd), 0, 0).micros for usd in ("0.0000705", "0.0000704999", "0")] == [71, 70, 0]


@pytest.mark.parametrize(
    ("rows", "charges", "answered", "spent", "problem"),
    [
        ([ROW], {"g": CHARGE}, {"t": 71}, 71, None),
        ([ROW], {"g": Charge(Decimal("0.0000704"), 10, 2)}, {"t": 71}, 71, "bill 0.0000704 USD"),
        ([ROW], {"g": Charge(Decimal("0.0000705"), 11, 2)}, {"t": 71}, 71, "11 \\+ 2"),
        ([ROW], {}, {"t": 71}, 71, "knows no call g"),
        ([ROW], {"g": CHARGE, "h": CHARGE}, {"t": 71}, 71, "for h, which has no row"),
        ([ROW], {"g": CHARGE}, {"t": 70}, 71, "another cost than the answer"),
        ([ROW], {"g": CHARGE}, {"t": 71, "u": 1}, 71, "2 turns and 1 rows"),
        ([ROW], {"g": CHARGE}, {"t": 71}, 72, "budget went from 0 to 72"),
    ],
    ids=["agrees", "cost", "tokens", "no call", "no row", "answer", "turn without row", "budget"],
)
def test_whatever_does_not_agree_is_named(
    rows: list[Row], charges: dict[str, Charge], answered: dict[str, int], spent: int, problem: str | None
) -> None:
    found = disagreements(rows, charges, answered, Budget(100, 0), Budget(100, spent))

    assert len(found) == (problem is not None)
    assert problem is None or re.search(problem, found[0])


def test_tools_reach_nothing_outside_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    sandbox = Sandbox(folder)

    assert sandbox.run("write_file", {"path": "a", "content": "text"}) == "a written, 4 characters"
    assert sandbox.run("read_file", {"path": "a"}) == "text"
    assert sandbox.run("list_files", {}) == "a"
    assert sandbox.run("read_file", {"path": "../secret"}).startswith("error")
    assert sandbox.run("write_file", {"path": str(tmp_path / "secret"), "content": ""}).startswith("error")
    assert sandbox.run("read_file", {"path": "missing"}).startswith("error")
    assert sandbox.run("read_file", {}).startswith("error")
    assert (tmp_path / "secret").read_text() == "secret"


def test_text_that_comes_in_pieces_is_written_in_lines_that_fit(capsys: pytest.CaptureFixture[str]) -> None:
    typed = Typed("  says  ")
    for piece in ["Bom ", "dia, ", "mundo.\n", *(f"{number} " for number in range(60))]:
        typed(piece)
    typed.end()

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  says  Bom dia, mundo."
    assert max(map(len, lines)) <= 92
    assert "".join(lines[1:]).split() == [str(number) for number in range(60)]


def test_long_results_are_shown_on_one_line() -> None:
    assert shortened("a\nb\n", 20) == "a · b"
    assert shortened("x" * 30, 10) == f"{'x' * 9}…"
