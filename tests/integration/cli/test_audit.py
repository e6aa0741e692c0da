"""`brabo audit`: it finds what is damaged, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from adapters.metrics.telemetry import PrometheusTelemetry
from adapters.postgres import audit as audit_module
from adapters.postgres.audit import PostgresAuditRuns
from adapters.postgres.invariants import INVARIANTS, Invariant
from adapters.postgres.pool import read_pool
from application.ports.budgets import BudgetOwner
from application.ports.holds import HoldRequest
from domain.budget import BudgetScope
from tests.support.books import broken, turn_of_another_program, whole_turn
from tests.support.ledger_worlds import PostgresWorld, postgres_world


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    """Books with a bit of everything in them, all in order."""
    async with postgres_world(database_url) as world:
        world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000, spent_micros=100))
        strict = BudgetEntry(BudgetScope.SESSION, world.session_id, 10**9, is_strict=True)
        world.add_budget(strict)
        world.add_area("dev", AreaEntry())
        for agent in ("dev-api", "escriba", "dev-lead"):
            await world.recorder.record(whole_turn(world, agent=agent))
        held = whole_turn(world, awaits_truth=True, is_estimated=True, generation_id="gen-1")
        assert held.end is not None
        await world.holds.place(
            HoldRequest(start=held.end.start, budget_ids=(strict.id,), chat_micros=9_000, router_micros=0)
        )
        await world.recorder.record(held)
        cut = whole_turn(world, agent="dev-api", awaits_truth=True, is_estimated=True, generation_id="gen-2")
        await world.recorder.record(cut)
        await world.corrections.book_truth(cut.turn_id, Decimal("0.000123"))
        doomed = world.add_session(world.project_id)
        world.delete_session(doomed)
        await world.recorder.record(whole_turn(world, session_id=doomed))
        with psycopg.connect(database_url, autocommit=True) as other:
            turn_of_another_program(other, world.project_id, world.session_id, 7)
        yield world


def brabo_audit(database_url: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entrypoints.cli.main", "audit", *options],
        env={**os.environ, "DATABASE_URL": database_url, "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
    )


def audit(database_url: str, *options: str) -> tuple[int, dict[str, list[str]]]:
    """The exit status, and the ids that break each invariant that is broken."""
    done = brabo_audit(database_url, "--json", *options)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["invariants"]
    return done.returncode, {
        one["name"]: [violation["id"] for violation in one["violations"]]
        for one in found
        if one["violations"]
    }


async def test_books_in_order_are_said_to_be(world: PostgresWorld) -> None:
    assert audit(world.database_url) == (0, {})
    assert world.execute("SELECT violations, failed FROM audit_runs") == [{"violations": 0, "failed": []}]
    done = brabo_audit(world.database_url)
    assert (done.returncode, done.stderr) == (0, "")
    *lines, last = done.stdout.splitlines()
    assert last == f"All {len(INVARIANTS)} invariants hold."
    assert [line.split()[:2] for line in lines] == [[invariant.name, "holds"] for invariant in INVARIANTS]


OLD = "now() - interval '1 day'"
A_CHAT_ROW = "SELECT id FROM token_usage WHERE id = turn_id AND NOT estimated ORDER BY id LIMIT 1"
A_TURN = "SELECT turn_id FROM turn_starts ORDER BY turn_id LIMIT 1"
THE_CROSSED = "event_type = 'budget.threshold_crossed' AND (payload ->> 'threshold')::int = 70"

DAMAGES = [
    (
        "project-counters",
        "UPDATE budgets SET spent_micros = spent_micros + 1 WHERE project_id IS NOT NULL RETURNING id",
    ),
    ("project-counters", "DELETE FROM counter_openings WHERE opening_micros = 100 RETURNING counter_id"),
    (
        "project-counters",
        "UPDATE parked_usage SET cost_micros = cost_micros - 1 RETURNING moved_project_budget_id",
    ),
    (
        "project-counters",
        "WITH d AS (DELETE FROM token_usage WHERE turn_id IS NULL) SELECT id FROM budgets WHERE project_id IS NOT NULL",
    ),
    (
        "session-counters",
        "UPDATE budgets SET spent_micros = spent_micros - 1 WHERE session_id IS NOT NULL RETURNING id",
    ),
    (
        "session-counters",
        f"DELETE FROM token_usage WHERE id = ({A_CHAT_ROW}) RETURNING moved_session_budget_id",
    ),
    ("area-counters", "UPDATE agent_areas SET spent_micros = spent_micros + 5 RETURNING id"),
    ("area-counters", "UPDATE usage_corrections SET delta_micros = delta_micros - 1 RETURNING moved_area_id"),
    (
        "marks",
        (
            f"WITH d AS (UPDATE counter_openings SET created_at = {OLD}) UPDATE token_usage"
            f" SET moved_session_budget_id = NULL WHERE id = ({A_CHAT_ROW}) RETURNING id"
        ),
    ),
    (
        "marks",
        (
            "UPDATE token_usage t SET moved_project_budget_id = moved_session_budget_id"
            f" WHERE id = ({A_CHAT_ROW}) RETURNING id"
        ),
    ),
    (
        "marks",
        (
            "UPDATE token_usage t SET moved_area_id = (SELECT id FROM agent_areas)"
            " WHERE actor_id = 'escriba' AND NOT estimated RETURNING id"
        ),
    ),
    ("marks", "UPDATE usage_corrections SET moved_session_budget_id = NULL RETURNING usage_id"),
    ("holds", "UPDATE budgets SET held_micros = 7 WHERE project_id IS NOT NULL RETURNING id"),
    ("holds", "UPDATE budget_holds SET chat_micros = chat_micros + 1 RETURNING budget_id"),
    (
        "holds-end",
        (
            f"WITH d AS (UPDATE turn_starts SET ended_at = {OLD}) UPDATE budget_holds"
            f" SET state = 'open', created_at = {OLD} RETURNING turn_id"
        ),
    ),
    ("holds-end", "UPDATE budget_holds SET chat_micros = 0, state = 'settled' RETURNING turn_id"),
    ("prices", f"UPDATE token_usage SET input_tokens = 1100 WHERE id = ({A_CHAT_ROW}) RETURNING id"),
    ("prices", f"UPDATE token_usage SET price_implicit = true WHERE id = ({A_CHAT_ROW}) RETURNING id"),
    ("prices", "UPDATE token_usage SET cost_micros = cost_micros + 1 WHERE turn_id IS NULL RETURNING id"),
    ("prices", "UPDATE parked_usage SET record = record || '{\"input_tokens\": 1100}' RETURNING id"),
    ("charges", f"UPDATE token_usage SET charged_usd = 0.0001515 WHERE id = ({A_CHAT_ROW}) RETURNING id"),
    ("corrections", "UPDATE usage_corrections SET usage_id = gen_random_uuid() RETURNING usage_id"),
    ("corrections", "UPDATE usage_corrections SET delta_micros = -151 RETURNING usage_id"),
    (
        "truths",
        "UPDATE usage_truths SET truth_micros = truth_micros + 1 WHERE state = 'corrected' RETURNING usage_id",
    ),
    (
        "thresholds",
        (
            "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, metadata)"
            " SELECT aggregate_type, aggregate_id, event_type, payload, metadata FROM outbox_events"
            f" WHERE {THE_CROSSED} RETURNING aggregate_id"
        ),
    ),
    (
        "thresholds",
        "UPDATE budgets SET last_threshold_notified = 0 WHERE project_id IS NOT NULL RETURNING id",
    ),
    (
        "thresholds",
        f"UPDATE outbox_events SET metadata = '{{\"arming\": 1}}' WHERE {THE_CROSSED} RETURNING aggregate_id",
    ),
    (
        "ends",
        (
            "UPDATE turn_starts SET ended_at = NULL, outcome = NULL, due_at = now() - interval '16 minutes'"
            f" WHERE turn_id = ({A_TURN}) RETURNING turn_id"
        ),
    ),
    ("ends", f"UPDATE turn_starts SET outcome = NULL WHERE turn_id = ({A_TURN}) RETURNING turn_id"),
    (
        "ends",
        f"UPDATE turn_starts SET ended_at = NULL, outcome = NULL WHERE turn_id = ({A_TURN}) RETURNING turn_id",
    ),
    ("ends", f"DELETE FROM turn_starts WHERE turn_id = ({A_TURN}) RETURNING turn_id"),
    (
        "ends",
        (
            f"UPDATE token_usage SET turn_id = gen_random_uuid(), created_at = {OLD}"
            f" WHERE id = ({A_CHAT_ROW}) RETURNING id"
        ),
    ),
    (
        "ends",
        (
            f"UPDATE turn_starts s SET router_outcome = 'charged', ended_at = {OLD} FROM sessions"
            f" WHERE sessions.id = s.session_id AND turn_id = ({A_CHAT_ROW}) RETURNING turn_id"
        ),
    ),
    ("not-negative", f"UPDATE token_usage SET latency_ms = -1 WHERE id = ({A_CHAT_ROW}) RETURNING id"),
    ("not-negative", "UPDATE budgets SET held_micros = -1 WHERE project_id IS NOT NULL RETURNING id"),
    ("not-negative", "UPDATE parked_usage SET cost_micros = -1 RETURNING id"),
    ("not-negative", "UPDATE budget_holds SET router_micros = -1 RETURNING turn_id"),
    ("not-negative", "UPDATE usage_corrections SET figure_usd = -1 RETURNING usage_id"),
]
MORE_DAMAGES = [
    damage for at, damage in enumerate(DAMAGES) if damage[0] in {name for name, _ in DAMAGES[:at]}
]


def test_the_page_says_what_each_invariant_means() -> None:
    page = (Path(__file__).parents[3] / "docs" / "books.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.endswith(". |")]
    assert rows == [f"| `{invariant.name}` | {invariant.meaning} |" for invariant in INVARIANTS]


def test_each_invariant_has_a_damage() -> None:
    assert {invariant for invariant, _ in DAMAGES} == {invariant.name for invariant in INVARIANTS}


@pytest.mark.parametrize("invariant", [invariant.name for invariant in INVARIANTS])
async def test_a_damage_of_each_invariant_is_found_with_its_id(world: PostgresWorld, invariant: str) -> None:
    damage = next(damage for name, damage in DAMAGES if name == invariant)
    ((damaged,),) = (row.values() for row in world.execute(damage))

    status, found = audit(world.database_url)

    assert status == 1
    assert str(damaged) in found[invariant]
    assert world.execute("SELECT violations, failed FROM audit_runs") == [
        {"violations": sum(map(len, found.values())), "failed": list(found)}
    ]


@pytest.mark.parametrize(
    ("invariant", "damage"), MORE_DAMAGES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(MORE_DAMAGES)]
)
async def test_every_other_damage_is_found_with_its_id(
    world: PostgresWorld, invariant: str, damage: str
) -> None:
    ((damaged,),) = (row.values() for row in world.execute(damage))
    assert str(damaged) in [line.partition(":")[0] for line in broken(world.database_url)[invariant]]


async def test_people_are_told_of_each_row(world: PostgresWorld) -> None:
    world.execute("UPDATE agent_areas SET spent_micros = spent_micros + 5")
    ((area_id,),) = (row.values() for row in world.execute("SELECT id FROM agent_areas"))
    done = brabo_audit(world.database_url)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert f"{area_id}: says 435; opening 0, rows of other programs 7 and ours 423 are 430" in said
    assert done.stdout.endswith(f"1 of {len(INVARIANTS)} invariants are broken.\n")


async def test_since_leaves_older_rows_out_and_sums_whole(world: PostgresWorld) -> None:
    world.execute("UPDATE token_usage SET latency_ms = -1, created_at = '2026-01-01T00:00Z'")
    world.execute("UPDATE budgets SET spent_micros = spent_micros + 1 WHERE project_id IS NOT NULL")

    assert set(audit(world.database_url)[1]) == {"not-negative", "project-counters"}
    assert set(audit(world.database_url, "--since", "2026-01-02")[1]) == {"project-counters"}


async def test_older_corrections_of_a_row_count_with_newer_ones(world: PostgresWorld) -> None:
    """Up by 100 long ago, and down by 200 today: the row still comes to 50."""
    usage_id = uuid4()
    world.execute(
        "INSERT INTO token_usage (id, session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
        " output_tokens, cost_micros, latency_ms, price_implicit) VALUES (%s, %s, 'agent', 'x', 'openrouter', 'm', 0,"
        " 0, 150, 5, true)",
        usage_id,
        world.session_id,
    )
    world.execute("UPDATE budgets SET spent_micros = spent_micros + 150")
    for ordinal, delta_micros, created_at in ((1, 100, "2026-01-01T00:00Z"), (2, -200, "2026-02-01T00:00Z")):
        world.execute(
            "INSERT INTO usage_corrections (usage_id, ordinal, figure_usd, source, delta_micros, delta_usd, project_id,"
            " session_id, actor_kind, actor_id, provider, model_name, usage_created_at, created_at)"
            " VALUES (%s, %s, %s, 'settlement', %s, 0, %s, %s, 'agent', 'x', 'openrouter', 'm', now(), %s)",
            usage_id,
            ordinal,
            ordinal,
            delta_micros,
            world.project_id,
            world.session_id,
            created_at,
        )
    assert audit(world.database_url, "--since", "2026-01-15") == (0, {})


async def test_the_statements_can_be_run_by_anyone(world: PostgresWorld) -> None:
    statements = [part for part in brabo_audit("", "--sql").stdout.split(";\n") if part.strip()]
    assert len(statements) == len(INVARIANTS)
    with psycopg.connect(world.database_url) as connection:
        for statement in statements:
            assert connection.execute(statement.encode()).fetchall() == []
        connection.execute("UPDATE budgets SET spent_micros = -1, held_micros = -1")
        broken_ones = [part for part in statements if connection.execute(part.encode()).fetchall()]
    assert len(broken_ones) == len({"project-counters", "session-counters", "holds", "not-negative"})


async def test_whoever_may_only_read_can_audit(world: PostgresWorld) -> None:
    url = world.database_url + ("&" if "?" in world.database_url else "?")
    done = brabo_audit(f"{url}options=-c%20default_transaction_read_only%3Don", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["violations"] == 0
    assert "read-only transaction" in done.stderr
    assert "metrics" in done.stderr
    assert world.execute("SELECT * FROM audit_runs") == []


@pytest.mark.parametrize("moment", ["yesterday", "2026-13-01"])
def test_a_time_that_is_none_is_wrong_usage(moment: str) -> None:
    done = brabo_audit("", "--since", moment)
    assert done.returncode == 2
    assert "is no time" in done.stderr


PRICED = [
    # Tokens and prices, in and out; implicit or not; the costs that are right, None: any.
    (1_000, 500, 150_000, 600_000, False, {450}),
    (3, 0, 500_000, 0, False, {2}),
    (1, 1, 500_000, 500_000, False, {2}),
    (1, 1, 500_000, 500_000, True, {1}),
    (999_999, 1, 7, 7, True, {7}),
    (999_999, 2, 7, 7, True, {6, 7, 8}),
    (2_000_000_000, 2_000_000_000, 1, 1, True, set(range(4_000 - 2_000, 4_000 + 2_000 + 1))),
    (0, 0, 0, 0, True, None),
    (0, 0, 1, 1, True, set[int]()),
    (100, 50, 10, 11, True, set[int]()),
]


@pytest.mark.parametrize(("tokens_in", "tokens_out", "price_in", "price_out", "is_implicit", "right"), PRICED)
async def test_tokens_times_price_is_cost_by_the_contracts_rule(
    database_url: str,
    tokens_in: int,
    tokens_out: int,
    price_in: int,
    price_out: int,
    is_implicit: bool,
    right: set[int] | None,
) -> None:
    least, most = (min(right), max(right)) if right else (0, 17)
    asked = {cost for cost in (0, 1, least - 1, least, most, most + 1) if cost >= 0}
    async with postgres_world(database_url) as world:
        for cost_micros in asked:
            world.execute(
                "INSERT INTO token_usage (session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
                " output_tokens, cost_micros, input_price_per_million_micros, output_price_per_million_micros,"
                " latency_ms, price_implicit) VALUES (%s, 'agent', 'x', 'openrouter', 'm', %s, %s, %s, %s, %s, 5, %s)",
                world.session_id,
                tokens_in,
                tokens_out,
                cost_micros,
                price_in,
                price_out,
                is_implicit,
            )
        found = {int(line.rsplit(" ", 1)[1]) for line in broken(world.database_url).get("prices", [])}
        assert found == (set() if right is None else asked - right)


async def test_events_of_another_program_in_an_arming_of_ours_are_no_violation(world: PostgresWorld) -> None:
    """They name no arming. Each may be one of an arming that they do not know of, and not one more."""
    owner = BudgetOwner(world.project_id)
    ((budget_id,),) = (
        row.values() for row in world.execute("SELECT id FROM budgets WHERE project_id IS NOT NULL")
    )

    def announce(threshold: int) -> None:
        world.execute(
            "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, metadata)"
            " VALUES ('budget', %s, 'budget.threshold_crossed', %s, '{}')",
            budget_id,
            Jsonb({"threshold": threshold}),
        )

    await world.budgets.set(owner, limit_micros=10_000, policy=None)
    world.execute("UPDATE budgets SET last_threshold_notified = 70 WHERE id = %s", budget_id)
    announce(70)
    assert broken(world.database_url) == {}
    announce(70)
    assert set(broken(world.database_url)) == {"thresholds"}


async def test_thresholds_announced_again_after_a_raise_are_of_another_arming(world: PostgresWorld) -> None:
    await world.budgets.set(BudgetOwner(world.project_id), limit_micros=2_000, policy=None)
    for _ in range(8):
        await world.recorder.record(whole_turn(world))
    announced = [row["payload"]["threshold"] for row in world.announcements()]
    assert announced.count(70) == 2
    assert broken(world.database_url) == {}


async def test_the_books_of_a_turn_that_has_not_ended_are_in_order(world: PostgresWorld) -> None:
    """Its router's row may come first, before the start even."""
    turn = whole_turn(world)
    assert turn.usage is not None
    router = replace(turn.usage, id=uuid4())
    await world.recorder.record(replace(turn, usage=router, end=None))
    assert broken(world.database_url) == {}


