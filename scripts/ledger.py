"""What the ledger says a conversation cost, beside what the provider says it charged."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import httpx
import psycopg
from psycopg.rows import class_row

DECISION_MODEL: Final = "typesafe/jev-1.13"
"""Under this name the tool router's calls are in the ledger."""
RECORD_PATIENCE_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Row:
    """One row of `token_usage`. A decision's `turn_id` is that of the chat whose menu was decided."""

    turn_id: str
    generation_id: str
    model: str
    input_tokens: int
    output_tokens: int
    cost_micros: int

    @property
    def is_decision(self) -> bool:
        """Of the tool router, and not of a chat."""
        return self.model == DECISION_MODEL


@dataclass(frozen=True, slots=True)
class Budget:
    """The project's budget, in micro-USD."""

    limit_micros: int
    spent_micros: int


@dataclass(frozen=True, slots=True)
class Charge:
    """One call on the provider's bill, exact. Tokens that it does not name are None."""

    usd: Decimal
    input_tokens: int | None
    output_tokens: int | None

    @property
    def micros(self) -> int:
        """Rounded half up, here and not by the code under test."""
        return int((self.usd * 1_000_000).to_integral_value(ROUND_HALF_UP))


def read_rows(database_url: str, session_id: str) -> list[Row]:
    """The session's rows, oldest first, of turns that were taken one after the other."""
    with psycopg.connect(database_url) as connection:
        found = (
            connection.cursor(row_factory=class_row(Row))
            .execute(
                "SELECT id::text AS turn_id, coalesce(generation_id, '') AS generation_id, model_name AS model,"
                " input_tokens, output_tokens, cost_micros"
                " FROM token_usage WHERE session_id = %s ORDER BY created_at, id",
                [session_id],
            )
            .fetchall()
        )
    return with_turns_of_decisions(found)


def with_turns_of_decisions(rows: Sequence[Row]) -> list[Row]:
    """A decision comes before its turn's chat, and has an id of its own in the ledger: here it gets the turn's."""
    told: list[Row] = []
    turn_id = ""
    for row in reversed(rows):
        if not row.is_decision:
            turn_id = row.turn_id
        told.append(replace(row, turn_id=turn_id))
    return told[::-1]


def read_budget(database_url: str, project_id: str) -> Budget:
    """The project's budget as it stands."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT limit_micros, spent_micros FROM budgets WHERE project_id = %s", [project_id]
        ).fetchone()
    assert row is not None, "brabo init makes a budget for the project"
    return Budget(*row)


def charges_on_the_bill(control_url: str) -> dict[str, Charge]:
    """Every call that the simulator took, by its generation id."""
    bill = httpx.get(f"{control_url}/_bill", trust_env=False).raise_for_status().json()
    return {
        entry["id"]: Charge(Decimal(entry["cost"]), entry["prompt_tokens"], entry["completion_tokens"])
        for entry in bill["entries"]
        if entry["status"] != "refused"
    }


def recorded_charges(client: httpx.Client, generation_ids: Iterable[str]) -> Iterator[tuple[str, Charge]]:
    """What the service recorded for each call, once it knows: it says 404 for a while after a call has ended.

    A call of which it knows nothing after 120 s in all is left out.
    """
    deadline_s = time.monotonic() + RECORD_PATIENCE_S
    for generation_id in generation_ids:
        pause_s = _FIRST_PAUSE_S
        while (charge := _recorded(client, generation_id)) is None and time.monotonic() < deadline_s:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if charge is not None:
            yield generation_id, charge


def _recorded(client: httpx.Client, generation_id: str) -> Charge | None:
    try:
        response = client.get("/v1/generation", params={"id": generation_id})
    except httpx.TransportError:
        return None
    if response.status_code != httpx.codes.OK:
        return None
    record: dict[str, Any] = json.loads(response.content, parse_float=Decimal)["data"]
    return Charge(
        usd=Decimal(record["total_cost"]),
        input_tokens=record["native_tokens_prompt"],
        output_tokens=record["native_tokens_completion"],
    )


def disagreements(
    rows: Sequence[Row],
    charges: Mapping[str, Charge],
    answered_micros: Mapping[str, int],
    decided_micros: Mapping[str, int],
    before: Budget,
    after: Budget,
) -> list[str]:
    """A sentence for everything that does not agree: rows with charges, answers and the budget, and back.

    `charges` are by generation id. By turn id: `answered_micros` is what the answers said of the chat, and
    `decided_micros` of the decision, where it cost something.
    """
    found = []
    for number, row in enumerate(rows, start=1):
        charge = charges.get(row.generation_id)
        if charge is None:
            found.append(f"Row {number}: the provider knows no call {row.generation_id or '(none named)'}.")
        elif charge.micros != row.cost_micros:
            found.append(f"Row {number} says {row.cost_micros} micro-USD and the bill {charge.usd:f} USD.")
        elif not _is_said(charge.input_tokens, row.input_tokens) or not _is_said(
            charge.output_tokens, row.output_tokens
        ):
            found.append(
                f"Row {number} says {row.input_tokens} + {row.output_tokens} tokens and the bill "
                f"{charge.input_tokens} + {charge.output_tokens}."
            )
        said_micros = (
            decided_micros.get(row.turn_id, 0) if row.is_decision else answered_micros.get(row.turn_id)
        )
        if said_micros != row.cost_micros:
            found.append(f"Row {number} says another cost than the answer of its turn, {row.turn_id}.")
    without_row = charges.keys() - {row.generation_id for row in rows}
    found += [
        f"The provider charged {charges[call].usd:f} USD for {call}, which has no row."
        for call in sorted(without_row)
    ]
    chats = sorted(row.turn_id for row in rows if not row.is_decision)
    if chats != sorted(answered_micros):
        found.append(f"There are {len(answered_micros)} turns and {len(chats)} rows of theirs.")
    decisions = [row.turn_id for row in rows if row.is_decision]
    if len(decisions) != len(set(decisions)) or not decided_micros.keys() <= set(decisions):
        found.append(
            f"There are {len(decided_micros)} decisions that cost something and {len(decisions)} rows of theirs."
        )
    total_micros = sum(row.cost_micros for row in rows)
    if after.spent_micros - before.spent_micros != total_micros:
        found.append(
            f"The budget went from {before.spent_micros} to {after.spent_micros} micro-USD, and the rows are "
            f"{total_micros} in sum."
        )
    return found


def _is_said(said: int | None, counted: int) -> bool:
    return said is None or said == counted
