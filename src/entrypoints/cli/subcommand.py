"""What the commands share."""

import argparse
import sys
from typing import TypeAlias

Subcommands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def say(sentence: str) -> None:
    """Tell what is happening, beside the command's own output."""
    print(f"brabo: {sentence}", file=sys.stderr, flush=True)
