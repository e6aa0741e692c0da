"""What the turn's database adapters do when the database is away, silent, slow, or newer than they are."""

import asyncio
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from structlog.testing import capture_logs

from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from adapters.postgres.pool import Pool, conninfo_of, fetch_row, read_pool, write_pool
from adapters.postgres.readiness import database_is_ready
from adapters.postgres.turn_contexts import PostgresTurnContexts
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from application.ports.turn_context import ContextUnavailable
from domain.binding import BindingScope
from domain.budget import BudgetPolicy, BudgetScope
from domain.provider import Provider
from domain.usage import TokenUsage
from tests.support.database_proxy import DatabaseProxy, database_proxy, free_port
from tests.support.ledger_worlds import PostgresWorld, postgres_world, row_of, sealed_key, usage_of

PATIENCE_S = 0.5
SLACK_S = 1.0
"""For a machine with other things to do."""


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database_url) as world:
        yield world


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[DatabaseProxy]:
    async with database_proxy(database_url) as proxy:
        yield proxy


def within(limit_s: float) -> asyncio.Timeout:
    return asyncio.timeout(limit_s + SLACK_S)


def recorder_over(
    pool: Pool, journal: InMemoryJournal, unrecorded: list[TokenUsage], *, patience_s: float = 2.0
) -> PostgresUsageRecorder:
    return PostgresUsageRecorder(
        pool,
        journal,
        process_id=uuid4(),
        host="here",
        on_unrecorded=unrecorded.append,
        patience_s=patience_s,
    )


@asynccontextmanager
async def recorder_on(
    url: str, *, patience_s: float = PATIENCE_S, journal: InMemoryJournal | None = None
) -> AsyncIterator[tuple[PostgresUsageRecorder, list[TokenUsage]]]:
    unrecorded: list[TokenUsage] = []
    async with write_pool(url) as pool:
        recorder = recorder_over(pool, journal or InMemoryJournal(), unrecorded, patience_s=patience_s)
        yield recorder, unrecorded
        async with within(patience_s):
            await recorder.close()


