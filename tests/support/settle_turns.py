"""A process that settles turns: `python -m tests.support.settle_turns URL PROJECT SESSION TURNS COST AT_ONCE`.

It says `ready`, waits for a line, hands over the records with `AT_ONCE` turns under way at any time, and says how many
were committed.
"""

import asyncio
import sys
from datetime import UTC, datetime
from uuid import UUID, uuid4

from adapters.postgres.pool import write_pool
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from domain.provider import Provider
from domain.usage import ActorKind, Cost, Prices, TokenCounts, TokenUsage


async def main(url: str, project: str, session: str, turns: int, cost_micros: int, at_once: int) -> None:
    def usage() -> TokenUsage:
        return TokenUsage(
            id=uuid4(),
            session_id=UUID(session),
            project_id=UUID(project),
            actor_kind=ActorKind.AGENT,
            actor_id="dev-api",
            area="dev",
            provider=Provider.OPENROUTER,
            model_id=None,
            model_name="maker/model",
            tokens=TokenCounts(1, 1),
            is_estimated=False,
            cost=Cost(cost_micros, Prices(1, 1), is_implicit=False, catalogue_micros=None),
            latency_ms=1,
            binding_origin="agent",
            routing_preference=None,
            upstream_provider=None,
            resolved_model_name=None,
            generation_id=None,
            created_at=datetime.now(UTC),
        )

    async with write_pool(url) as pool:
        await pool.wait()
        recorder = PostgresUsageRecorder(pool, on_unrecorded=lambda _: None, patience_s=30)
        left = iter(range(turns))

        async def take_turns() -> int:
            return sum([await recorder.record(usage()) for _ in left])

        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(sum(await asyncio.gather(*(take_turns() for _ in range(at_once)))), flush=True)


if __name__ == "__main__":
    url, project, session, *numbers = sys.argv[1:]
    asyncio.run(main(url, project, session, *map(int, numbers)))
