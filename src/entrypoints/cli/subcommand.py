"""What the commands share."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from entrypoints.settings import Settings
from entrypoints.signals import leave_alone

if TYPE_CHECKING:
    from application.ports.workspaces import Workspace, Workspaces
    from entrypoints.container import Container

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def say(sentence: str) -> None:
    """Tell what is happening, beside the command's own output; whether anybody listens changes nothing."""
    with suppress(OSError):
        print(f"brabo: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def opened_database(settings: Settings) -> Iterator["Container"]:
    """What `open_database` gives. Once the block ends, no signal keeps an embedded server from being stopped."""
    from entrypoints.database import open_database  # slow to load: usage is said without it

    with open_database(settings, say) as container:
        try:
            yield container
        finally:
            leave_alone()


async def find_workspace(workspaces: "Workspaces", id_or_slug: str) -> "Workspace | None":
    """The workspace that was named; a slug can look like an id."""
    workspace_id = _uuid(id_or_slug)
    found = await workspaces.find(workspace_id) if workspace_id else None
    return found or await workspaces.find(id_or_slug)


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
