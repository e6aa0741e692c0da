"""`brabo report`."""

import argparse
import json
import os
from collections.abc import Iterable
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from uuid import UUID

from entrypoints.cli.subcommand import Subcommands, find_workspace, opened_database, say
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from application.ports.spending import Spend
    from application.ports.workspaces import Workspace
    from application.report_spend import SpendReport
    from entrypoints.container import Container

_DAYS: Final = 30
_MOST_DAYS: Final = 180


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser("report", description="Say what the ledger holds.")
    reports = parser.add_subparsers(title="reports", metavar="REPORT", required=True)
    spend = reports.add_parser(
        "spend",
        help="what was spent, by day, model and actor",
        description="Say what was spent, by day (UTC), model and actor: exactly, where the provider named its price.",
    )
    spend.add_argument(
        "--days",
        type=_days,
        default=_DAYS,
        metavar="N",
        help=f"the last N days, today included; 1 to {_MOST_DAYS}, {_DAYS} if not given",
    )
    of = spend.add_mutually_exclusive_group()
    of.add_argument("--workspace", metavar="ID|SLUG", help="of this workspace only")
    of.add_argument("--project", type=_project_id, metavar="ID", help="of this project only")
    spend.add_argument("--json", action="store_true", help="for programs; amounts are decimal text")
    spend.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    import asyncio  # slow to load: usage is said without it

    with opened_database(read_settings(os.environ)) as container:
        container.require_current_database()
        workspace_id = None
        if arguments.workspace is not None:
            workspace = asyncio.run(_find(container, arguments.workspace.strip()))
            if workspace is None:
                say(
                    f"there is no workspace with the id or slug {arguments.workspace!r}: `brabo init` says the id."
                )
                return 1
            workspace_id = workspace.id
        report = container.report_spend()(
            arguments.days, workspace_id=workspace_id, project_id=arguments.project
        )
    if report is None:
        say(f"there is no project with the id {arguments.project}: `brabo init` says the id.")
        return 1
    print(_as_json(report) if arguments.json else _as_text(report))
    return 0


async def _find(container: "Container", id_or_slug: str) -> "Workspace | None":
    async with container.owners_pool():
        return await find_workspace(container.workspaces(), id_or_slug)


def _as_json(report: "SpendReport") -> str:
    document = {
        "from": _iso(report.days[0][0]),
        "to": _iso(report.days[-1][0]),
        "total": _members(report.total),
        "days": [{"day": _iso(day), **_members(spend)} for day, spend in report.days],
        "models": [
            {"provider": model.provider, "model": model.name, **_members(spend)}
            for model, spend in report.models
        ],
        "actors": [
            {"actorKind": actor.kind, "actorId": actor.id, **_members(spend)}
            for actor, spend in report.actors
        ],
    }
    return json.dumps(document, indent=2)


def _members(spend: "Spend") -> dict[str, int | str]:
    return {"calls": spend.calls, "usd": _plain(spend.usd)}


def _as_text(report: "SpendReport") -> str:
    parts = [
        _table("day (UTC)", ((_iso(day), spend) for day, spend in report.days), report.total),
        _table("model", ((f"{model.provider} {model.name}", spend) for model, spend in report.models)),
        _table("actor", ((f"{actor.kind} {actor.id}", spend) for actor, spend in report.actors)),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, rows: Iterable[tuple[str, "Spend"]], total: "Spend | None" = None) -> str:
    """The amounts stand under one another by their points."""
    lines = [(_printable(name), str(spend.calls), _plain(spend.usd)) for name, spend in rows]
    if not lines:
        return ""
    if total is not None:
        lines.append(("total", str(total.calls), _plain(total.usd)))
    names = max(len(name) for name in (title, *(name for name, *_ in lines)))
    calls = max(len(count) for count in ("calls", *(count for _, count, _ in lines)))
    whole = max(_whole(usd) for *_, usd in lines)
    return "\n".join(
        [
            f"{title:<{names}}  {'calls':>{calls}}  USD",
            *(
                f"{name:<{names}}  {count:>{calls}}  {' ' * (whole - _whole(usd))}{usd}"
                for name, count, usd in lines
            ),
        ]
    )


def _whole(usd: str) -> int:
    return len(usd.partition(".")[0])


def _plain(usd: Decimal) -> str:
    """All its digits, without an exponent and without zeros at the end."""
    text = f"{usd:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _printable(name: str) -> str:
    """The name as one line that does nothing to a terminal: engines send it."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)


def _iso(day: date) -> str:
    return day.isoformat()


def _days(text: str) -> int:
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_DAYS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to {_MOST_DAYS}")


def _project_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a project, which is a UUID") from None
