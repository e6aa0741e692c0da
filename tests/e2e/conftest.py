from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.live import LiveApi, environment, live_api

MODEL = "openai/gpt-4.1-mini"


@pytest.fixture
async def simulator() -> AsyncIterator[Simulator]:
    async with Simulator.start() as running:
        yield running


@pytest.fixture
def world(database_url: str) -> World:
    return create_world(
        database_url,
        model_name=MODEL,
        input_price_per_million_micros=400_000,
        output_price_per_million_micros=1_600_000,
        area_ceilings_micros={"dev": 5_000_000, "qa": None, "infra": None},
    )


@pytest.fixture
async def api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    async with live_api(
        database_url, environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url)
    ) as running:
        yield running
