"""`brabo router`."""

import argparse
import os
from typing import TYPE_CHECKING

from entrypoints.cli.subcommand import Subcommands, find_workspace, opened_database, say
from entrypoints.settings import read_settings

if TYPE_CHECKING:
    from application.ports.workspaces import Workspace
    from entrypoints.container import Container


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "router",
        description="Switch a workspace's tool router on or off, from the next step on, in every process that serves. "
        "Who may use this shell may do so; the switch is recorded.",
    )
    parser.add_argument("switch", choices=["on", "off"], metavar="on|off")
    parser.add_argument("--workspace", required=True, help="its id or slug; `brabo init` says the id")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Switch, and say how it stands."""
    import asyncio  # slow to load: usage is said without it

    with opened_database(read_settings(os.environ)) as container:
        container.require_current_database()
        workspace = asyncio.run(
            _switch(container, arguments.workspace.strip(), enabled=arguments.switch == "on")
        )
    if workspace is None:
        say(f"there is no workspace with the id or slug {arguments.workspace!r}: `brabo init` says the id.")
        return 1
    print(f"workspace {workspace.slug}: the tool router is {arguments.switch}")
    return 0


async def _switch(container: "Container", id_or_slug: str, *, enabled: bool) -> "Workspace | None":
    workspaces = container.workspaces()
    async with container.owners_pool():
        found = await find_workspace(workspaces, id_or_slug)
        if found is None:
            return None
        return await workspaces.switch_tool_router(found.id, enabled=enabled, by_user_id=None)
