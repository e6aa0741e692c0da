"""py0004: what counters held before, who writes openings from then on, and the way back."""

import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from adapters.postgres import migrate
from tests.support.books import broken, turn_of_another_program
from tests.support.brabo_data import create_world, insert
from tests.support.schema_dump import dump_schema

EXISTING = Path(__file__).with_name("existing_brabo.sql").read_text()
OURS = """
    SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgname ~ '^brabo_api'
    UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE proname ~ '^brabo_api'
    ORDER BY 1
"""


def fetch(database_url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(database_url) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["existing", "ours"])
def before_the_books(request: pytest.FixtureRequest, empty_database_url: str) -> str:
    """A database of the existing program, with its own names and more columns, or one of ours at py0003."""
    if request.param == "existing":
        with psycopg.connect(empty_database_url) as connection:
            connection.execute(EXISTING.encode())
    else:
        migrate.upgrade(empty_database_url)
        migrate.downgrade(empty_database_url, "py0003")
    return empty_database_url


def test_counters_did_not_start_with_ours(before_the_books: str) -> None:
    url = before_the_books
    world = create_world(url, session_limit_micros=10**6, area_ceilings_micros={"dev": None, "qa": 5})
    with psycopg.connect(url, autocommit=True) as other:
        turn_of_another_program(other, world.project_id, world.session_id, 11)
        turn_of_another_program(other, world.project_id, world.session_id, 13, agent="escriba")
        other.execute("UPDATE budgets SET spent_micros = spent_micros + 1000")
        other.execute("UPDATE agent_areas SET spent_micros = spent_micros + 2000 WHERE key = 'qa'")

    migrate.upgrade(url)

    opening = "SELECT opening_micros FROM counter_openings WHERE counter_id = %s AND origin_id = %s"
    for counter_id, micros in (
        (world.project_budget_id, 1000),
        (world.session_budget_id, 1000),
        (world.area_ids["dev"], 0),
        (world.area_ids["qa"], 2000),
    ):
        assert fetch(url, opening, counter_id, counter_id) == [(micros,)]
    assert fetch(url, "SELECT count(*) FROM counter_openings") == [(4,)]
    with psycopg.connect(url, autocommit=True) as other:
        turn_of_another_program(other, world.project_id, world.session_id, 17)
        assert broken(url) == {}
        other.execute("DELETE FROM sessions")
    assert broken(url) == {}


def test_triggers_come_and_go_with_the_revision(before_the_books: str) -> None:
    url = before_the_books
    migrate.upgrade(url)
    assert [name for (name,) in fetch(url, OURS)] == [
        "function brabo_api_area_of",
        "function brabo_api_delete_session",
        "function brabo_api_open_area",
        "function brabo_api_open_budget",
        "trigger brabo_api_delete_session",
        "trigger brabo_api_open_area",
        "trigger brabo_api_open_budget",
    ]
    at_head = dump_schema(url)

    migrate.downgrade(url, "py0003")

    assert fetch(url, OURS) == []
    assert not {line for line in dump_schema(url) if "turn_starts" in line or "moved_" in line}
    world = create_world(url, area_ceilings_micros={"dev": None})
    with psycopg.connect(url, autocommit=True) as other:
        turn_of_another_program(other, world.project_id, world.session_id, 11)
        insert(other, "budgets", session_id=world.session_id, limit_micros=5)
        other.execute("DELETE FROM sessions")
    migrate.upgrade(url)
    assert dump_schema(url) == at_head
    assert broken(url) == {}


def test_columns_that_were_there_before_us_stay_on_the_way_back(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(EXISTING.encode())
        connection.execute("ALTER TABLE budgets ADD COLUMN strict boolean NOT NULL DEFAULT false")
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "py0003")
    columns = {line.split()[1] for line in dump_schema(empty_database_url) if line.startswith("column ")}
    assert "budgets.strict" in columns
    assert not columns & {"budgets.held_micros", "budgets.armings", "token_usage.turn_id"}


def test_a_revision_that_was_interrupted_is_finished(before_the_books: str) -> None:
    """Its columns come one table after the other, before the rest."""
    migrate.upgrade(before_the_books)
    at_head = dump_schema(before_the_books)
    migrate.downgrade(before_the_books, "py0003")
    fetch(before_the_books, "ALTER TABLE models ADD COLUMN max_output_tokens integer")
    assert migrate.upgrade(before_the_books).applied == ("py0004",)
    assert dump_schema(before_the_books) == at_head


def test_the_existing_program_goes_on_meanwhile(before_the_books: str) -> None:
    """It meets no deadlock, and whatever it writes is in the opening or among the rows."""
    url = before_the_books
    world = create_world(url, session_limit_micros=10**6, area_ceilings_micros={"dev": None})
    stop = threading.Event()
    done: list[int] = []

    def write() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            turns = 0
            while not stop.is_set():
                turn_of_another_program(other, world.project_id, world.session_id, 1)
                turns += 1
            done.append(turns)

    def delete_sessions() -> None:
        with psycopg.connect(url, autocommit=True) as other:
            turns = 0
            while not stop.is_set():
                session_id = insert(other, "sessions", project_id=world.project_id, created_by=world.user_id)
                insert(other, "budgets", session_id=session_id, limit_micros=5)
                turn_of_another_program(other, world.project_id, session_id, 1)
                other.execute("DELETE FROM sessions WHERE id = %s", (session_id,))
                turns += 1
            done.append(turns)

    others = [threading.Thread(target=write) for _ in range(3)] + [threading.Thread(target=delete_sessions)]
    for thread in others:
        thread.start()
    try:
        stop.wait(0.5)
        migrate.upgrade(url)
        stop.wait(0.5)
        assert broken(url) == {}
    finally:
        stop.set()
        for thread in others:
            thread.join(timeout=30)
    assert broken(url) == {}
    assert len(done) == len(others)
    assert min(done) > 10
