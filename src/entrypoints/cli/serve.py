"""`brabo serve`."""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from entrypoints.cli.subcommand import Subcommands, opened_database, say
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from entrypoints.container import Container


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "serve",
        description="Serve the engines' turns until SIGTERM or Ctrl-C. Without DATABASE_URL it brings the embedded "
        "database along, and up to date.",
    )
    parser.add_argument("--host", help="address to listen on (default: BRABO_HOST, or 127.0.0.1)")
    parser.add_argument("--port", help="port to listen on (default: BRABO_PORT, or 3000)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to leave."""
    from entrypoints.database import shown  # slow to load: usage is said without them
    from entrypoints.http.server import listen, serve

    given = {"BRABO_HOST": arguments.host, "BRABO_PORT": arguments.port}
    settings = read_settings(
        {**os.environ, **{name: text for name, text in given.items() if text is not None}}
    )
    settings.require_secrets()
    with listen(settings) as listener, opened_database(settings) as container:
        if settings.database_url is None:
            container.upgrade_database(say=say)
        else:
            _warn_unless_current(container)
        host, port = listener.getsockname()[:2]
        say(
            f"serving on http://{f'[{host}]' if ':' in host else host}:{port}, with {shown(container.database_url())}"
        )
        return serve(container, listener)


def _warn_unless_current(container: "Container") -> None:
    """It starts all the same: `readyz` says no until the database is there and migrated, and then yes."""
    from entrypoints.container import READABLE_ERRORS

    try:
        pending = container.locate_database().pending
    except READABLE_ERRORS as error:
        trouble = str(error)
    else:
        if not pending:
            return
        trouble = f"the database lacks {', '.join(pending)}: run `brabo migrate`"
    print(f"brabo: warning: not ready to serve: {trouble}", file=sys.stderr)
