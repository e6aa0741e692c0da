"""Lets an agent take metered turns through the api: what the tool router makes of each step's menu, and the ledger
beside the provider's bill, call by call.

Without options everything runs on this machine, against the simulated OpenRouter. With --real the turns go to the
service at OPENROUTER_API_BASE (the real one, unless set) with the key in OPENROUTER_API_KEY, for 0.05 USD at most.
Exit status: 0 everything agrees, 1 something does not or did not work, 2 no key, 130 interrupted.
"""

import argparse
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import httpx

# Of a script only its own folder is on the path; its neighbours are modules of the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.agent import TOOLS, Conversation, Sandbox, Turn, TurnRefusedError
from scripts.ledger import (
    DECISION_MODEL,
    Budget,
    Charge,
    Row,
    charges_on_the_bill,
    disagreements,
    read_budget,
    read_rows,
    recorded_charges,
)
from scripts.own_brabo import OwnBrabo, StageFailedError, leave_in_order_on_signals, own_brabo

REAL_BASE: Final = "https://openrouter.ai/api"
MODEL: Final = "openai/gpt-4o-mini"
"""Cheap, and its longest answer costs a fifth of the ceiling."""
CEILING_USD: Final = Decimal("0.05")
OWNER: Final = "owner@example.com"
LEAST_TURNS: Final = 6
"""With the tool router on."""
MOST_TURNS_PER_REQUEST: Final = 6
WIDTH: Final = 92

FILES: Final = {
    "notes.md": "The harbour opens at six. The crane needs new oil before Friday.\n",
    "todo.md": "- [x] call the harbour\n- [ ] order oil for the crane\n- [ ] book the crane for Monday\n",
}
REQUESTS: Final = (
    "List the files, read todo.md, and write the tasks that are open to open.md.",
    "Read notes.md and write one sentence about it to summary.md.",
    "Read summary.md and open.md and tell me which one is longer.",
)
REQUEST_WITHOUT_ROUTER: Final = "Count the words of notes.md and tell me how many there are."


def _says(text: str | Sequence[str], tool: str | None = None, **arguments: str) -> dict[str, Any]:
    calls = [] if tool is None else [{"name": tool, "arguments": arguments}]
    return {"path": "chat", "reply": {"text": text, "tool_calls": calls, "between_ms": 25}}


def _decides(choice: str, confidence: float) -> dict[str, Any]:
    return {"path": "decisions", "reply": {"choice": choice, "confidence": confidence}}


def _fails(fault: str) -> dict[str, Any]:
    return {"path": "decisions", "fault": fault}


RESERVED: Final = "responder_sem_ferramenta"
SCRIPTS: Final = [
    _decides("list_files", 0.93),
    _says("Let me see which files there are.", "list_files"),
    _decides("read_file", 0.88),
    _says(
        ["There is ", "a list of tasks; ", "I will read it ", "before I write ", "anything."],
        "read_file",
        path="todo.md",
    ),
    _decides("write_file", 0.97),
    _says(
        "Two tasks are open; I will write them to open.md.",
        "write_file",
        path="open.md",
        content="- order oil for the crane\n- book the crane for Monday\n",
    ),
    _decides(RESERVED, 0.81),
    _says(["Done: ", "open.md holds ", "the two tasks ", "that are ", "still open."]),
    _decides("read_file", 0.95),
    _says("I will read the notes first.", "read_file", path="notes.md"),
    _fails("unavailable"),
    _says(
        ["Now ", "the one sentence ", "about ", "the crane ", "and the harbour."],
        "write_file",
        path="summary.md",
        content="Before Friday the crane at the harbour needs new oil.\n",
    ),
    _fails("choice-outside"),
    _says("summary.md says in one sentence what the notes are about."),
    _says(["I will ", "count them."], "count_words", path="notes.md"),
    _says("notes.md has twelve words."),
]
"""What the simulated models answer: a run that looks alike on every machine, with a step of every kind."""


class Kind(StrEnum):
    """What became of a step's menu."""

    NARROWED = "narrowed"
    FIRST_STEP = "whole, for there is no previous tool"
    NO_TOOL = "whole, for Jev would have it answered in text"
    FELL_BACK = "whole, a fallback"
    ALL_THERE = "whole, for these are all the tools"
    NOT_ASKED = "whole; Jev was not asked, and the answer has no toolRouting"

    @classmethod
    def of(cls, turn: Turn) -> "Kind":
        """By the turn's answer."""
        routing = turn.routing
        if routing is None:
            return cls.NOT_ASKED
        if routing["motivoDaQueda"] is not None:
            return cls.FELL_BACK
        if routing["aplicado"]:
            return cls.NARROWED
        if routing["escolha"] == RESERVED:
            return cls.NO_TOOL
        return cls.ALL_THERE if routing["anterior"] in routing["menuAntes"] else cls.FIRST_STEP


