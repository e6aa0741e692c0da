"""Whether a workspace has its tool router on."""

from typing import Protocol
from uuid import UUID


class SwitchUnreadable(Exception):  # noqa: N818 - it names what happened
    """The switch cannot be read: the turn goes on without the router."""


class RouterSwitches(Protocol):
    """Reads switches."""

    async def is_on(self, workspace_id: UUID) -> bool:
        """As committed now, for every step anew. Raises SwitchUnreadable, after 2 s at the latest."""
        ...