async def kill_all_connections(world: PostgresWorld) -> int:
    """Terminate every connection to the database but the one that asks; how many, once they are gone."""
    killed = world.execute(
        "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    pids = [row["pid"] for row in killed]
    async with asyncio.timeout(5):
        alive = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(%s)"
        while world.execute(alive, pids):
            await asyncio.sleep(0.01)
    return len(pids)


# Out of reach


async def test_an_unreachable_database_is_an_unavailable_context(world: PostgresWorld) -> None:
    async with read_pool(f"postgresql://someone:s3cr3t-pw@127.0.0.1:{free_port()}/nowhere") as pool:
        contexts = PostgresTurnContexts(pool, patience_s=PATIENCE_S)
        with pytest.raises(ContextUnavailable) as raised:
            async with within(PATIENCE_S):
                await contexts.read(world.session_id, world.project_id, None)

    assert "s3cr3t-pw" not in f"{raised.value!r} {raised.value.__cause__!r}"


async def test_a_server_that_accepts_and_says_nothing_is_given_up_in_time(world: PostgresWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with read_pool(f"postgresql://someone:pw@127.0.0.1:{port}/nowhere") as pool:
            with pytest.raises(ContextUnavailable):
                async with within(PATIENCE_S):
                    await PostgresTurnContexts(pool, patience_s=PATIENCE_S).read(
                        world.session_id, world.project_id, None
                    )


async def test_a_server_that_falls_silent_is_given_up_in_time_and_found_again(
    world: PostgresWorld, proxy: DatabaseProxy
) -> None:
    async with read_pool(proxy.url) as pool:
        contexts = PostgresTurnContexts(pool, patience_s=PATIENCE_S)
        assert await contexts.read(world.session_id, world.project_id, None) is not None

        proxy.fall_silent()
        async with within(PATIENCE_S):
            answers = await asyncio.gather(
                *(contexts.read(world.session_id, world.project_id, None) for _ in range(20)),
                return_exceptions=True,
            )
        assert {type(answer) for answer in answers} == {ContextUnavailable}

        proxy.talk()
        assert await eventually_read(contexts, world)


async def test_a_server_that_went_away_is_found_again_and_not_besieged(
    world: PostgresWorld, proxy: DatabaseProxy, caplog: pytest.LogCaptureFixture
) -> None:
    full = InMemoryJournal(is_full=True)
    async with (
        read_pool(proxy.url) as pool,
        recorder_on(proxy.url, journal=full) as (recorder, unrecorded),
    ):
        contexts = PostgresTurnContexts(pool, patience_s=PATIENCE_S)
        assert await contexts.read(world.session_id, world.project_id, None) is not None
        assert await recorder.record(row_of(usage_of(world)))

        await proxy.stop()
        lost = usage_of(world)
        started_cpu_s = time.process_time()
        with pytest.raises(ContextUnavailable):
            async with within(PATIENCE_S):
                await contexts.read(world.session_id, world.project_id, None)
        with capture_logs() as logs:
            async with within(PATIENCE_S):
                assert await recorder.record(row_of(lost)) is False
            assert recorder.unkept == 1
        await asyncio.sleep(4)  # longer than the pool tries
        assert time.process_time() - started_cpu_s < 0.5
        assert unrecorded == [lost]
        (logged,) = (entry for entry in logs if entry["event"] == "usage_unrecorded")
        assert logged["log_level"] == "error"
        assert {logged["id"], logged["session_id"], logged["project_id"]} == {
            str(lost.id),
            str(lost.session_id),
            str(lost.project_id),
        }
        assert (logged["input_tokens"], logged["output_tokens"], logged["cost_micros"]) == (120, 30, 10)

        await proxy.start()
        assert await eventually_read(contexts, world)
        assert await recorder.record(row_of(usage_of(world))) or await recorder.record(
            row_of(usage_of(world))
        )
        # What was told of as lost is written all the same, since the process lived on.
        assert lost.id in world.rows()
        assert (recorder.unkept, recorder.oldest_unflushed_s) == (0, 0)
    password = conninfo_to_dict(world.database_url)["password"]
    assert str(password) not in caplog.text


async def eventually_read(contexts: PostgresTurnContexts, world: PostgresWorld) -> bool:
    """Whether the context can be read before 5 s have passed."""
    async with asyncio.timeout(5):
        while True:
            try:
                return await contexts.read(world.session_id, world.project_id, None) is not None
            except ContextUnavailable:
                await asyncio.sleep(0.05)


async def test_connections_killed_while_idle_fail_no_turn(world: PostgresWorld) -> None:
    await asyncio.gather(
        *(world.contexts.read(world.session_id, world.project_id, None) for _ in range(30)),
        *(world.recorder.record(row_of(usage_of(world))) for _ in range(30)),
    )
    assert await kill_all_connections(world) >= 4

    assert await world.contexts.read(world.session_id, world.project_id, None) is not None
    assert await world.recorder.record(row_of(usage_of(world))) is True
    assert len(world.rows()) == 31


async def test_an_exhausted_pool_is_an_unavailable_context(world: PostgresWorld) -> None:
    async with read_pool(world.database_url, size=1) as pool:
        contexts = PostgresTurnContexts(pool, patience_s=PATIENCE_S)
        async with pool.connection():
            with pytest.raises(ContextUnavailable, match="PoolTimeout"):
                async with within(PATIENCE_S):
                    await contexts.read(world.session_id, world.project_id, None)
        assert await contexts.read(world.session_id, world.project_id, None) is not None


async def test_a_schema_that_lacks_a_column_is_an_unavailable_context(world: PostgresWorld) -> None:
    world.execute("ALTER TABLE budgets RENAME COLUMN spent_micros TO spent")

    with pytest.raises(ContextUnavailable, match="42703"):
        await world.contexts.read(world.session_id, world.project_id, None)


async def test_a_reader_that_leaves_a_silent_server_leaves_at_once(
    world: PostgresWorld, proxy: DatabaseProxy
) -> None:
    async with read_pool(proxy.url) as pool:
        contexts = PostgresTurnContexts(pool)
        assert await contexts.read(world.session_id, world.project_id, None) is not None
        proxy.fall_silent()
        reader = asyncio.create_task(contexts.read(world.session_id, world.project_id, None))
        await asyncio.sleep(0.1)
        async with within(0):
            reader.cancel()
            await asyncio.wait({reader})
        assert reader.cancelled()
        proxy.talk()


# A database that other programs have gone on with


async def test_labels_and_columns_that_came_later_break_no_turn(world: PostgresWorld) -> None:
    for statement in (
        "ALTER TYPE llm_provider ADD VALUE 'provider-of-tomorrow'",
        "ALTER TYPE credential_provider ADD VALUE 'provider-of-tomorrow'",
        "ALTER TYPE budget_policy ADD VALUE 'policy-of-tomorrow'",
        "ALTER TYPE routing_preference ADD VALUE 'preference-of-tomorrow'",
        "ALTER TABLE budgets ADD COLUMN later text NOT NULL DEFAULT 'x'",
        "ALTER TABLE token_usage ADD COLUMN later int NOT NULL DEFAULT 1",
        "ALTER TABLE outbox_events ADD COLUMN later jsonb NOT NULL DEFAULT '{}'",
        "ALTER TABLE models ADD COLUMN later int NOT NULL DEFAULT 1",
    ):
        world.execute(statement)
    unknown, known = world.bound(BindingScope.SESSION), world.bound(BindingScope.WORKSPACE)
    world.bind(unknown, str(world.session_id))
    world.bind(known, str(world.workspace_id))
    world.execute("UPDATE models SET provider = 'provider-of-tomorrow' WHERE id = %s", unknown.model_id)
    world.execute(
        "UPDATE model_bindings SET routing_preference = 'preference-of-tomorrow' WHERE model_id = %s",
        known.model_id,
    )
    for provider in ("provider-of-tomorrow", "github"):
        world.execute(
            "INSERT INTO user_credentials (user_id, provider, wrapped_dek, dek_iv, dek_auth_tag, encrypted_api_key,"
            " api_key_iv, api_key_auth_tag) VALUES (%s, %s::credential_provider, '', '', '', '', '', '')",
            world.owner_id,
            provider,
        )
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 100, spent_micros=100))
    world.execute("UPDATE budgets SET policy = 'policy-of-tomorrow'")

    context = await world.contexts.read(world.session_id, world.project_id, None)

    assert context is not None
    assert list(context.bindings.by_scope) == [known]
    assert context.sealed_keys == {}
    (budget,) = context.budgets
    assert (budget.limit_micros, budget.spent_micros, budget.policy) == (100, 100, BudgetPolicy.BLOCK)
    assert await world.recorder.record(row_of(usage_of(world)))
    assert [each["payload"]["threshold"] for each in world.announcements()] == [70, 90, 100]


