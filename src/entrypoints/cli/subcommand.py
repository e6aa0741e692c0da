"""What the commands share."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

from entrypoints.settings import Settings
from entrypoints.signals import leave_alone

if TYPE_CHECKING:
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
