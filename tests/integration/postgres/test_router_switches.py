"""A switch beside another program that writes the same workspace."""

import asyncio

import psycopg
import pytest

from adapters.postgres.pool import owners_pool
from adapters.postgres.workspaces import PostgresWorkspaces
from tests.support.brabo_data import create_world

WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%brabo_api_router_switches%'
"""


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_switch_that_waited_records_what_it_found_then(database_url: str, enabled: bool) -> None:
    """The other one switches it off first, and is not in the snapshot that the switch began with."""
    world = create_world(database_url)
    async with owners_pool(database_url) as pool:
        with (
            psycopg.connect(database_url) as other,
            psycopg.connect(database_url, autocommit=True) as watcher,
        ):
            other.execute("UPDATE workspaces SET tool_router_enabled = false")
            switching = asyncio.create_task(
                PostgresWorkspaces(pool).switch_tool_router(
                    world.workspace_id, enabled=enabled, by_user_id=world.user_id
                )
            )
            while watcher.execute(WAITING).fetchone() != (1,):
                assert not switching.done()
                await asyncio.sleep(0.01)
            other.commit()
            switched = await switching
            recorded = watcher.execute(
                "SELECT was_enabled, is_enabled FROM brabo_api_router_switches"
            ).fetchall()

    assert switched is not None
    assert switched.is_tool_router_enabled is enabled
    assert recorded == ([(False, True)] if enabled else [])