@pytest.mark.parametrize(
    ("column", "field"),
    [
        ("models.availability", "bindings.availability"),
        ("budgets.spent_micros", "budgets.spent_micros"),
        ("agent_areas.spent_micros", "area.spent_micros"),
        ("user_credentials.api_key_iv", "keys.api_key_iv"),
    ],
)
async def test_a_null_where_a_value_must_be_is_an_unavailable_context_that_names_it(
    world: PostgresWorld, column: str, field: str
) -> None:
    world.bind(world.bound(BindingScope.WORKSPACE), str(world.workspace_id))
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    world.add_area("dev", AreaEntry(limit_micros=1_000))
    world.add_key(world.owner_id, Provider.OPENROUTER, sealed_key("the-envelope"))
    table, name = column.split(".")
    world.execute(f"ALTER TABLE {table} ALTER {name} DROP NOT NULL")
    world.execute(f"UPDATE {table} SET {name} = NULL")

    with pytest.raises(ContextUnavailable, match=f"as {field}: ") as raised:
        await world.contexts.read(world.session_id, world.project_id, "dev-api")

    assert raised.value.__cause__ is None


# Settling among others


async def test_a_locked_budget_holds_up_its_own_turns_only(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    other_project = world.add_project()
    other_session = world.add_session(other_project)
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, other_project, 1_000))
    usages = [usage_of(world, 1) for _ in range(4)] + [
        usage_of(world, 1, project_id=other_project, session_id=other_session) for _ in range(4)
    ]

    async with recorder_on(world.database_url, patience_s=4) as (recorder, unrecorded):
        with psycopg.connect(world.database_url) as holder:
            holder.execute("SELECT id FROM budgets WHERE project_id = %s FOR UPDATE", (world.project_id,))
            results = await asyncio.gather(*map(recorder.record, map(row_of, usages)))

            assert results == [True] * 8  # four of them are on disk alone
            assert world.budget(BudgetScope.PROJECT, other_project).spent_micros == 4
            assert len(world.rows()) == 4

    assert not unrecorded
    assert len(world.rows()) == 8
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 4