@dataclass(frozen=True, slots=True)
class Menu:
    """The tools of a step: how many the router was asked about (None: it was not), and those the model was given."""

    asked_about: int | None
    given: Sequence[str]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="An agent takes metered turns; then the ledger against the bill."
    )
    parser.add_argument(
        "--real", action="store_true", help="against OPENROUTER_API_BASE, with OPENROUTER_API_KEY"
    )
    is_real = parser.parse_args(arguments).real
    key = os.environ.get("OPENROUTER_API_KEY", "").strip() if is_real else f"sk-or-{secrets.token_hex(8)}"
    if not key:
        print(
            "Set OPENROUTER_API_KEY to a key of OpenRouter: the turns cost 0.05 USD at most.", file=sys.stderr
        )
        return 2
    leave_in_order_on_signals()
    started_s = time.monotonic()
    try:
        problems = demonstrate(key, os.environ.get("OPENROUTER_API_BASE") or REAL_BASE if is_real else None)
    except (StageFailedError, TurnRefusedError, httpx.HTTPError) as error:
        print(f"\nThis did not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. Everything that was started has been ended and removed.", file=sys.stderr)
        return 130
    for problem in problems:
        print(f"   DISAGREES  {problem}")
    print(
        f"\n{'Not everything agrees.' if problems else 'Everything agrees.'} {time.monotonic() - started_s:.1f} s"
    )
    return 1 if problems else 0


