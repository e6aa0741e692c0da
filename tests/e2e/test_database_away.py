"""PostgreSQL away for a minute under fifty streams: each ends with its final, and each row arrives by itself."""

import asyncio
import time
from pathlib import Path

from adapters.postgres.audit import PostgresAudit
from entrypoints.simulator import Simulator
from tests.support.brabo_data import World
from tests.support.database_proxy import database_proxy
from tests.support.engine import ledger, take_turn
from tests.support.live import environment, live_api

STREAMS = 50
AWAY_S = 60


async def test_every_stream_ends_and_every_row_arrives(
    database_url: str, simulator: Simulator, world: World, tmp_path: Path
) -> None:
    simulator.script(
        {"times": None, "reply": {"text": ["um ", "dois"], "first_token_ms": 300, "between_ms": 2_500}}
    )
    async with database_proxy(database_url) as proxy:
        environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, BRABO_RECONCILE="off")
        async with live_api(proxy.url, environ) as api:
            streams = [asyncio.create_task(take_turn(api, world, stream=True)) for _ in range(STREAMS)]
            async with asyncio.timeout(10):
                while len(simulator.bill()["entries"]) < STREAMS:
                    await asyncio.sleep(0.05)
            await proxy.stop()
            stopped_s = time.monotonic()

            answers = await asyncio.gather(*streams)
            ended_s = time.monotonic() - stopped_s
            assert {one.answer["message"]["content"] for one in answers} == {"um dois"}
            assert {one.answer["error"] for one in answers} == {None}
            assert ledger(database_url, world) == []

            await asyncio.sleep(AWAY_S - ended_s)
            refused = await take_turn(api, world)
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) > 0
            assert len(simulator.bill()["entries"]) == STREAMS

            await proxy.start()
            back_s = time.monotonic()
            async with asyncio.timeout(20):
                while len(ledger(database_url, world)) < STREAMS:
                    await asyncio.sleep(0.05)
            print(
                f"\n{STREAMS} streams ended {ended_s:.1f} s after it went; rows {time.monotonic() - back_s:.1f} s after"
            )
            healed = await take_turn(api, world)
            assert healed.status == 200
    assert [one for one in PostgresAudit(database_url).run(since=None) if one.violations] == []