async def test_a_long_lock_costs_no_other_project_a_record(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**6))
    others = [world.add_project() for _ in range(30)]
    sessions = {project: world.add_session(project) for project in others}
    settling: list[asyncio.Task[bool]] = []

    async with recorder_on(world.database_url, patience_s=3) as (recorder, unrecorded):
        with psycopg.connect(world.database_url) as holder:
            holder.execute("SELECT id FROM budgets WHERE project_id = %s FOR UPDATE", (world.project_id,))
            until_s = time.monotonic() + 4
            while time.monotonic() < until_s:
                usages = [usage_of(world, 1) for _ in range(2)] + [
                    usage_of(world, 1, project_id=project, session_id=session)
                    for project, session in sessions.items()
                ]
                settling += [asyncio.create_task(recorder.record(row_of(usage))) for usage in usages]
                await asyncio.sleep(0.1)
        await asyncio.gather(*settling)
        last = usage_of(world, 1)
        assert await recorder.record(row_of(last))  # the lock is gone, and so is what it held up

    assert not unrecorded
    mine = [row for row in world.rows().values() if row["session_id"] == world.session_id]
    assert len(mine) + 1 > 2
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == len(mine)


async def test_a_lock_that_is_released_in_time_costs_no_record(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))

    async with recorder_on(world.database_url, patience_s=10) as (recorder, unrecorded):
        with psycopg.connect(world.database_url) as holder:
            holder.execute("SELECT id FROM budgets FOR UPDATE")
            settling = asyncio.gather(*(recorder.record(row_of(usage_of(world, 1))) for _ in range(8)))
            await asyncio.sleep(1.2)
        assert all(await settling)

    assert not unrecorded
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 8


async def test_a_deadlock_with_another_program_loses_nothing(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    world.add_area("dev", AreaEntry())
    database = conninfo_to_dict(world.database_url)["dbname"]
    world.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '50ms'")
    usages = [usage_of(world, 1, area="dev") for _ in range(5)]

    async with recorder_on(world.database_url, patience_s=10) as (recorder, unrecorded):
        async with await psycopg.AsyncConnection.connect(world.database_url) as other:
            await other.execute("SET deadlock_timeout = '10s'")  # so that the recorder is the one to give way
            await other.execute("UPDATE agent_areas SET spent_micros = spent_micros + 100")
            settling = asyncio.gather(*map(recorder.record, map(row_of, usages)))
            await asyncio.sleep(0.3)
            await other.execute("UPDATE budgets SET spent_micros = spent_micros + 100")
        assert all(await settling)

    assert not unrecorded
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 105
    assert world.area_spent_micros("dev") == 105


async def test_among_a_thousand_the_bad_ones_fail_alone_and_soon(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**9))
    usages = [usage_of(world, 1) for _ in range(1_000)]
    bad = set(range(0, 1_000, 100))
    for position in bad:
        usages[position] = usage_of(world, 1, session_id=uuid4())

    async with recorder_on(world.database_url, patience_s=20) as (recorder, unrecorded):
        results = await asyncio.gather(*map(recorder.record, map(row_of, usages)))

    assert all(results)
    assert not unrecorded
    assert world.parked_ids() == sorted(usages[position].id for position in bad)
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 1_000


