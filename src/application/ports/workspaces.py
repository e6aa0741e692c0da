"""The workspaces and their tool router."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace as its members see it."""

    id: UUID
    name: str
    slug: str
    is_tool_router_enabled: bool


class Workspaces(Protocol):
    """Reads workspaces as they are committed now, and switches their router. Each method may raise DatabaseFailed."""

    async def find(self, id_or_slug: UUID | str) -> Workspace | None:
        """The workspace of this id, or of this slug."""
        ...

    async def switch_tool_router(
        self, workspace_id: UUID, *, enabled: bool, by_user_id: UUID | None
    ) -> Workspace | None:
        """Switch it, and give the workspace as it is then; None when there is none. Valid from the next read on.

        A switch that changes something leaves one record of who, when, from what and to what, or neither happens; one
        that changes nothing leaves none, so it can be sent again. `by_user_id` None: from the shell.
        """
        ...
