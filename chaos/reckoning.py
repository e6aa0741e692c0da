"""The provider's bill against our books, call by call, and the other way round."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

_DECISIONS = "decisions"


@dataclass(slots=True)
class Reckoning:
    """What came out; `wrong` is empty when the books agree with the bill."""

    equal: list[str] = field(default_factory=list)
    corrected: list[str] = field(default_factory=list)
    unattributable: dict[str, str] = field(default_factory=dict)
    """Each with its explanation."""
    gone: list[str] = field(default_factory=list)
    """Estimates that went with their session before the truth was known."""
    wrong: list[str] = field(default_factory=list)
    billed_micros: Counter[str] = field(default_factory=Counter)
    booked_micros: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """What is printed of it."""
        lines = []
        for name, calls in (
            ("equal", self.equal),
            ("corrected", self.corrected),
            ("unattributable", list(self.unattributable)),
            ("gone with their session", self.gone),
        ):
            lines.append(
                f"{name:<24}{len(calls):>6} calls, billed {self.billed_micros[name]:>9} micro-USD, "
                f"booked {self.booked_micros[name]:>9}"
            )
        balance = sum(self.billed_micros[name] - self.booked_micros[name] for name in ("equal", "corrected"))
        lines.append(f"balance of the first two: {balance} micro-USD")
        explained = Counter(self.unattributable.values())
        lines += [f"  {count} unattributable: {why}" for why, count in sorted(explained.items())]
        lines += [f"WRONG: {one}" for one in self.wrong]
        return lines


def rows_of(
    connection: psycopg.Connection[Any], query: LiteralString, *parameters: object
) -> list[dict[str, Any]]:
    """The rows of a query, by the names of their columns."""
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query, parameters).fetchall()


def micros_of(usd: str) -> int:
    """Rounded half up, by arithmetic of the rig's own."""
    return int((Decimal(usd) * 1_000_000).to_integral_value(rounding=ROUND_HALF_UP))


def reckon(
    bill: Sequence[Mapping[str, Any]], database_url: str, deleted_rows: Sequence[Mapping[str, Any]]
) -> Reckoning:
    """Join the bill's calls with rows, corrections and starts, by generation id first and by mark then."""
    with psycopg.connect(database_url) as connection:
        live = rows_of(
            connection,
            "SELECT id, turn_id, actor_id, model_name, cost_micros, estimated, generation_id FROM token_usage"
            " WHERE turn_id IS NOT NULL",
        )
        parked = rows_of(
            connection,
            "SELECT id, turn_id, actor_id, model_name, cost_micros, estimated, record ->> 'generation_id'"
            " AS generation_id FROM parked_usage",
        )
        corrections = Counter[Any]()
        for correction in rows_of(connection, "SELECT usage_id, delta_micros FROM usage_corrections"):
            corrections[correction["usage_id"]] += correction["delta_micros"]
        corrected_ids = {
            one["usage_id"] for one in rows_of(connection, "SELECT usage_id FROM usage_corrections")
        }
        unseen = Counter(
            one["agent"]
            for one in rows_of(connection, "SELECT agent FROM turn_starts WHERE router_outcome = 'unseen'")
        )
        open_starts = rows_of(connection, "SELECT agent FROM turn_starts WHERE ended_at IS NULL")
    gone_ids = {row["id"] for row in deleted_rows}
    rows: list[Mapping[str, Any]] = [*live, *parked, *deleted_rows]
    by_generation = {row["generation_id"]: row for row in rows if row["generation_id"]}
    estimates = defaultdict[tuple[str, bool], list[Mapping[str, Any]]](list)
    for one in rows:
        if one["estimated"] and not one["generation_id"]:
            estimates[one["actor_id"], _is_router(one)].append(one)

    result = Reckoning()
    used = set[Any]()
    for call in bill:
        if not call["mark"] or call["status"] == "refused":
            continue
        micros = micros_of(call["cost"])
        name = f"{call['id']} of {call['mark']}"
        row: Mapping[str, Any] | None = by_generation.get(call["id"])
        is_router = _DECISIONS in call["path"]
        if row is not None:
            used.add(row["id"])
            booked = row["cost_micros"] + corrections[row["id"]]
            if booked == micros:
                kind = "corrected" if row["id"] in corrected_ids else "equal"
                (result.corrected if kind == "corrected" else result.equal).append(name)
            elif row["id"] in gone_ids and row["estimated"]:
                kind = "gone with their session"
                result.gone.append(name)
            else:
                result.wrong.append(f"{name} was billed with {micros} and booked with {booked} micro-USD")
                continue
        elif waiting := estimates[call["mark"], is_router]:
            row = waiting.pop()
            used.add(row["id"])
            kind, booked = "unattributable", row["cost_micros"] + corrections[row["id"]]
            result.unattributable[name] = "no id reached us: an estimate is booked"
        elif is_router and unseen[call["mark"]]:
            unseen[call["mark"]] -= 1
            kind, booked = "unattributable", 0
            result.unattributable[name] = "a decision that timed out or was cut is on record, and has no row"
        elif micros == 0:
            continue
        else:
            result.wrong.append(
                f"{name} was billed with {micros} micro-USD ({call['status']}) and is nowhere"
            )
            continue
        result.billed_micros[kind] += micros
        result.booked_micros[kind] += booked
    for one in rows:
        if one["id"] not in used and not (one["estimated"] and not one["generation_id"]):
            result.wrong.append(f"row {one['id']} of {one['actor_id']} is no call of the bill")
    # An estimate that no call stands behind: the call never came to be billed, and nobody can know that.
    for left in estimates.values():
        for one in left:
            result.booked_micros["estimates of calls that were not billed"] += one["cost_micros"]
    if open_starts:
        result.wrong.append(
            f"{len(open_starts)} starts have no end, such as that of {open_starts[0]['agent']}"
        )
    for name, calls in (
        ("equal", result.equal),
        ("corrected", result.corrected),
        ("unattributable", result.unattributable),
    ):
        if not calls:
            result.wrong.append(f"no call is {name}: the rig tried nothing there")
    return result


def _is_router(row: Mapping[str, Any]) -> bool:
    return str(row["model_name"]).startswith("typesafe/")