async def test_thousands_handed_over_at_once_are_all_written(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**9))

    async with recorder_on(world.database_url, patience_s=30) as (recorder, _):
        results = await asyncio.gather(*(recorder.record(row_of(usage_of(world, 1))) for _ in range(5_000)))

    assert all(results)
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 5_000


async def test_a_silent_database_is_told_of_and_the_record_may_come_again(
    world: PostgresWorld, proxy: DatabaseProxy
) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    async with recorder_on(proxy.url, journal=InMemoryJournal(is_full=True)) as (recorder, unrecorded):
        assert await recorder.record(row_of(usage_of(world, 1)))
        usage = usage_of(world, 10)

        proxy.fall_silent()
        async with within(PATIENCE_S):
            assert await recorder.record(row_of(usage)) is False
        assert unrecorded == [usage]

        proxy.talk()
        async with asyncio.timeout(5):
            while not await recorder.record(row_of(usage)):
                await asyncio.sleep(0.05)
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 11
    assert len(world.rows()) == 2


async def test_a_connection_lost_under_way_is_tried_again(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    async with recorder_on(world.database_url, patience_s=10) as (recorder, unrecorded):
        with psycopg.connect(world.database_url) as holder:
            holder.execute("SELECT id FROM budgets FOR UPDATE")
            settling = asyncio.create_task(recorder.record(row_of(usage_of(world, 5))))
            async with asyncio.timeout(5):
                while not world.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                ):
                    await asyncio.sleep(0.01)
        assert await settling
    assert not unrecorded
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 5


async def test_what_nobody_waits_for_is_written_all_the_same(world: PostgresWorld) -> None:
    alone, taken_along, urgent, at_the_end = (usage_of(world, 1) for _ in range(4))
    async with recorder_on(world.database_url) as (recorder, unrecorded):
        assert await recorder.record(row_of(alone), at_leisure=True)
        waiting = asyncio.create_task(recorder.record(row_of(taken_along), at_leisure=True))
        await asyncio.sleep(0)
        assert await recorder.record(row_of(urgent))
        assert waiting.done() or await waiting
        last = asyncio.create_task(recorder.record(row_of(at_the_end), at_leisure=True))
        await asyncio.sleep(0)
        await recorder.close()
        assert await last
    assert unrecorded == []
    assert set(world.rows()) == {usage.id for usage in (alone, taken_along, urgent, at_the_end)}


async def test_closing_writes_what_was_handed_over(world: PostgresWorld) -> None:
    async with write_pool(world.database_url) as pool:
        recorder = recorder_over(pool, InMemoryJournal(is_full=True), world.unrecorded)
        handed = [asyncio.create_task(recorder.record(row_of(usage_of(world)))) for _ in range(50)]
        await asyncio.sleep(0)
        await recorder.close()
        assert all([await each for each in handed])
        assert len(world.rows()) == 50

        late = usage_of(world)
        assert await recorder.record(row_of(late)) is False
        assert world.unrecorded == [late]


async def test_closing_before_a_silent_database_ends_in_time(
    world: PostgresWorld, proxy: DatabaseProxy
) -> None:
    async with write_pool(proxy.url) as pool:
        recorder = recorder_over(pool, InMemoryJournal(), world.unrecorded, patience_s=PATIENCE_S)
        assert await recorder.record(row_of(usage_of(world)))
        proxy.fall_silent()
        handed = asyncio.create_task(recorder.record(row_of(usage_of(world))))
        await asyncio.sleep(0)
        async with within(PATIENCE_S):
            await recorder.close()
        assert await handed is True  # it is on disk


