"""Lets an agent take metered turns through the api, and holds the ledger against the provider's bill, call by call.

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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Final

import httpx

# Of a script only its own folder is on the path; its neighbours are modules of the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.agent import Conversation, Sandbox, Turn, TurnRefusedError
from scripts.ledger import (
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
LEAST_TURNS: Final = 6
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
SCRIPTS: Final = [
    {"reply": {"between_ms": 25, **reply}}
    for reply in (
        {
            "text": "Let me see which files there are.",
            "tool_calls": [{"name": "list_files", "arguments": {}}],
        },
        {
            "text": ["There is ", "a list of tasks; ", "I will read it ", "before I write ", "anything."],
            "tool_calls": [{"name": "read_file", "arguments": {"path": "todo.md"}}],
        },
        {
            "text": "Two tasks are open; I will write them to open.md.",
            "tool_calls": [
                {
                    "name": "write_file",
                    "arguments": {
                        "path": "open.md",
                        "content": "- order oil for the crane\n- book the crane for Monday\n",
                    },
                }
            ],
        },
        {"text": ["Done: ", "open.md holds ", "the two tasks ", "that are ", "still open."]},
        {
            "text": "I will read the notes first.",
            "tool_calls": [{"name": "read_file", "arguments": {"path": "notes.md"}}],
        },
        {
            "text": ["Now ", "the one sentence ", "about ", "the crane ", "and the harbour."],
            "tool_calls": [
                {
                    "name": "write_file",
                    "arguments": {
                        "path": "summary.md",
                        "content": "Before Friday the crane at the harbour needs new oil.\n",
                    },
                }
            ],
        },
        {"text": "summary.md says in one sentence what the notes are about."},
    )
]
"""What the simulated model answers: a run that looks alike on every machine."""


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
        control_url = None
        if real_base is None:
            heading("brabo simulate: an OpenRouter with prices of its own, that keeps a bill")
            control_url = brabo.simulate("--between-ms", "25")
            httpx.post(f"{control_url}/_script", json=SCRIPTS, trust_env=False).raise_for_status()
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
        project_id, session_id = first_steps(brabo, key)
        before = read_budget(brabo.database_url, project_id)

        heading("brabo serve: the api")
        brabo.serve()
        line(f"on {brabo.api_url}, ready for turns")

        heading("An agent with three tools and a folder; JSON and streamed turns alternate")
        client = stack.enter_context(
            httpx.Client(
                headers={"X-Brabo-Service-Token": brabo.service_token, "Content-Type": "application/json"},
                timeout=300,
                trust_env=False,
            )
        )
        conversation = Conversation(client, f"{brabo.api_url}/internal/sessions/{session_id}", project_id)
        ceiling = Ceiling(service)
        turns, problems = work(conversation, make_sandbox(brabo.folder), ceiling)
        if any(turn.error for turn in turns):
            line(f"The last lines of brabo serve:\n{brabo.last_words()}")

        heading("The ledger against the provider's bill, call by call")
        rows = read_rows(brabo.database_url, session_id)
        after = read_budget(brabo.database_url, project_id)
        if control_url is not None:
            charges = charges_on_the_bill(control_url)
        else:
            line(f"asking the service what it recorded for {len(rows)} calls; that can take a minute")
            charges = dict(recorded_charges(service, [row.generation_id for row in rows]))
        show_ledger(turns, rows, charges)
        show_budget(before, after)
        answered_micros = {turn.turn_id: turn.cost_micros for turn in turns if turn.is_metered}
        return problems + disagreements(rows, charges, answered_micros, before, after)


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


def first_steps(brabo: OwnBrabo, key: str) -> tuple[str, str]:
    """Project and session, as `brabo init` names them."""
    printed = brabo.init("--model", MODEL, "--limit-usd", str(CEILING_USD), key=key)
    for change in printed.partition("\n\n")[0].splitlines():
        line(shortened(change, WIDTH - 3))
    found = dict(re.findall(r"^(project|session) +([0-9a-f-]{36})$", printed, re.MULTILINE))
    return found["project"], found["session"]


class Ceiling:
    """Counts what turns cost, and says beforehand whether one more could cost too much."""

    def __init__(self, service: httpx.Client) -> None:
        models = json.loads(service.get("/v1/models").raise_for_status().content)["data"]
        offered = next(model for model in models if model["id"] == MODEL)
        self._usd_per_input_token = Decimal(offered["pricing"]["prompt"])
        self._longest_answer_usd = Decimal(offered["pricing"]["completion"]) * int(
            offered["top_provider"]["max_completion_tokens"] or offered["context_length"]
        )
        self._dearest_usd = Decimal(0)
        self.spent_usd = Decimal(0)

    def allows(self, body: bytes) -> bool:
        """Whether this turn stays below the ceiling, were its answer the longest and every byte a token.

        A turn that cost more than such reckoning allows makes the next ones count as much.
        """
        reckoned_usd = self._usd_per_input_token * len(body) + self._longest_answer_usd
        return self.spent_usd + max(reckoned_usd, self._dearest_usd) <= CEILING_USD

    def count(self, turn: Turn) -> None:
        cost_usd = Decimal(turn.cost_micros) / 1_000_000
        self.spent_usd += cost_usd
        self._dearest_usd = max(self._dearest_usd, cost_usd)


def work(conversation: Conversation, sandbox: Sandbox, ceiling: Ceiling) -> tuple[list[Turn], list[str]]:
    """Do the requests until there were enough turns: the turns, and a sentence when there could not be enough."""
    turns: list[Turn] = []
    for request in REQUESTS:
        if len(turns) >= LEAST_TURNS:
            break
        line("")
        line(f"The user: {request}")
        conversation.ask(request)
        for _ in range(MOST_TURNS_PER_REQUEST):
            if not ceiling.allows(conversation.next_body()):
                stopped = f"Stopped after {len(turns)} turns and {ceiling.spent_usd:f} USD: "
                return turns, [f"{stopped}one more could pass the ceiling of {CEILING_USD} USD."]
            turn = take_turn(conversation, sandbox, number=len(turns) + 1)
            turns.append(turn)
            ceiling.count(turn)
            if turn.error:
                return turns, [f"Turn {len(turns)} ended with an error: {turn.error}"]
            if not turn.calls:
                break
    enough = len(turns) >= LEAST_TURNS
    return turns, [] if enough else [
        f"The model was done after {len(turns)} turns, fewer than {LEAST_TURNS}."
    ]


def take_turn(conversation: Conversation, sandbox: Sandbox, *, number: int) -> Turn:
    """One turn, shown as it happens."""
    is_streamed = number % 2 == 0
    line("")
    line(f"turn {number}  {'streamed' if is_streamed else 'JSON'}")
    typed = Typed("     says   ")
    turn = conversation.take_turn(streamed=is_streamed, on_text=typed)
    typed.end()
    for name, arguments, result in conversation.run_tools(turn, sandbox):
        compact = json.dumps(arguments, ensure_ascii=False)
        line(f"  calls  {name} {shortened(compact, WIDTH - 13 - len(name))}")
        line(f"  gets   {shortened(result, WIDTH - 12)}")
    usage = turn.answer["usage"]
    tokens = f"{usage['inputTokens']} tokens in, {usage['outputTokens']} out"
    line(f"  costs  {tokens}, {usage['costMicros']} micro-USD")
    return turn


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
    routes = {turn.turn_id: "streamed" if turn.is_streamed else "JSON" for turn in turns}
    columns = "{:>6}  {:<8}  {:>9}  {:>10}  {:>13}  {:>14}  {:>8}  {}"
    print(
        columns.format(
            "row", "route", "tokens in", "tokens out", "row micro-USD", "bill USD", "rounded", ""
        ).rstrip()
    )
    for number, row in enumerate(rows, start=1):
        charge = charges.get(row.generation_id)
        agrees = charge is not None and charge.micros == row.cost_micros
        print(
            columns.format(
                number,
                routes.get(row.turn_id, "?"),
                row.input_tokens,
                row.output_tokens,
                row.cost_micros,
                f"{charge.usd:f}" if charge else "unknown",
                charge.micros if charge else "unknown",
                "agrees" if agrees else "DISAGREES",
            )
        )
    total_micros = sum(row.cost_micros for row in rows)
    billed_usd = sum((charge.usd for charge in charges.values()), Decimal(0))
    difference = (total_micros - billed_usd * 1_000_000).normalize()
    print(
        columns.format(
            "sum", "", sum(row.input_tokens for row in rows), sum(row.output_tokens for row in rows),
            total_micros, f"{billed_usd.normalize():f}", "", "",
        ).rstrip()
    )  # fmt: skip
    where = "above" if difference >= 0 else "below"
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
