"""`brabo token`."""

import argparse
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from entrypoints.cli.subcommand import Subcommands, opened_database, say
from entrypoints.settings import JWT_SECRET, SettingsError, read_settings

if TYPE_CHECKING:
    from application.ports.users import User
    from entrypoints.container import Container

_LIFETIME_HOURS: Final = 12
"""A working day: whose user is gone or has lost a role opens nothing all the same."""


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "token",
        description="Print a user's token for the owners' routes, valid for "
        f"{_LIFETIME_HOURS} hours. It is for development, and refused in production.",
    )
    user = parser.add_mutually_exclusive_group(required=True)
    user.add_argument("--email", help="the user's address")
    user.add_argument("--user", type=_uuid, metavar="ID", help="the user's id")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the token, and nothing else to the standard output."""
    import asyncio  # slow to load: usage is said without it

    settings = read_settings(os.environ)
    if settings.is_production:
        raise SettingsError(
            "In production no tokens are made from the shell: users get theirs when they sign in. Unset "
            "BRABO_ENV and NODE_ENV on a machine for development."
        )
    if settings.jwt_secret is None:
        raise SettingsError(f"{JWT_SECRET} is missing: set it, or let `brabo init` make one.")
    with opened_database(settings) as container:
        container.require_current_database()
        user = asyncio.run(_find(container, arguments.user or arguments.email.strip()))
        if user is None:
            say(f"there is no user {arguments.user or arguments.email!r}: `brabo init --email` makes one.")
            return 1
        expires_at = container.clock().now() + timedelta(hours=_LIFETIME_HOURS)
        print(container.user_tokens().issue(user, expires_at))
    return 0


async def _find(container: "Container", id_or_email: UUID | str) -> "User | None":
    async with container.owners_pool():
        return await container.users().find(id_or_email)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a user, which is a UUID") from None
