"""The command `brabo`. Only the command that is asked for is imported, so that each starts as quickly as it can."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

from entrypoints.signals import leave_alone, when_told_to_leave

_COMMANDS: Final = {
    "serve": "serve the engines' turns",
    "init": "make everything a first turn needs, and say how to take it",
    "doctor": "say what keeps turns from working, and what to do",
    "migrate": "bring the database to this program's schema",
    "router": "switch a workspace's tool router on or off",
    "report": "say what was spent, by day, model and actor",
    "audit": "check that ledger, counters, holds and events agree",
    "reconcile": "ask the provider what estimated rows truly cost",
    "token": "print a user's token, for development",
    "simulate": "run a simulated OpenRouter",
    "version": "say which versions these are",
}
"""Each is a module of this package, whose `add_to` declares it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status: 0 done, 1 refused or failed, 2 wrong usage, 130 interrupted, 141 nobody reads."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left to say goes nowhere; else the interpreter's own last flush would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(arguments: Sequence[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="brabo",
        description="The metered turn: one HTTP call for every step of an agent's loop.",
        epilog="Settings come from the environment (docs/configuration.md). To begin: `brabo init`, `brabo serve`.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        if name in arguments[:1]:
            importlib.import_module(f"entrypoints.cli.{name}").add_to(commands)
        else:
            commands.add_parser(name, help=summary)
    parsed = parser.parse_args(arguments)
    when_told_to_leave(_leave)
    try:
        status: int = parsed.run(parsed)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not _is_for_the_user(error):
            raise
        print(f"brabo: {error}", file=sys.stderr)
        return 1
    return status


def _leave(number: signal.Signals) -> None:
    """End in order, so that an embedded database that only this process uses is stopped."""
    if number is signal.SIGHUP:
        signal.raise_signal(signal.SIGTERM)  # a command that takes that one in its own way takes both
        return
    leave_alone()
    if number is signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _is_for_the_user(error: Exception) -> bool:
    """Whether the error's text was written for whoever typed the command."""
    from application.first_steps import FirstStepsRefused
    from application.ports.database import DatabaseFailed
    from entrypoints.container import READABLE_ERRORS
    from entrypoints.settings import SettingsError

    return isinstance(error, (FirstStepsRefused, DatabaseFailed, SettingsError, *READABLE_ERRORS))


if __name__ == "__main__":
    sys.exit(main())
