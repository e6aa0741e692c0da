"""Switches of the tool router in memory: on, as in the database, unless somebody turned them off."""

from uuid import UUID

from application.ports.router_switch import RouterSwitches, SwitchUnreadable


class InMemoryRouterSwitches(RouterSwitches):
    """`off` holds the workspaces whose router is off. `is_readable` plays a database that is away."""

    def __init__(self) -> None:
        self.off: set[UUID] = set()
        self.is_readable = True
        self.reads = 0

    async def is_on(self, workspace_id: UUID) -> bool:
        self.reads += 1
        if not self.is_readable:
            raise SwitchUnreadable
        return workspace_id not in self.off
