"""Workspaces out of a dictionary, and the record of their switches."""

from dataclasses import dataclass, field, replace
from uuid import UUID

from application.ports.workspaces import Workspace, Workspaces


@dataclass(frozen=True, slots=True)
class RouterSwitched:
    """A record of one switch."""

    workspace_id: UUID
    by_user_id: UUID | None
    was_enabled: bool
    is_enabled: bool


@dataclass(slots=True)
class InMemoryWorkspaces(Workspaces):
    """Everything may be read and changed directly."""

    workspaces: dict[UUID, Workspace] = field(default_factory=dict)
    switches: list[RouterSwitched] = field(default_factory=list)
    """The oldest first."""

    async def find(self, id_or_slug: UUID | str) -> Workspace | None:
        if isinstance(id_or_slug, UUID):
            return self.workspaces.get(id_or_slug)
        return next((each for each in self.workspaces.values() if each.slug == id_or_slug), None)

    async def switch_tool_router(
        self, workspace_id: UUID, *, enabled: bool, by_user_id: UUID | None
    ) -> Workspace | None:
        before = self.workspaces.get(workspace_id)
        if before is None:
            return None
        if before.is_tool_router_enabled is not enabled:
            self.workspaces[workspace_id] = replace(before, is_tool_router_enabled=enabled)
            self.switches.append(
                RouterSwitched(workspace_id, by_user_id, before.is_tool_router_enabled, enabled)
            )
        return self.workspaces[workspace_id]
