"""`brabo simulate`."""

from entrypoints.cli.subcommand import Subcommands
from entrypoints.simulator.command import add_simulate_command


def add_to(commands: Subcommands) -> None:
    """Declare the command, as the simulator has it."""
    add_simulate_command(commands)
