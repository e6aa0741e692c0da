"""What a counter held when it was first seen, and what goes with deleted sessions: the sums hold, whoever writes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from adapters.in_memory.ledger import AreaEntry, BudgetEntry
from application.ports.budgets import BudgetOwner
from domain.agents import area_of
from domain.budget import BudgetScope
from tests.support.books import broken, turn_of_another_program, whole_turn
from tests.support.ledger_worlds import PostgresWorld, postgres_world

SLUGS = [
    *(
        "dev-lead",
        "dev-api",
        "dev-",
        "dev-x-y",
        "dev",
        "developer",
        "Dev-api",
        " dev-api",
        "dev_api",
        "qa-dev-",
    ),
    *("qa", "qa-automacao", "qa-performance-seguranca", "qa-", "qa-x", "QA", "qa "),
    *("infra", "infra-workflows", "infra-", "infra-x", "criativo", "escriba", "anamnese", "context-manager"),
    *("", "-", "ação", "dev-ação", "a'b", "%", "dev-%"),
]


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[PostgresWorld]:
    async with postgres_world(database_url) as world:
        yield world


@pytest.fixture
def other(world: PostgresWorld) -> Iterator[psycopg.Connection[Any]]:
    """The existing program."""
    with psycopg.connect(world.database_url, autocommit=True) as connection:
        yield connection


def openings_of(world: PostgresWorld, counter_id: UUID) -> list[int]:
    rows = world.execute(
        "SELECT opening_micros FROM counter_openings WHERE counter_id = %s ORDER BY created_at", counter_id
    )
    return [row["opening_micros"] for row in rows]


def session_budget(world: PostgresWorld, session_id: UUID, spent_micros: int = 0) -> UUID:
    entry = BudgetEntry(BudgetScope.SESSION, session_id, 10**6, spent_micros=spent_micros)
    world.add_budget(entry)
    return entry.id


def project_budget(world: PostgresWorld, spent_micros: int = 0) -> UUID:
    entry = BudgetEntry(BudgetScope.PROJECT, world.project_id, 10**6, spent_micros=spent_micros)
    world.add_budget(entry)
    return entry.id


def area(world: PostgresWorld, spent_micros: int = 0) -> UUID:
    world.add_area("dev", AreaEntry(spent_micros=spent_micros))
    ((area_id,),) = (row.values() for row in world.execute("SELECT id FROM agent_areas"))
    assert isinstance(area_id, UUID)
    return area_id


async def test_areas_are_mapped_as_turns_map_them(world: PostgresWorld) -> None:
    mapped = world.execute(
        "SELECT slug, brabo_api_area_of(slug) AS area FROM unnest(%s::text[]) AS slug", SLUGS
    )
    assert {row["slug"]: row["area"] for row in mapped} == {slug: area_of(slug) for slug in SLUGS}


@pytest.mark.parametrize("make", [project_budget, session_budget, area])
async def test_an_opening_is_what_a_counter_holds_less_what_other_programs_rows_explain(
    world: PostgresWorld, other: psycopg.Connection[Any], make: Callable[..., UUID]
) -> None:
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    turn_of_another_program(other, world.project_id, world.session_id, 13, agent="dev-lead")
    elsewhere = world.add_project()
    turn_of_another_program(other, world.project_id, world.add_session(elsewhere), 1_000)
    await world.recorder.record(whole_turn(world, agent="dev-api"))
    owner = (world.session_id,) if make is session_budget else ()

    counter_id = make(world, *owner, spent_micros=100)

    assert openings_of(world, counter_id) == [100 - 11 - 13]
    assert broken(world.database_url) == {}
    turn_of_another_program(other, world.project_id, world.session_id, 17)
    await world.recorder.record(whole_turn(world, agent="dev-api"))
    assert openings_of(world, counter_id) == [100 - 11 - 13]
    assert broken(world.database_url) == {}


async def test_agents_of_other_areas_and_users_explain_nothing_of_an_area(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    turn_of_another_program(other, world.project_id, world.session_id, 11, agent="qa")
    turn_of_another_program(other, world.project_id, world.session_id, 13, agent="escriba")
    other.execute("UPDATE token_usage SET actor_kind = 'user', actor_id = 'dev-x' WHERE actor_id = 'escriba'")
    assert openings_of(world, area(world)) == [0]
    assert broken(world.database_url) == {}


async def test_a_transaction_that_makes_a_budget_may_do_other_things_too(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    with other.transaction():
        other.execute("INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 5)", (world.project_id,))
        turn_of_another_program(other, world.project_id, world.session_id, 7)
        other.execute("INSERT INTO budgets (session_id, limit_micros) VALUES (%s, 5)", (world.session_id,))
        turn_of_another_program(other, world.project_id, world.session_id, 9)
    assert broken(world.database_url) == {}
    assert world.execute("SELECT spent_micros FROM budgets ORDER BY spent_micros") == [
        {"spent_micros": 9},
        {"spent_micros": 16},
    ]


async def test_a_budget_that_is_not_committed_holds_nobody_up(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    with other.transaction(force_rollback=True):
        other.execute("INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 5)", (world.project_id,))
        assert await asyncio.wait_for(world.recorder.record(whole_turn(world)), timeout=1)
        assert len(world.rows()) == 1


async def test_a_budget_set_again_keeps_its_opening(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    for limit_micros in (10, 20):
        await world.budgets.set(BudgetOwner(world.project_id), limit_micros=limit_micros, policy=None)
    other.execute(
        "INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 30) ON CONFLICT (project_id) DO UPDATE"
        " SET limit_micros = excluded.limit_micros",
        (world.project_id,),
    )
    assert world.execute("SELECT opening_micros FROM counter_openings") == [{"opening_micros": -11}]
    assert broken(world.database_url) == {}


async def test_what_goes_with_a_session_is_added_to_the_openings(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    budget_id, area_id = project_budget(world), area(world)
    doomed = world.add_session(world.project_id)
    session_budget(world, doomed)
    turn_of_another_program(other, world.project_id, doomed, 11)
    turn_of_another_program(other, world.project_id, doomed, 13, agent="escriba")
    await world.recorder.record(whole_turn(world, session_id=doomed, agent="dev-api"))
    await world.recorder.record(whole_turn(world, session_id=doomed))
    corrected = whole_turn(world, session_id=doomed, agent="dev-api", awaits_truth=True, is_estimated=True)
    await world.recorder.record(corrected)
    await world.corrections.book_truth(corrected.turn_id, Decimal("0.000200"))
    await world.recorder.record(whole_turn(world))

    other.execute("DELETE FROM sessions WHERE id = %s", (doomed,))

    # The correction of 50 has no foreign key: it stays, and goes on counting as one.
    assert openings_of(world, budget_id) == [0, 11 + 13 + 3 * 150]
    assert openings_of(world, area_id) == [0, 11 + 2 * 150]
    assert broken(world.database_url) == {}
    await world.recorder.record(whole_turn(world, session_id=doomed, agent="dev-api"))
    assert len(world.parked_ids()) == 1
    assert broken(world.database_url) == {}


async def test_what_a_session_spent_before_there_was_a_budget_adds_nothing_of_ours(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    await world.recorder.record(whole_turn(world))
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    budget_id = project_budget(world)
    other.execute("DELETE FROM sessions")
    assert openings_of(world, budget_id) == [-11, 11]
    assert broken(world.database_url) == {}


async def test_a_deletion_that_is_undone_adds_nothing(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    budget_id = project_budget(world)
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    with other.transaction(force_rollback=True):
        other.execute("DELETE FROM sessions")
    assert openings_of(world, budget_id) == [0]
    assert broken(world.database_url) == {}


async def test_a_deleted_project_takes_its_books_along(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    project_budget(world)
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    await world.recorder.record(whole_turn(world))
    other.execute("DELETE FROM projects WHERE id = %s", (world.project_id,))
    assert world.execute("SELECT count(*) AS entries FROM counter_openings") == [{"entries": 1}]
    assert broken(world.database_url) == {}


async def test_sessions_of_one_project_are_deleted_side_by_side(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    """Neither waits for what the other writes into the openings."""
    project_budget(world)
    sessions = [world.session_id, world.add_session(world.project_id)]
    for session_id in sessions:
        turn_of_another_program(other, world.project_id, session_id, 11)
    with other.transaction():
        other.execute("DELETE FROM sessions WHERE id = %s", (sessions[0],))
        with psycopg.connect(world.database_url) as another:
            another.execute("SET lock_timeout = '1s'")
            another.execute("DELETE FROM sessions WHERE id = %s", (sessions[1],))
    assert broken(world.database_url) == {}


@contextmanager
def role_without_rights_on_our_tables(world: PostgresWorld) -> Iterator[psycopg.Connection[Any]]:
    role = sql.Identifier(f"plain_{world.project_id.hex}")
    with psycopg.connect(world.database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(role))
        admin.execute(
            sql.SQL(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON projects, sessions, budgets, agent_areas TO {}"
            ).format(role)
        )
        try:
            with psycopg.connect(world.database_url, autocommit=True) as plain:
                plain.execute(sql.SQL("SET ROLE {}").format(role))
                yield plain
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {role}; DROP ROLE {role}").format(role=role))


async def test_whoever_makes_a_budget_needs_no_rights_on_our_tables_and_cannot_use_ours(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    turn_of_another_program(other, world.project_id, world.session_id, 11)
    with role_without_rights_on_our_tables(world) as plain:
        # Tables of its own by the same names are not looked at.
        plain.execute("CREATE TEMP TABLE token_usage (session_id uuid, turn_id uuid, cost_micros bigint)")
        plain.execute(
            "CREATE TEMP TABLE counter_openings (counter_id uuid, origin_id uuid, opening_micros bigint)"
        )
        plain.execute("INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 5)", (world.project_id,))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            plain.execute("SELECT * FROM public.counter_openings")
        plain.execute("CREATE TEMP TABLE trap (id uuid, project_id uuid)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            plain.execute(
                "CREATE TRIGGER trap BEFORE DELETE ON trap FOR EACH ROW EXECUTE FUNCTION"
                " public.brabo_api_delete_session()"
            )
    assert world.execute("SELECT opening_micros FROM counter_openings") == [{"opening_micros": -11}]
    assert broken(world.database_url) == {}


async def test_a_budget_behind_a_writer_that_does_not_end_is_refused(
    world: PostgresWorld, other: psycopg.Connection[Any]
) -> None:
    """Everybody who writes rows would wait behind it: those records count as held up after 5 s."""
    with psycopg.connect(world.database_url) as stuck:
        stuck.execute("LOCK TABLE token_usage IN ROW EXCLUSIVE MODE")
        statement = "INSERT INTO budgets (project_id, limit_micros) VALUES (%s, 5)"
        making = asyncio.create_task(asyncio.to_thread(other.execute, statement, (world.project_id,)))
        await asyncio.sleep(3)
        assert not making.done()
        await asyncio.wait({making}, timeout=3)
        stuck.rollback()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await making
    assert world.execute("SELECT count(*) AS budgets FROM budgets") == [{"budgets": 0}]


async def test_counters_made_under_load_keep_the_sums(world: PostgresWorld) -> None:
    """Row locks would let a row in between each time."""
    url = world.database_url
    sessions = [world.add_session(world.project_id) for _ in range(24)]
    doomed = [world.add_session(world.project_id) for _ in range(6)]
    every = sessions + doomed
    stop = threading.Event()

    def as_the_existing_program(offset: int) -> int:
        done = 0
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                session_id = every[(offset + 7 * done) % len(every)]
                done += 1
                # It may have been deleted; and our settling locks two budgets in the order of their ids.
                with suppress(psycopg.errors.ForeignKeyViolation, psycopg.errors.DeadlockDetected):
                    turn_of_another_program(
                        connection, world.project_id, session_id, 1, agent=SLUGS[done % 20]
                    )
        return done

    async def as_ours(offset: int) -> int:
        done = 0
        while not stop.is_set():
            turn = whole_turn(
                world, session_id=every[(offset + 5 * done) % len(every)], agent=SLUGS[done % 20]
            )
            assert await world.recorder.record(turn)
            done += 1
        return done

    def audited() -> int:
        runs = 0
        while not stop.is_set():
            assert broken(url) == {}
            runs += 1
        return runs

    def made_by_sql() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for session_id in sessions[::2]:
                with connection.transaction():
                    connection.execute(
                        "INSERT INTO budgets (session_id, limit_micros) VALUES (%s, 10)", (session_id,)
                    )
                    stop.wait(0.03)
            for key in ("dev", "qa", "infra"):
                connection.execute(
                    "INSERT INTO agent_areas (project_id, key, lead_agent_id) VALUES (%s, %s, %s)",
                    (world.project_id, key, key),
                )

    def deleted() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for session_id in doomed:
                stop.wait(0.2)
                connection.execute("DELETE FROM sessions WHERE id = %s", (session_id,))

    async def made_by_ours() -> None:
        for session_id in sessions[1::2]:
            await world.budgets.set(BudgetOwner(world.project_id, session_id), limit_micros=10, policy=None)
            await asyncio.sleep(0.05)
        await world.budgets.set(BudgetOwner(world.project_id), limit_micros=10, policy=None)

    async def made_and_deleted() -> int:
        await asyncio.gather(asyncio.to_thread(made_by_sql), asyncio.to_thread(deleted), made_by_ours())
        await asyncio.sleep(0.3)
        stop.set()
        return len(sessions) + len(("project", "dev", "qa", "infra"))

    try:
        made, audits, *turns = await asyncio.gather(
            made_and_deleted(),
            asyncio.to_thread(audited),
            *(asyncio.to_thread(as_the_existing_program, offset) for offset in range(4)),
            *(as_ours(offset) for offset in range(4)),
        )
    finally:
        stop.set()

    assert broken(url) == {}
    assert audits > 3
    assert all(count > 10 for count in turns), turns
    counters = "SELECT count(*) AS counters FROM counter_openings WHERE counter_id = origin_id"
    assert world.execute(counters) == [{"counters": made}]