async def test_the_metrics_tell_of_the_last_run(world: PostgresWorld) -> None:
    async with read_pool(world.database_url) as pool:
        runs = PostgresAuditRuns(pool)
        assert await runs.last() is None
        world.execute("UPDATE budgets SET held_micros = 7 WHERE project_id IS NOT NULL")
        audit(world.database_url)
        last = await runs.last()
    assert last is not None
    assert last.violations == 1
    telemetry = PrometheusTelemetry()
    telemetry.last_audit(last.violations, age_s=3.5)
    assert telemetry.registry.get_sample_value("brabo_audit_violations") == 1
    assert telemetry.registry.get_sample_value("brabo_audit_age_seconds") == 3.5


async def test_an_audit_is_of_one_moment(world: PostgresWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes after its first statement is not seen by the others."""
    statement_of = audit_module._since
    done: list[Invariant] = []

    def damaged_before_the_second(invariant: Invariant, since: datetime | None) -> str:
        if len(done) == 1:
            world.execute("UPDATE budgets SET held_micros = -7 WHERE project_id IS NOT NULL")
        done.append(invariant)
        return statement_of(invariant, since)

    monkeypatch.setattr(audit_module, "_since", damaged_before_the_second)
    assert broken(world.database_url) == {}
    assert set(broken(world.database_url)) == {"holds", "not-negative"}
