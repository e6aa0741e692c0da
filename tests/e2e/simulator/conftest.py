from collections.abc import AsyncIterator

import pytest

from entrypoints.simulator import Simulator


@pytest.fixture
async def sim() -> AsyncIterator[Simulator]:
    async with Simulator.start() as simulator:
        yield simulator
