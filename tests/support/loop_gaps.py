"""How long the running event loop was held at a time."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

TICK_S = 0.002


@dataclass
class Gaps:
    """`largest_ms` is of the thread's processor time: a busy machine does not lengthen it."""

    largest_ms: float = 0.0


@asynccontextmanager
async def watched_loop() -> AsyncIterator[Gaps]:
    """Watch the loop until the block ends. What was there before it is kept from the collector, as a server does."""
    gaps = Gaps()

    async def tick() -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            gaps.largest_ms = max(gaps.largest_ms, (time.thread_time() - before_s) * 1000)

    gc.collect()
    gc.freeze()
    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        yield gaps
        await asyncio.sleep(2 * TICK_S)
    finally:
        ticking.cancel()
        gc.unfreeze()
