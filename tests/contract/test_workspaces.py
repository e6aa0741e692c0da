"""What every adapter of the port Workspaces does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.support.member_worlds import HELD_BY, MemberWorld, member_world


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[MemberWorld]:
    async with member_world(request.param, request) as world:
        yield world


async def test_a_workspace_is_found_by_id_and_by_slug(world: MemberWorld) -> None:
    ana = world.add_user("ana@example.com")
    on, off = world.add_workspace(ana), world.add_workspace(ana, slug="other", is_on=False)

    assert await world.workspaces.find(on.id) == await world.workspaces.find("main") == on
    assert await world.workspaces.find(off.id) == await world.workspaces.find("other") == off
    assert await world.workspaces.find(uuid4()) is None
    assert await world.workspaces.find("Main") is None


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_switch_is_in_the_next_read_and_leaves_one_record(world: MemberWorld, enabled: bool) -> None:
    ana = world.add_user("ana@example.com")
    workspace = world.add_workspace(ana, is_on=not enabled)
    other = world.add_workspace(ana, slug="other", is_on=not enabled)

    switched = await world.workspaces.switch_tool_router(workspace.id, enabled=enabled, by_user_id=ana.id)

    assert switched == replace(workspace, is_tool_router_enabled=enabled)
    assert await world.workspaces.find(workspace.id) == switched
    assert await world.workspaces.find(other.id) == other
    assert world.switches() == [(workspace.id, ana.id, not enabled, enabled)]


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_switch_that_changes_nothing_leaves_no_record(world: MemberWorld, enabled: bool) -> None:
    ana = world.add_user("ana@example.com")
    workspace = world.add_workspace(ana, is_on=enabled)

    for _ in range(2):
        same = await world.workspaces.switch_tool_router(workspace.id, enabled=enabled, by_user_id=ana.id)
        assert same == workspace

    assert world.switches() == []


async def test_the_shell_is_nobody(world: MemberWorld) -> None:
    workspace = world.add_workspace(world.add_user("ana@example.com"))

    await world.workspaces.switch_tool_router(workspace.id, enabled=False, by_user_id=None)

    assert world.switches() == [(workspace.id, None, True, False)]


async def test_an_unknown_workspace_is_none_and_leaves_no_record(world: MemberWorld) -> None:
    ana = world.add_user("ana@example.com")

    assert await world.workspaces.switch_tool_router(uuid4(), enabled=False, by_user_id=ana.id) is None
    assert world.switches() == []


async def test_switches_at_once_leave_a_record_for_each_change_and_no_other(world: MemberWorld) -> None:
    ana = world.add_user("ana@example.com")
    workspace = world.add_workspace(ana)

    await asyncio.gather(
        *(
            world.workspaces.switch_tool_router(workspace.id, enabled=at % 3 == 0, by_user_id=ana.id)
            for at in range(40)
        )
    )

    last = await world.workspaces.find(workspace.id)
    changes = [(was, is_now) for _, _, was, is_now in world.switches()]
    assert last is not None
    assert changes
    assert [was for was, _ in changes] == [True, *(is_now for _, is_now in changes[:-1])]
    assert all(was is not is_now for was, is_now in changes)
    assert changes[-1][1] is last.is_tool_router_enabled
