"""Who may read and switch a workspace's router."""

from uuid import uuid4

import pytest

from application.ports.users import UnknownUser, User
from application.ports.workspaces import Workspace
from application.read_tool_router import ReadToolRouter
from application.require_role import NotAllowed
from application.switch_tool_router import SwitchToolRouter
from domain.roles import Role
from tests.support.member_worlds import InMemoryMembers


class Office:
    """A workspace whose router is on, with the use cases over it."""

    def __init__(self) -> None:
        self.world = InMemoryMembers()
        self.ana: User = self.world.add_user("ana@example.com")
        self.workspace: Workspace = self.world.add_workspace(self.ana)
        self.read = ReadToolRouter(self.world.users, self.world.workspaces)
        self.switch = SwitchToolRouter(self.world.users, self.world.workspaces)


@pytest.fixture
def office() -> Office:
    return Office()


async def test_an_owner_switches_and_it_is_recorded(office: Office) -> None:
    office.world.set_role(office.ana, office.workspace, Role.OWNER)

    switched = await office.switch(office.ana.id, office.workspace.id, enabled=False)

    assert switched.is_tool_router_enabled is False
    assert await office.read(office.ana.id, office.workspace.id) == switched
    assert office.world.switches() == [(office.workspace.id, office.ana.id, True, False)]


@pytest.mark.parametrize("role", [Role.MAINTAINER, Role.DEVELOPER, Role.VIEWER])
async def test_who_is_no_owner_may_look_and_not_switch(office: Office, role: Role) -> None:
    office.world.set_role(office.ana, office.workspace, role)

    assert await office.read(office.ana.id, office.workspace.id) == office.workspace
    with pytest.raises(NotAllowed, match="`owner`"):
        await office.switch(office.ana.id, office.workspace.id, enabled=False)

    assert office.world.held_workspaces.workspaces[office.workspace.id].is_tool_router_enabled
    assert office.world.switches() == []


async def test_who_is_no_member_is_told_the_same_whether_there_is_a_workspace_or_not(office: Office) -> None:
    told = set()
    for workspace_id in (office.workspace.id, uuid4()):
        with pytest.raises(NotAllowed) as refused:
            await office.switch(office.ana.id, workspace_id, enabled=False)
        told.add(str(refused.value))
        with pytest.raises(NotAllowed):
            await office.read(office.ana.id, workspace_id)

    assert len(told) == 1


async def test_who_is_not_there_any_more_is_unknown(office: Office) -> None:
    office.world.set_role(office.ana, office.workspace, Role.OWNER)
    office.world.delete_user(office.ana)

    for use_case in (office.read, lambda *ids: office.switch(*ids, enabled=False)):
        with pytest.raises(UnknownUser):
            await use_case(office.ana.id, office.workspace.id)


async def test_a_workspace_that_goes_in_between_is_as_unknown_as_any(office: Office) -> None:
    office.world.set_role(office.ana, office.workspace, Role.OWNER)
    del office.world.held_workspaces.workspaces[office.workspace.id]

    with pytest.raises(NotAllowed):
        await office.read(office.ana.id, office.workspace.id)
    with pytest.raises(NotAllowed):
        await office.switch(office.ana.id, office.workspace.id, enabled=False)
