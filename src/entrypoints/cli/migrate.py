"""`brabo migrate`."""

import argparse
import os
from typing import TYPE_CHECKING

from entrypoints.cli.subcommand import Subcommands, opened_database, say
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from entrypoints.container import Container


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "migrate",
        description="Bring the database to this program's schema, adopting one that another Brabo program made. "
        "Any number of processes may do so at once.",
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--down",
        metavar="REVISION",
        help="go back to this revision, or to `base`; what came after it is dropped with its data",
    )
    instead.add_argument("--where", action="store_true", help="only say where the database is")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Migrate, and say where the database was and is."""
    from entrypoints.database import shown  # slow to load: usage is said without it

    with opened_database(read_settings(os.environ)) as container:
        before = _place(container)
        print(f"{shown(container.database_url())} is {before}")
        if arguments.where:
            return 0
        if arguments.down is None:
            container.upgrade_database(say=say)
        else:
            container.downgrade_database(arguments.down, say=say)
        after = _place(container)
        if after != before:
            print(f"now it is {after}")
    return 0


def _place(container: "Container") -> str:
    state = container.locate_database()
    at = f"at {state.current}" if state.current else "not migrated"
    rest = f"to come: {', '.join(state.pending)}" if state.pending else "current"
    return f"{at} ({'adopted; ' if state.adopted else ''}{rest})"
