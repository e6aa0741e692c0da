"""What every adapter of the port RouterSwitches does."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from adapters.in_memory.ledger import InMemoryLedger
from adapters.in_memory.router_switches import InMemoryRouterSwitches
from adapters.postgres.pool import read_pool
from adapters.postgres.router_switches import PostgresRouterSwitches
from application.ports.router_switch import RouterSwitches, SwitchUnreadable
from tests.support.brabo_data import create_world
from tests.support.database_proxy import DatabaseProxy, database_proxy

PATIENCE_S = 0.5


class SwitchWorld(ABC):
    """Two workspaces as they are made, and the adapter that reads their switches."""

    def __init__(self, switches: RouterSwitches, workspace: UUID, other: UUID) -> None:
        self.switches = switches
        self.workspace = workspace
        self.other = other

    @abstractmethod
    def turn(self, workspace_id: UUID, *, on: bool) -> None:
        """Committed when it returns."""

    @abstractmethod
    def hide(self) -> None:
        """From now on nothing can be read."""

    @abstractmethod
    def show(self) -> None:
        """It can be read again."""


class InMemoryWorld(SwitchWorld):
    def __init__(self) -> None:
        self._held = InMemoryRouterSwitches()
        ledger = InMemoryLedger()
        super().__init__(self._held, *(ledger.add_workspace(UUID(int=owner)) for owner in (1, 2)))

    def turn(self, workspace_id: UUID, *, on: bool) -> None:
        (self._held.off.discard if on else self._held.off.add)(workspace_id)

    def hide(self) -> None:
        self._held.is_readable = False

    def show(self) -> None:
        self._held.is_readable = True


class PostgresWorld(SwitchWorld):
    def __init__(self, switches: RouterSwitches, database_url: str, proxy: DatabaseProxy) -> None:
        workspaces = [create_world(database_url).workspace_id for _ in range(2)]
        super().__init__(switches, *workspaces)
        self._database_url = database_url
        self._proxy = proxy

    def turn(self, workspace_id: UUID, *, on: bool) -> None:
        with psycopg.connect(self._database_url) as connection:
            connection.execute(
                "UPDATE workspaces SET tool_router_enabled = %s WHERE id = %s", (on, workspace_id)
            )

    def hide(self) -> None:
        self._proxy.fall_silent()

    def show(self) -> None:
        self._proxy.talk()


@pytest.fixture(params=["in_memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[SwitchWorld]:
    if request.param == "in_memory":
        yield InMemoryWorld()
        return
    database_url: str = request.getfixturevalue("database_url")
    async with database_proxy(database_url) as proxy, read_pool(proxy.url) as pool:
        yield PostgresWorld(PostgresRouterSwitches(pool, patience_s=PATIENCE_S), database_url, proxy)


async def test_a_workspace_has_its_router_on_from_the_start(world: SwitchWorld) -> None:
    assert await world.switches.is_on(world.workspace) is True


async def test_the_next_read_sees_what_was_committed_and_no_other_workspace_does(world: SwitchWorld) -> None:
    for on in (False, True, False):
        world.turn(world.workspace, on=on)
        assert await world.switches.is_on(world.workspace) is on
        assert await world.switches.is_on(world.other) is True


async def test_what_cannot_be_read_is_said_so_in_time_and_read_again_later(world: SwitchWorld) -> None:
    world.turn(world.workspace, on=False)
    assert await world.switches.is_on(world.workspace) is False

    world.hide()
    started_s = time.monotonic()
    # More than there are connections: those that read, and those that wait for one.
    answers = await asyncio.gather(
        *(world.switches.is_on(world.workspace) for _ in range(20)), return_exceptions=True
    )
    took_s = time.monotonic() - started_s
    world.show()

    assert {type(answer) for answer in answers} == {SwitchUnreadable}
    assert took_s < PATIENCE_S + 0.5
    assert await eventually_read(world) is False


async def eventually_read(world: SwitchWorld) -> bool:
    deadline_s = time.monotonic() + 10
    while True:
        try:
            return await world.switches.is_on(world.workspace)
        except SwitchUnreadable:
            assert time.monotonic() < deadline_s, "it is never read again"
            await asyncio.sleep(0.05)


async def test_many_read_at_once(world: SwitchWorld) -> None:
    world.turn(world.other, on=False)

    both = [world.workspace, world.other] * 50
    read = await asyncio.gather(*(world.switches.is_on(workspace) for workspace in both))

    assert read == [True, False] * 50