def demonstrate(key: str, real_base: str | None) -> list[str]:
    """The whole show; a sentence for everything that is not as it should be."""
    if real_base is not None:
        check_the_way(real_base)
    with ExitStack() as stack:
        heading("A PostgreSQL of its own, in a temporary folder")
        brabo = stack.enter_context(own_brabo(real_base))
        received = None
        if real_base is None:
            heading("brabo simulate: an OpenRouter with prices of its own, that keeps a bill")
            control_url = brabo.simulate("--between-ms", "25")
            httpx.post(f"{control_url}/_script", json=SCRIPTS, trust_env=False).raise_for_status()
            received = Received(control_url)
            base = f"{control_url}/api"
            line(f"on {control_url}")
        else:
            heading("The real service")
            base = real_base
            line(f"{base}, for {CEILING_USD} USD at most")
        service = stack.enter_context(
            httpx.Client(base_url=base, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        )

        heading("brabo init: everything a first turn needs")
        ids = first_steps(brabo, key)
        before = read_budget(brabo.database_url, ids["project"])

        heading("brabo serve: the api")
        brabo.serve()
        line(f"on {brabo.api_url}, ready for turns")

        heading("An agent with five tools and a folder; JSON and streamed turns alternate")
        line("At each step Jev, a decision model, is asked which tool fits: the chat model gets that")
        line("one and the one called before, and the whole menu where that cannot be said.")
        client = stack.enter_context(
            httpx.Client(
                headers={"X-Brabo-Service-Token": brabo.service_token, "Content-Type": "application/json"},
                timeout=300,
                trust_env=False,
            )
        )
        session_url = f"{brabo.api_url}/internal/sessions/{ids['session']}"
        work = Work(
            conversation=Conversation(client, session_url, ids["project"]),
            sandbox=make_sandbox(brabo.folder),
            ceiling=Ceiling(service),
            menu_of=said_by_the_answer if received is None else received.menu,
        )
        problems = work.do_all(brabo, ids["workspace"])
        if received is not None:
            problems += unlike_what_was_received(work.steps)
        turns = [turn for turn, _ in work.steps]
        if any(turn.error for turn in turns):
            line(f"The last lines of brabo serve:\n{brabo.last_words()}")

        heading("The ledger against the provider's bill, call by call")
        rows = read_rows(brabo.database_url, ids["session"])
        after = read_budget(brabo.database_url, ids["project"])
        if received is not None:
            charges = charges_on_the_bill(received.control_url)
        else:
            line(f"asking the service what it recorded for {len(rows)} calls; that can take a minute")
            charges = dict(recorded_charges(service, [row.generation_id for row in rows]))
        show_ledger(turns, rows, charges)
        show_budget(before, after)
        answered_micros = {turn.turn_id: turn.cost_micros for turn in turns if turn.is_metered}
        decided_micros = {turn.turn_id: turn.router_cost_micros for turn in turns if turn.router_cost_micros}
        return problems + disagreements(rows, charges, answered_micros, decided_micros, before, after)


def check_the_way(base: str) -> None:
    """Before anything is made: the service has to answer. Raises StageFailedError."""
    try:
        httpx.get(f"{base}/v1/models", timeout=30).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise StageFailedError(
            f"{base}/v1/models gave no list of models ({reason}): check OPENROUTER_API_BASE, "
            "which ends in /api, and the way there."
        ) from None


def first_steps(brabo: OwnBrabo, key: str) -> dict[str, str]:
    """Workspace, project and session, as `brabo init` names them."""
    printed = brabo.init("--email", OWNER, "--model", MODEL, "--limit-usd", str(CEILING_USD), key=key)
    for change in printed.partition("\n\n")[0].splitlines():
        line(shortened(change, WIDTH - 3))
    return dict(re.findall(r"^(workspace|project|session) +([0-9a-f-]{36})$", printed, re.MULTILINE))


class Received:
    """What the simulated OpenRouter received, by its own word."""

    def __init__(self, control_url: str) -> None:
        self.control_url = control_url
        self._seen = 0

    def menu(self, _turn: Turn) -> Menu:
        """The tools that came with the calls since the last time."""
        found = (
            httpx.get(f"{self.control_url}/_requests", trust_env=False).raise_for_status().json()["requests"]
        )
        new, self._seen = found[self._seen :], len(found)
        options = [names for request in new for names in request["options"].values()]
        [tools] = [request["tools"] for request in new if request["path"].endswith("/chat/completions")] or [
            []
        ]
        # The reserved option is no tool.
        return Menu(len(options[0]) - 1 if options else None, tools)


def said_by_the_answer(turn: Turn) -> Menu:
    """For a service that does not tell what it received."""
    if turn.routing is None:
        return Menu(None, [tool["name"] for tool in TOOLS])
    return Menu(len(turn.routing["menuAntes"]), turn.routing["menuDepois"])


def unlike_what_was_received(steps: Sequence[tuple[Turn, Menu]]) -> list[str]:
    """A sentence for every answer that tells of another menu, and every kind of step that did not come."""
    found = [
        f"Turn {number} says otherwise of its menu than what the simulator received: {menu}."
        for number, (turn, menu) in enumerate(steps, start=1)
        if menu != said_by_the_answer(turn)
    ]
    missing = set(Kind) - {Kind.ALL_THERE} - {Kind.of(turn) for turn, _ in steps}
    return found + [f"There was no step of this kind: {kind}." for kind in sorted(missing)]


class Ceiling:
    """Counts what turns cost, decisions included, and says beforehand whether one more could cost too much."""

    def __init__(self, service: httpx.Client) -> None:
        offered = _offered(service, MODEL)
        self._usd_per_input_token = Decimal(offered["pricing"]["prompt"])
        self._longest_answer_usd = Decimal(offered["pricing"]["completion"]) * int(
            offered["top_provider"]["max_completion_tokens"] or offered["context_length"]
        )
        decisions = _offered(service, DECISION_MODEL, output_modalities="decisions")
        self._longest_decision_usd = Decimal(decisions["pricing"]["prompt"]) * int(
            decisions["context_length"]
        )
        self._dearest_usd = Decimal(0)
        self.spent_usd = Decimal(0)

    def allows(self, body: bytes) -> bool:
        """Whether this turn stays below the ceiling, were its answer and its decision the longest and every byte a
        token.

        A turn that cost more than such reckoning allows makes the next ones count as much.
        """
        reckoned_usd = (
            self._usd_per_input_token * len(body) + self._longest_answer_usd + self._longest_decision_usd
        )
        return self.spent_usd + max(reckoned_usd, self._dearest_usd) <= CEILING_USD

    def count(self, turn: Turn) -> None:
        cost_usd = Decimal(turn.cost_micros) / 1_000_000 + self._decision_usd(turn)
        self.spent_usd += cost_usd
        self._dearest_usd = max(self._dearest_usd, cost_usd)

    def _decision_usd(self, turn: Turn) -> Decimal:
        """One that was sent, and whose cost did not come, counts as the dearest."""
        if turn.routing is None or turn.routing["latenciaMs"] == 0:
            return Decimal(0)
        return Decimal(turn.router_cost_micros) / 1_000_000 or self._longest_decision_usd


def _offered(service: httpx.Client, name: str, **asked: str) -> dict[str, Any]:
    """The model in the service's list. Raises StageFailedError when it is not there."""
    listed = json.loads(service.get("/v1/models", params=asked).raise_for_status().content)["data"]
    found: dict[str, Any] | None = next((model for model in listed if model["id"] == name), None)
    if found is None:
        raise StageFailedError(f"the service does not offer {name} any more, so what it costs is not known.")
    return found


@dataclass(slots=True)
class Work:
    """The agent at work."""

    conversation: Conversation
    sandbox: Sandbox
    ceiling: Ceiling
    menu_of: Callable[[Turn], Menu]
    steps: list[tuple[Turn, Menu]] = field(default_factory=list)

    def do_all(self, brabo: OwnBrabo, workspace_id: str) -> list[str]:
        """Requests until there were enough turns, then one without the tool router; a sentence where it had to stop."""
        for request in REQUESTS:
            if stopped := self.do(request):
                return [stopped]
            if len(self.steps) >= LEAST_TURNS:
                break
        else:
            return [f"The model was done after {len(self.steps)} turns, fewer than {LEAST_TURNS}."]
        heading("The tool router off: what an owner sends, with a token of theirs")
        switch_off(brabo, workspace_id)
        first = len(self.steps)
        stopped = self.do(REQUEST_WITHOUT_ROUTER)
        found = [stopped] if stopped else []
        if not all(Kind.of(turn) is Kind.NOT_ASKED for turn, _ in self.steps[first:]):
            found.append("The tool router was asked although it is off.")
        return found

    def do(self, request: str) -> str | None:
        """Turns until the request is done; why that had to stop, if it had to."""
        line("")
        line(f"The user: {request}")
        self.conversation.ask(request)
        for _ in range(MOST_TURNS_PER_REQUEST):
            if not self.ceiling.allows(self.conversation.next_body()):
                return (
                    f"Stopped after {len(self.steps)} turns and {self.ceiling.spent_usd:f} USD: one more could pass "
                    f"the ceiling of {CEILING_USD} USD."
                )
            turn = self._take_turn()
            if turn.error:
                return f"Turn {len(self.steps)} ended with an error: {turn.error}"
            if not turn.calls:
                break
        return None

    def _take_turn(self) -> Turn:
        """One turn, shown as it happens."""
        number = len(self.steps) + 1
        is_streamed = number % 2 == 0
        line("")
        line(f"turn {number}  {'streamed' if is_streamed else 'JSON'}")
        typed = Typed("     says   ")
        turn = self.conversation.take_turn(
            streamed=is_streamed, on_text=typed, on_routing=lambda: line("  hears  tool_routing_started")
        )
        typed.end()
        menu = self.menu_of(turn)
        self.steps.append((turn, menu))
        self.ceiling.count(turn)
        show_menu(turn, menu)
        for name, arguments, result in self.conversation.run_tools(turn, self.sandbox):
            compact = json.dumps(arguments, ensure_ascii=False)
            line(f"  calls  {name} {shortened(compact, WIDTH - 13 - len(name))}")
            line(f"  gets   {shortened(result, WIDTH - 12)}")
        show_cost(turn)
        return turn


def switch_off(brabo: OwnBrabo, workspace_id: str) -> None:
    path = f"/workspaces/{workspace_id}/tool-router"
    answer = httpx.put(
        f"{brabo.api_url}{path}",
        json={"enabled": False},
        headers={"Authorization": f"Bearer {brabo.token(OWNER)}"},
        trust_env=False,
    ).raise_for_status()
    line(f'PUT {path} {{"enabled": false}}')
    line(f"{answer.status_code}, toolRouterEnabled is {json.dumps(answer.json()['toolRouterEnabled'])}")


def show_menu(turn: Turn, menu: Menu) -> None:
    """What was asked about, what the model was given, and why."""
    offered = len(TOOLS) if menu.asked_about is None else menu.asked_about
    kind = Kind.of(turn)
    names = f": {', '.join(menu.given)}" if kind is Kind.NARROWED else ""
    line(f"  menu   {offered} → {len(menu.given)} tools, {kind}{names}")
    routing = turn.routing
    if routing is None:
        return
    if kind is Kind.FELL_BACK:
        detail = f"{routing['motivoDaQueda']} ({routing['origemDaQueda']}): {routing['detalheDaQueda']}"
        line(f"  Jev    {shortened(detail, WIDTH - 12)}")
        return
    confidence = "" if routing["confianca"] is None else f", confidence {routing['confianca']:g}"
    previous = f", after {routing['anterior']}" if routing["anterior"] else ""
    line(f"  Jev    {routing['escolha']}{confidence}{previous}")


def show_cost(turn: Turn) -> None:
    usage = turn.answer["usage"]
    decision = f"{turn.router_cost_micros} micro-USD the decision, " if turn.routing else ""
    tokens = f"{usage['inputTokens']} tokens in, {usage['outputTokens']} out"
    line(f"  costs  {decision}{turn.cost_micros} micro-USD the chat ({tokens})")


class Typed:
    """Text that comes in pieces, written as it comes, in lines that fit."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._column = 0

    def __call__(self, text: str) -> None:
        for word in re.findall(r"\s+|\S+", text):
            if self._column == 0:
                self._write(self._label)
            if "\n" in word or self._column + len(word) > WIDTH:
                print()
                self._column = 0
                self._write(" " * len(self._label))
            if not ("\n" in word or (word.isspace() and self._column == len(self._label))):
                self._write(word)

    def end(self) -> None:
        if self._column:
            print()

    def _write(self, text: str) -> None:
        print(text, end="", flush=True)
        self._column += len(text)


def show_ledger(turns: Sequence[Turn], rows: Sequence[Row], charges: Mapping[str, Charge]) -> None:
    """Row by row and in sum."""
    numbers = {turn.turn_id: number for number, turn in enumerate(turns, start=1)}
    routes = {turn.turn_id: "streamed" if turn.is_streamed else "JSON" for turn in turns}
    columns = "{:>6}  {:>4}  {:<8}  {:>9}  {:>10}  {:>13}  {:>12}  {:>7}  {}"
    print(
        columns.format(
            "row", "turn", "call", "tokens in", "tokens out", "row micro-USD", "bill USD", "rounded", ""
        ).rstrip()
    )
    for number, row in enumerate(rows, start=1):
        charge = charges.get(row.generation_id)
        agrees = charge is not None and charge.micros == row.cost_micros
        print(
            columns.format(
                number,
                numbers.get(row.turn_id, "?"),
                "decision" if row.is_decision else routes.get(row.turn_id, "?"),
                row.input_tokens,
                row.output_tokens,
                row.cost_micros,
                f"{charge.usd:f}" if charge else "unknown",
                charge.micros if charge else "unknown",
                "agrees" if agrees else "DISAGREES",
            )
        )
    total_micros = sum(row.cost_micros for row in rows)
    decided_micros = sum(row.cost_micros for row in rows if row.is_decision)
    billed_usd = sum((charge.usd for charge in charges.values()), Decimal(0))
    difference = (total_micros - billed_usd * 1_000_000).normalize()
    print(
        columns.format(
            "sum", "", "", sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows),
            total_micros, f"{billed_usd.normalize():f}", "", "",
        ).rstrip()
    )  # fmt: skip
    where = "above" if difference >= 0 else "below"
    line(f"Of the {total_micros} micro-USD the decisions are {decided_micros}, the chats the rest.")
    line(f"The rows are {abs(difference):f} micro-USD {where} the bill: rounding moves a row by 0.5 at most.")


def show_budget(before: Budget, after: Budget) -> None:
    line("")
    line(f"The project's budget: {before.spent_micros} of {before.limit_micros} micro-USD spent before,")
    line(f"{after.spent_micros} of {after.limit_micros} after.")


def make_sandbox(folder: Path) -> Sandbox:
    sandbox = folder / "sandbox"
    sandbox.mkdir()
    for name, text in FILES.items():
        (sandbox / name).write_text(text, encoding="utf-8")
    return Sandbox(sandbox)


def heading(text: str) -> None:
    print(f"\n-- {text}", flush=True)


def line(text: str) -> None:
    print(f"   {text}".rstrip(), flush=True)


def shortened(text: str, length: int) -> str:
    """On one line, and no longer than that."""
    one_line = " · ".join(text.split("\n")).rstrip(" ·")
    return one_line if len(one_line) <= length else f"{one_line[: length - 1]}…"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
