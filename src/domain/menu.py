"""Policy P3: the menu of a step is what the router chose and what was called before it (contract, section 5)."""

from collections.abc import Sequence
from typing import Final

from domain.step import Tool

RESERVED_OPTION: Final = "responder_sem_ferramenta"
"""What the router chooses when no tool fits: answer in text, or end the turn."""


def narrowed_menu(catalogue: Sequence[Tool], choice: str, previous_tool: str | None) -> Sequence[Tool]:
    """The catalogue's own objects that bear either name, in its order; the catalogue itself where P3 does not narrow.

    It does not narrow to the reserved option, to a choice that is not on the catalogue, or without a previous tool on
    the catalogue: never empty, always a subset.
    """
    names = {tool.name for tool in catalogue}
    if choice == RESERVED_OPTION or choice not in names or previous_tool not in names:
        return catalogue
    return [tool for tool in catalogue if tool.name in (choice, previous_tool)]
