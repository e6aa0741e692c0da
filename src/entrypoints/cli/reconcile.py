"""`brabo reconcile`."""

import argparse
import json
import os
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from entrypoints.cli.subcommand import Subcommands, opened_database
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from application.ports.open_truths import TruthsSummary
    from entrypoints.container import Container

_AT_ONCE: Final = 50
_SUMMED_DAYS: Final = 30


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "reconcile",
        description="Ask the provider what rows truly cost that were estimated or cut, book the differences, and say "
        "how far the estimates were off.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask for each row once, and print what came of it."""
    import asyncio  # slow to load: usage is said without it

    with opened_database(read_settings(os.environ)) as container:
        container.require_current_database()
        outcomes, summary = asyncio.run(_reconcile(container))
    print(_as_json(outcomes, summary) if arguments.json else _as_text(outcomes, summary))
    return 0


async def _reconcile(container: "Container") -> "tuple[Counter[str], TruthsSummary]":
    outcomes: Counter[str] = Counter()
    reconcile, truths = container.reconcile(), container.open_truths()
    async with container.write_pool():
        try:
            summary = await truths.summary(container.clock().now() - timedelta(days=_SUMMED_DAYS))
            left = summary.open
            while left > 0:
                found = await reconcile(limit=min(left, _AT_ONCE), even_if_early=True)
                outcomes += found
                left -= max(found.total(), 1) if found else left
            summary = await truths.summary(container.clock().now() - timedelta(days=_SUMMED_DAYS))
        finally:
            await container.generation_records().close()
    return outcomes, summary


def _as_json(outcomes: Counter[str], summary: "TruthsSummary") -> str:
    document = {
        "asked": outcomes.total(),
        "outcomes": dict(sorted(outcomes.items())),
        "lastDays": {
            "days": _SUMMED_DAYS,
            "open": summary.open,
            "equal": summary.equal,
            "corrected": summary.corrected,
            "irreconcilable": summary.irreconcilable,
            "bookedMicros": summary.booked_micros,
            "trueMicros": summary.true_micros,
            "offMicros": summary.off_micros,
        },
    }
    return json.dumps(document, indent=2)


def _as_text(outcomes: Counter[str], summary: "TruthsSummary") -> str:
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    lines = [f"Asked for {outcomes.total()} rows: {words}." if outcomes else "No row awaits the truth."]
    lines.append(
        f"Of the last {_SUMMED_DAYS} days: {summary.equal} as booked, {summary.corrected} corrected, "
        f"{summary.irreconcilable} irreconcilable, {summary.open} open."
    )
    if summary.equal or summary.corrected:
        share = f" ({summary.off_micros / summary.true_micros:.1%})" if summary.true_micros else ""
        lines.append(
            f"Booked {_usd(summary.booked_micros)} where it was {_usd(summary.true_micros)}; "
            f"off by {_usd(summary.off_micros)} in all{share}."
        )
    return "\n".join(lines)


def _usd(micros: int) -> str:
    return f"{micros / 1_000_000:.6f} USD"
