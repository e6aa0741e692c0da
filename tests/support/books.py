"""Books for the audit to look at: turns of ours, and those of the existing program."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from adapters.postgres.audit import PostgresAudit
from domain.agents import area_of
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome
from domain.usage import Cost, Prices, TokenCounts
from tests.support.ledger_worlds import PostgresWorld, start_of, usage_of


def whole_turn(world: PostgresWorld, *, agent: str = "escriba", **changes: Any) -> Settlement:
    """A turn of 150 micro-USD that ends now; `changes` are fields of its row."""
    turn_id, now = uuid4(), datetime.now(UTC)
    start = start_of(
        turn_id=turn_id,
        session_id=changes.get("session_id", world.session_id),
        project_id=world.project_id,
        agent=agent,
        started_at=now,
        due_at=now + timedelta(minutes=10),
    )
    usual: dict[str, Any] = {
        "id": turn_id,
        "actor_id": agent,
        "area": area_of(agent),
        "tokens": TokenCounts(1_000, 0),
        "cost": Cost(150, Prices(150_000, 0), is_implicit=False, catalogue_micros=None),
        "created_at": now,
    }
    usage = usage_of(world, **(usual | changes))
    end = TurnEnd(start=start, outcome=TurnOutcome.ANSWERED, ended_at=now, router=RouterOutcome.FREE)
    return Settlement(turn_id=turn_id, usage=usage, end=end)


def turn_of_another_program(
    connection: psycopg.Connection[Any],
    project_id: UUID,
    session_id: UUID,
    micros: int,
    *,
    agent: str = "dev-api",
) -> None:
    """As the existing program writes one: in a transaction, first the row, then each counter."""
    with connection.transaction():
        connection.execute(
            "INSERT INTO token_usage (session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
            " output_tokens, cost_micros, input_price_per_million_micros, latency_ms)"
            " VALUES (%s, 'agent', %s, 'openrouter', 'm', 1000000, 0, %s, %s, 5)",
            (session_id, agent, micros, micros),
        )
        connection.execute(
            "UPDATE budgets SET spent_micros = spent_micros + %s WHERE project_id = %s", (micros, project_id)
        )
        connection.execute(
            "UPDATE budgets SET spent_micros = spent_micros + %s WHERE session_id = %s", (micros, session_id)
        )
        connection.execute(
            "UPDATE agent_areas SET spent_micros = spent_micros + %s WHERE project_id = %s AND key = %s",
            (micros, project_id, area_of(agent)),
        )


def broken(database_url: str) -> dict[str, list[str]]:
    """The ids that break each invariant that is broken, as an audit of now finds them."""
    findings = PostgresAudit(database_url).run(since=None)
    return {
        one.name: [f"{row.id}: {row.detail}" for row in one.violations] for one in findings if one.violations
    }
