"""What every adapter of the port Users does."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from application.ports.users import UnknownUser
from domain.roles import Role
from tests.support.member_worlds import HELD_BY, MemberWorld, member_world


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[MemberWorld]:
    async with member_world(request.param, request) as world:
        yield world


async def test_a_user_is_found_by_id_and_by_address_in_any_case(world: MemberWorld) -> None:
    ana = world.add_user("Ana@Example.com")
    world.add_user("bia@example.com")

    assert await world.users.find(ana.id) == ana
    assert await world.users.find("aNA@example.COM") == ana


@pytest.mark.parametrize("stranger", [uuid4(), "ana@example.co", "", "%", "ana"])
async def test_a_stranger_is_not_found(world: MemberWorld, stranger: object) -> None:
    world.add_user("ana@example.com")

    assert await world.users.find(stranger) is None  # type: ignore[arg-type]  # one of both


@pytest.mark.parametrize("role", Role)
async def test_a_member_has_the_role_of_that_workspace(world: MemberWorld, role: Role) -> None:
    ana, bia = world.add_user("ana@example.com"), world.add_user("bia@example.com")
    one, other = world.add_workspace(ana), world.add_workspace(ana, slug="other")
    world.set_role(bia, one, role)
    world.set_role(ana, other, Role.OWNER)

    assert await world.users.role_in_workspace(bia.id, one.id) is role
    assert await world.users.role_in_workspace(bia.id, other.id) is None


async def test_a_change_of_role_is_in_the_next_read(world: MemberWorld) -> None:
    ana = world.add_user("ana@example.com")
    workspace = world.add_workspace(ana)

    seen = []
    for role in (Role.OWNER, Role.VIEWER, None, Role.DEVELOPER):
        world.set_role(ana, workspace, role)
        seen.append(await world.users.role_in_workspace(ana.id, workspace.id))

    assert seen == [Role.OWNER, Role.VIEWER, None, Role.DEVELOPER]


async def test_having_made_a_workspace_gives_no_role(world: MemberWorld) -> None:
    creator = world.add_user("ana@example.com")

    assert await world.users.role_in_workspace(creator.id, world.add_workspace(creator).id) is None


async def test_in_an_unknown_workspace_nobody_has_a_role(world: MemberWorld) -> None:
    assert await world.users.role_in_workspace(world.add_user("ana@example.com").id, uuid4()) is None


async def test_who_is_not_there_any_more_is_unknown(world: MemberWorld) -> None:
    ana, bia = world.add_user("ana@example.com"), world.add_user("bia@example.com")
    workspace = world.add_workspace(bia)
    world.delete_user(ana)

    for workspace_id in (workspace.id, uuid4()):
        with pytest.raises(UnknownUser):
            await world.users.role_in_workspace(ana.id, workspace_id)
    for project_id in (world.add_project(workspace, bia), uuid4()):
        with pytest.raises(UnknownUser):
            await world.users.role_in_project(ana.id, project_id)
    assert await world.users.find(ana.id) is None


@pytest.mark.parametrize("in_workspace", [*Role, None])
@pytest.mark.parametrize("in_project", [*Role, None])
async def test_the_projects_role_overrides_the_workspaces(
    world: MemberWorld, in_workspace: Role | None, in_project: Role | None
) -> None:
    ana, bia = world.add_user("ana@example.com"), world.add_user("bia@example.com")
    workspace = world.add_workspace(ana)
    project_id, other = world.add_project(workspace, ana), world.add_project(workspace, ana)
    world.set_role(bia, workspace, in_workspace)
    world.set_project_role(bia, project_id, in_project)
    world.set_project_role(ana, project_id, Role.OWNER)

    assert await world.users.role_in_project(bia.id, project_id) is (in_project or in_workspace)
    assert await world.users.role_in_project(bia.id, other) is in_workspace


async def test_a_role_elsewhere_is_no_role_in_a_project(world: MemberWorld) -> None:
    ana, bia = world.add_user("ana@example.com"), world.add_user("bia@example.com")
    here, elsewhere = world.add_workspace(ana), world.add_workspace(ana, slug="other")
    project_id = world.add_project(here, bia)
    world.set_role(bia, elsewhere, Role.OWNER)
    world.set_project_role(bia, world.add_project(elsewhere, ana), Role.OWNER)

    assert await world.users.role_in_project(bia.id, project_id) is None
    assert await world.users.role_in_project(bia.id, uuid4()) is None


async def test_a_role_in_a_project_that_is_taken_away_gives_way_to_the_workspaces(world: MemberWorld) -> None:
    ana = world.add_user("ana@example.com")
    workspace = world.add_workspace(ana)
    project_id = world.add_project(workspace, ana)
    world.set_role(ana, workspace, Role.OWNER)
    world.set_project_role(ana, project_id, Role.VIEWER)
    below = await world.users.role_in_project(ana.id, project_id)
    world.set_project_role(ana, project_id, None)

    assert (below, await world.users.role_in_project(ana.id, project_id)) == (Role.VIEWER, Role.OWNER)
