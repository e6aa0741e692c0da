"""What every adapter of the port AgentAreas does."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from adapters.in_memory.ledger import AreaEntry
from application.ports.agent_areas import AgentArea
from domain.budget import LIMIT_MICROS_MAX
from tests.support.ledger_worlds import HELD_BY, LedgerWorld, ledger_world, row_of, usage_of


@pytest.fixture(params=HELD_BY)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    async with ledger_world(request.param, request) as world:
        yield world


async def test_areas_are_listed_by_key_with_ceiling_and_spend(world: LedgerWorld) -> None:
    world.add_area("qa", AreaEntry(5_000, 10))
    world.add_area("dev", AreaEntry(None, 20))
    world.add_area("Éxtra", AreaEntry(0, 0))
    world.add_area("Zulu", AreaEntry(2**53 + 1, 2**53 + 1))
    await world.recorder.record(row_of(usage_of(world, 7, area="dev")))

    assert list(await world.areas.of_project(world.project_id)) == [
        AgentArea("Zulu", 2**53 + 1, 2**53 + 1),
        AgentArea("dev", None, 27),
        AgentArea("qa", 5_000, 10),
        AgentArea("Éxtra", 0, 0),
    ]


async def test_a_project_without_areas_and_no_project_have_none(world: LedgerWorld) -> None:
    world.add_area("qa", AreaEntry(5_000, 10))

    assert list(await world.areas.of_project(world.add_project())) == []
    assert list(await world.areas.of_project(uuid4())) == []


async def test_a_ceiling_is_set_and_taken_away_and_the_spend_stays(world: LedgerWorld) -> None:
    world.add_area("qa", AreaEntry(None, 10))
    world.add_area("dev", AreaEntry(1, 2))
    limits = (5_000, LIMIT_MICROS_MAX, 0, None)

    for limit in limits:
        set_to = await world.areas.set_limit(world.project_id, "qa", limit)
        assert set_to == AgentArea("qa", limit, 10)
        assert list(await world.areas.of_project(world.project_id)) == [AgentArea("dev", 1, 2), set_to]


@pytest.mark.parametrize("key", ["q", "QA", "", "qa ", "%", "q\0a", "não"])
async def test_an_area_that_is_not_there_is_none_and_none_is_made(world: LedgerWorld, key: str) -> None:
    world.add_area("qa", AreaEntry(5_000, 10))
    other_project = world.add_project()

    assert await world.areas.set_limit(world.project_id, key, 1) is None
    assert await world.areas.set_limit(other_project, "qa", 1) is None
    assert await world.areas.set_limit(uuid4(), "qa", 1) is None
    assert list(await world.areas.of_project(world.project_id)) == [AgentArea("qa", 5_000, 10)]
    assert list(await world.areas.of_project(other_project)) == []