async def test_what_the_end_of_the_loop_cuts_off_is_told_of(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    in_a_statement, queued_behind_it = usages = [usage_of(world, 1) for _ in range(2)]
    unrecorded: list[TokenUsage] = []

    async def settle() -> None:
        async with write_pool(world.database_url, size=1) as pool:
            recorder = recorder_over(pool, InMemoryJournal(is_full=True), unrecorded)
            first = asyncio.ensure_future(recorder.record(row_of(in_a_statement)))
            await asyncio.sleep(0.2)
            await asyncio.gather(first, recorder.record(row_of(queued_behind_it)))

    async def process() -> None:
        settling = asyncio.ensure_future(settle())
        await asyncio.wait({settling}, timeout=0.4)
        assert not settling.done()

    with psycopg.connect(world.database_url) as holder, capture_logs() as logs:
        holder.execute("SELECT id FROM budgets FOR UPDATE")
        await asyncio.to_thread(asyncio.run, process())

    assert {usage.id for usage in unrecorded} == {usage.id for usage in usages}
    told = [line for line in logs if line["event"] == "usage_unrecorded"]
    assert {line["id"] for line in told} == {str(usage.id) for usage in usages}
    assert {line["reason"] for line in told} == {"the process ended before the database took it"}
    assert {line["cost_micros"] for line in told} == {1}


async def test_a_record_outlives_its_model_and_not_its_session(world: PostgresWorld) -> None:
    world.add_budget(BudgetEntry(BudgetScope.PROJECT, world.project_id, 1_000))
    orphan = usage_of(world, 7, model_id=uuid4())
    lost = usage_of(world, 8, model_id=uuid4(), session_id=uuid4())

    with capture_logs() as logs:
        results = await asyncio.gather(
            *map(world.recorder.record, map(row_of, [usage_of(world, 1), orphan, lost]))
        )

    assert results == [True, True, True]
    assert world.rows()[orphan.id]["model_id"] is None
    assert world.budget(BudgetScope.PROJECT, world.project_id).spent_micros == 16
    assert world.unrecorded == []
    assert world.parked_ids() == [lost.id]
    (told,) = [line for line in logs if line["event"] == "usage_parked"]
    assert told["id"] == str(lost.id)


@pytest.mark.parametrize("text", ["with\0nul", "with \ud800 alone"])
async def test_what_a_text_column_cannot_hold_costs_no_record(world: PostgresWorld, text: str) -> None:
    usage = usage_of(world, generation_id=text, upstream_provider=text, resolved_model_name=text)

    assert await world.recorder.record(row_of(usage))

    row = world.rows()[usage.id]
    assert row["generation_id"].startswith("with")
    assert row["generation_id"] == row["upstream_provider"] == row["resolved_model_name"]


@pytest.mark.parametrize("latency_ms", [2**31, 2**70])
async def test_a_number_no_column_holds_is_parked_alone(world: PostgresWorld, latency_ms: int) -> None:
    bad = usage_of(world, latency_ms=latency_ms)

    results = await asyncio.gather(
        *map(world.recorder.record, map(row_of, [usage_of(world), bad, usage_of(world)]))
    )

    assert results == [True, True, True]
    assert world.unrecorded == []
    assert world.parked_ids() == [bad.id]


# Readiness


async def test_a_migrated_database_is_ready(database_url: str) -> None:
    async with read_pool(database_url) as pool:
        readiness = await database_is_ready(pool)

    assert readiness.is_ready
    assert readiness.reason == ""


async def test_a_database_without_tables_is_not_ready(empty_database_url: str) -> None:
    async with read_pool(empty_database_url) as pool:
        readiness = await database_is_ready(pool)

    assert not readiness.is_ready
    assert "brabo migrate" in readiness.reason


@pytest.mark.parametrize(
    "statement",
    ["UPDATE brabo_api_version SET version_num = '0067'", "DELETE FROM brabo_api_version"],
)
async def test_a_database_at_another_revision_is_not_ready(world: PostgresWorld, statement: str) -> None:
    world.execute(statement)

    async with read_pool(world.database_url) as pool:
        readiness = await database_is_ready(pool)

    assert not readiness.is_ready
    assert "brabo migrate" in readiness.reason


@pytest.mark.parametrize(("revision", "is_ready"), [("py9999", True), ("py0001", False), ("later", False)])
async def test_a_later_revision_of_ours_has_all_that_is_needed(
    world: PostgresWorld, revision: str, is_ready: bool
) -> None:
    world.execute(f"UPDATE brabo_api_version SET version_num = '{revision}'")

    async with read_pool(world.database_url) as pool:
        assert (await database_is_ready(pool)).is_ready is is_ready


async def test_a_silent_or_absent_database_is_not_ready_in_time(
    world: PostgresWorld, proxy: DatabaseProxy
) -> None:
    async with read_pool(proxy.url) as pool:
        assert (await database_is_ready(pool)).is_ready
        proxy.fall_silent()
        async with within(PATIENCE_S):
            assert not (await database_is_ready(pool, patience_s=PATIENCE_S)).is_ready
        await proxy.stop()
        async with within(PATIENCE_S):
            readiness = await database_is_ready(pool, patience_s=PATIENCE_S)
    assert not readiness.is_ready
    assert "DATABASE_URL" in readiness.reason


# The pool


@pytest.mark.parametrize(
    "scheme", ["postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg", "postgres+psycopg2"]
)
async def test_every_spelling_of_the_url_connects(database_url: str, scheme: str) -> None:
    async with read_pool(database_url.replace("postgresql", scheme, 1), size=1) as pool:
        deadline_s = asyncio.get_running_loop().time() + 5
        assert await fetch_row(pool, b"SELECT 1", None, deadline_s=deadline_s) == (1,)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cr3t@localhost/x",
        "postgresql://me:s3cr3t%zz@localhost/x",
        "postgresql://me:s3cr3t@[::1/x",
        "postgresql://me:s3cr3t@localhost/x?schema=public",
        "host=localhost password=s3cr3t",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="DATABASE_URL") as raised:
        conninfo_of(url)

    assert "s3cr3t" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_no_statement_outlives_its_patience_on_the_server(world: PostgresWorld) -> None:
    async with write_pool(world.database_url, size=1) as pool:
        assert await setting(pool, "statement_timeout") == "2s"
        assert await setting(pool, "lock_timeout") == "500ms"
    async with read_pool(world.database_url, size=1) as pool:
        assert await setting(pool, "statement_timeout") == "2s"


async def setting(pool: Pool, name: str) -> Any:
    row = await fetch_row(
        pool, f"SHOW {name}".encode(), None, deadline_s=asyncio.get_running_loop().time() + 5
    )
    assert row is not None
    return row[0]


def test_the_adapters_of_the_turn_do_without_the_orm() -> None:
    modules = ", ".join(
        f"adapters.postgres.{name}" for name in ("pool", "turn_contexts", "usage_recorder", "readiness")
    )
    program = f"import sys, {modules}; sys.exit('sqlalchemy.orm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


async def test_secrets_are_in_no_log_of_a_turn(
    world: PostgresWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_key(world.owner_id, Provider.OPENROUTER, sealed_key("the-envelope"))
    caplog.set_level(logging.DEBUG)
    with capture_logs() as logs:
        context = await world.contexts.read(world.session_id, world.project_id, None)
        await world.recorder.record(row_of(usage_of(world, session_id=uuid4())))

    assert context is not None
    envelope = context.sealed_keys[Provider.OPENROUTER].wrapped_dek
    password = conninfo_to_dict(world.database_url).get("password", "no password")
    for secret in (envelope, str(password)):
        assert secret not in f"{caplog.text} {logs} {context!r}"
