"""The demo as a newcomer starts it: what it shows, when it says no, and that nothing stays behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest

from entrypoints.simulator import Simulator
from scripts.agent import Sandbox, Turn
from scripts.demo import Ceiling, Menu, Typed, shortened, unlike_what_was_received
from scripts.ledger import Budget, Charge, Row, disagreements, with_turns_of_decisions
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
    return re.findall(r"^ +\d+ +\d+  (?:JSON|streamed|decision) .*$", printed, re.MULTILINE)


def steps(printed: str) -> list[str]:
    """What is shown of each turn."""
    return re.split(r"^ +turn \d+ ", printed.partition("-- The ledger")[0], flags=re.MULTILINE)[1:]


def test_every_step_is_shown_and_agrees_with_the_bill(start: Start, tmp_path: Path) -> None:
    process = start()
    printed = finish(process)

    assert process.returncode == 0, printed
    shown = steps(printed)
    menus = [re.findall(r"menu +(\d) → (\d) tools, (.*)$", step, re.MULTILINE) for step in shown]
    assert menus == [
        [("5", "5", "whole, for there is no previous tool")],
        [("5", "2", "narrowed: list_files, read_file")],
        [("5", "2", "narrowed: read_file, write_file")],
        [("5", "5", "whole, for Jev would have it answered in text")],
        [("5", "5", "whole, for there is no previous tool")],
        [("5", "5", "whole, a fallback")],
        [("5", "5", "whole, a fallback")],
        [("5", "5", "whole; Jev was not asked, and the answer has no toolRouting")],
        [("5", "5", "whole; Jev was not asked, and the answer has no toolRouting")],
    ]
    jev = [re.findall(r"Jev +(.*)$", step, re.MULTILINE) for step in shown[:7]]
    assert jev[1] == ["read_file, confidence 0.88, after list_files"]
    assert jev[5:] == [
        ["erro_http (infra): HTTP 503"],
        ["escolha_fora_das_opcoes (modelo): a escolha não é nenhuma das 6 opções"],
    ]
    assert [("tool_routing_started" in step) for step in shown] == [
        number % 2 == 0 and number < 8 for number in range(1, 10)
    ]
    assert "toolRouterEnabled is false" in printed

    rows = ledger_lines(printed)
    assert all(row.endswith("agrees") for row in rows)
    calls = [(int(row.split()[1]), row.split()[2]) for row in rows]
    decided = {1, 2, 3, 4, 5, 7}  # the sixth was refused, which is free
    assert calls == [
        call
        for turn in range(1, 10)
        for call in [(turn, "decision")] * (turn in decided) + [(turn, "JSON" if turn % 2 else "streamed")]
    ]
    for row in rows:
        micros, usd = int(row.split()[5]), Decimal(row.split()[6])
        assert abs(micros - usd * 1_000_000) <= Decimal("0.5")
    costs = [re.search(r"costs +(?:(\d+) micro-USD the decision, )?(\d+) micro-USD", step) for step in shown]
    total = sum(int(row.split()[5]) for row in rows)
    assert sum(int(cost) for found in costs if found for cost in found.groups("0")) == total
    assert re.search(r"The rows are [0-9.]+ micro-USD (above|below) the bill", printed)
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
    assert len(rows) == len(simulator.bill()["entries"])
    assert len(steps(printed)) >= 7
    assert any(" decision " in row for row in rows)
    assert all(row.endswith("agrees") for row in rows)
    assert len(lookups(simulator)) > len(rows)
    assert steps(printed)[-1].count("Jev was not asked") == 1
    assert max(map(len, printed.splitlines())) <= 92
    assert KEY not in printed
    assert left_behind(tmp_path) == []


async def test_real_stops_before_the_ceiling_could_be_passed(
    start: Start, simulator: Simulator, tmp_path: Path
) -> None:
    simulator.script({"times": None, "reply": {"text": "Done.", "cost": "0.012"}})
    simulator.script({"times": None, "path": "decisions", "reply": {"cost": "0.006"}})
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE=simulator.base_url)
    printed = await finish_real(process, simulator)

    assert process.returncode == 1
    assert simulator.bill()["total"] == "0.036"
    assert len(ledger_lines(printed)) == 4
    assert "one more could pass the ceiling of 0.05 USD" in printed
    assert left_behind(tmp_path) == []


async def test_real_says_which_call_the_service_charged_otherwise(start: Start, simulator: Simulator) -> None:
    simulator.script({"reply": {"text": "Done.", "billed_cost": "0.001"}})
    process = start("--real", OPENROUTER_API_KEY=KEY, OPENROUTER_API_BASE=simulator.base_url)
    printed = await finish_real(process, simulator)

    assert process.returncode == 1, printed
    chats = [row for row in ledger_lines(printed) if " decision " not in row]
    assert [row.endswith("DISAGREES") for row in chats[:2]] == [True, False]
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


JEV = "typesafe/jev-1.13"
ROW = Row(turn_id="t", generation_id="g", model="m", input_tokens=10, output_tokens=2, cost_micros=71)
CHARGE = Charge(Decimal("0.0000705"), 10, 2)
DECISION = Row(turn_id="t", generation_id="d", model=JEV, input_tokens=500, output_tokens=26, cost_micros=21)
BILL = {"g": CHARGE, "d": Charge(Decimal("0.000021"), 500, 26)}


def test_rounds_half_up() -> None:
    assert [Charge(Decimal(usd), 0, 0).micros for usd in ("0.0000705", "0.0000704999", "0")] == [71, 70, 0]


@pytest.mark.parametrize(
    ("rows", "charges", "answered", "spent", "problem"),
    [
        ([ROW], {"g": CHARGE}, {"t": 71}, 71, None),
        ([ROW], {"g": Charge(Decimal("0.0000705"), None, None)}, {"t": 71}, 71, None),
        ([ROW], {"g": Charge(Decimal("0.0000704"), 10, 2)}, {"t": 71}, 71, "bill 0.0000704 USD"),
        ([ROW], {"g": Charge(Decimal("0.0000705"), 11, 2)}, {"t": 71}, 71, "11 \\+ 2"),
        ([ROW], {}, {"t": 71}, 71, "knows no call g"),
        ([ROW], {"g": CHARGE, "h": CHARGE}, {"t": 71}, 71, "for h, which has no row"),
        ([ROW], {"g": CHARGE}, {"t": 70}, 71, "another cost than the answer"),
        ([ROW], {"g": CHARGE}, {"t": 71, "u": 1}, 71, "2 turns and 1 rows"),
        ([ROW], {"g": CHARGE}, {"t": 71}, 72, "budget went from 0 to 72"),
    ],
    ids=[
        "agrees",
        "tokens unsaid",
        "cost",
        "tokens",
        "no call",
        "no row",
        "answer",
        "no row of a turn",
        "budget",
    ],
)
def test_whatever_does_not_agree_is_named(
    rows: list[Row], charges: dict[str, Charge], answered: dict[str, int], spent: int, problem: str | None
) -> None:
    found = disagreements(rows, charges, answered, {}, Budget(100, 0), Budget(100, spent))

    assert len(found) == (problem is not None)
    assert problem is None or re.search(problem, found[0])


@pytest.mark.parametrize(
    ("rows", "decided", "problem"),
    [
        ([DECISION, ROW], {"t": 21}, None),
        ([replace(DECISION, cost_micros=20), ROW], {"t": 20}, "says 20 micro-USD and the bill 0.000021 USD"),
        ([DECISION, ROW], {"t": 20}, "Row 1 says another cost than the answer"),
        ([DECISION, ROW], {"t": 21, "u": 21}, "2 decisions that cost something and 1 rows"),
        ([DECISION, DECISION, ROW], {"t": 21}, "1 decisions that cost something and 2 rows"),
        ([ROW], {"t": 21}, "for d, which has no row"),
    ],
    ids=["agrees", "bill", "answer", "no row", "two rows", "no row for a charge"],
)
def test_so_is_a_decision_that_does_not_agree(
    rows: list[Row], decided: dict[str, int], problem: str | None
) -> None:
    total = sum(row.cost_micros for row in rows)

    found = disagreements(rows, BILL, {"t": 71}, decided, Budget(100, 0), Budget(100, total))

    assert bool(found) == (problem is not None)
    assert problem is None or re.search(problem, " ".join(found))


def test_a_decision_belongs_to_the_chat_after_it() -> None:
    rows = [
        replace(DECISION, turn_id="own"),
        ROW,
        replace(ROW, turn_id="u"),
        replace(DECISION, turn_id="own"),
    ]

    assert [row.turn_id for row in with_turns_of_decisions(rows)] == ["t", "t", "u", ""]


def test_a_decision_whose_cost_did_not_come_counts_as_the_dearest() -> None:
    routing = {"latenciaMs": 2000, "custoMicros": 0}
    usage = {"inputTokens": 1, "outputTokens": 1, "costMicros": 100, "estimated": False}
    with httpx.Client(base_url="http://service", transport=httpx.MockTransport(models)) as service:
        ceiling = Ceiling(service)
    ceiling.count(Turn(is_streamed=False, answer={"usage": usage, "toolRouting": routing}))
    ceiling.count(
        Turn(is_streamed=False, answer={"usage": usage, "toolRouting": {**routing, "latenciaMs": 0}})
    )
    ceiling.count(
        Turn(is_streamed=False, answer={"usage": usage, "toolRouting": {**routing, "custoMicros": 5}})
    )
    ceiling.count(Turn(is_streamed=False, answer={"usage": usage}))

    assert ceiling.spent_usd == Decimal("0.000405") + 1000 * Decimal("0.00000004")


def models(request: httpx.Request) -> httpx.Response:
    is_decisions = "output_modalities=decisions" in str(request.url)
    model = {
        "id": JEV if is_decisions else "openai/gpt-4o-mini",
        "pricing": {"prompt": "0.00000004", "completion": "0"},
        "context_length": 1000,
        "top_provider": {"max_completion_tokens": None},
    }
    return httpx.Response(200, json={"data": [model]})


def test_tools_reach_nothing_outside_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "sandbox"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    sandbox = Sandbox(folder)

    assert sandbox.run("write_file", {"path": "a", "content": "text"}) == "a written, 4 characters"
    assert sandbox.run("read_file", {"path": "a"}) == "text"
    assert sandbox.run("list_files", {}) == "a"
    assert sandbox.run("append_file", {"path": "a", "content": " more"}) == "5 characters added to a"
    assert sandbox.run("count_words", {"path": "a"}) == "2 words"
    assert sandbox.run("read_file", {"path": "../secret"}).startswith("error")
    for tool in ("write_file", "append_file"):
        assert sandbox.run(tool, {"path": str(tmp_path / "secret"), "content": "x"}).startswith("error")
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


def test_an_answer_that_tells_of_another_menu_is_named() -> None:
    routing = {
        "menuAntes": ["a", "b", "c"],
        "menuDepois": ["a", "b"],
        "motivoDaQueda": None,
        "aplicado": True,
    }
    narrowed = Turn(is_streamed=False, answer={"toolRouting": routing})

    def found(menu: Menu) -> list[str]:
        return [problem for problem in unlike_what_was_received([(narrowed, menu)]) if "Turn 1" in problem]

    assert found(Menu(3, ["a", "b"])) == []
    for menu in (Menu(3, ["a", "b", "c"]), Menu(2, ["a", "b"]), Menu(None, ["a", "b"])):
        assert len(found(menu)) == 1
    assert (
        len(unlike_what_was_received([(narrowed, Menu(3, ["a", "b"]))])) == 4
    )  # the kinds that did not come
