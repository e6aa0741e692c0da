"""`brabo audit`."""

import argparse
import json
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from entrypoints.cli.subcommand import Subcommands, opened_database, say
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from application.ports.audit import Finding


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "audit",
        description="Check that ledger, counters, holds and events agree, at one moment; the server may go on "
        "meanwhile. Exit status 1 when something does not.",
    )
    parser.add_argument(
        "--since",
        type=_moment,
        metavar="TIME",
        help="look at rows made since then only, such as 2026-09-01 or 2026-09-01T12:00Z; sums are always whole",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="for programs")
    form.add_argument(
        "--sql", action="store_true", help="print the invariants as SQL, for anyone to run, and check nothing"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Audit, and print what was found; 1 when something is wrong."""
    if arguments.sql:
        from entrypoints.container import INVARIANTS  # slow to load: usage is said without it

        print("\n\n".join(f"-- {one.name}: {one.meaning}\n{one.sql};" for one in INVARIANTS))
        return 0
    from application.ports.database import DatabaseFailed

    with opened_database(read_settings(os.environ)) as container:
        container.require_current_database()
        audit, started_s = container.audit(), time.monotonic()
        findings = audit.run(since=arguments.since)
        try:
            audit.remember(findings, duration_ms=round((time.monotonic() - started_s) * 1000))
        except DatabaseFailed as error:
            say(f"the metrics will not tell of this audit, since it could not be noted down: {error}")
    print(_as_json(findings) if arguments.json else _as_text(findings))
    return 1 if any(finding.violations for finding in findings) else 0


def _as_json(findings: "Sequence[Finding]") -> str:
    document = {
        "violations": sum(len(finding.violations) for finding in findings),
        "invariants": [
            {
                "name": finding.name,
                "meaning": finding.meaning,
                "violations": [{"id": one.id, "detail": one.detail} for one in finding.violations],
            }
            for finding in findings
        ],
    }
    return json.dumps(document, indent=2)


def _as_text(findings: "Sequence[Finding]") -> str:
    names = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        verdict = f"{len(finding.violations)} broken" if finding.violations else "holds"
        lines.append(f"{finding.name:<{names}}  {verdict:<10}  {finding.meaning}")
        lines += [f"{'':<{names}}  {one.id}: {one.detail}" for one in finding.violations]
    broken = sum(bool(finding.violations) for finding in findings)
    lines.append(
        f"{broken} of {len(findings)} invariants are broken."
        if broken
        else f"All {len(findings)} invariants hold."
    )
    return "\n".join(lines)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write it as 2026-09-01T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
