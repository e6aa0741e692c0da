"""The revisions make the tables that the statements are built from, step by step, and take them back."""

import psycopg
import pytest
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy import create_engine

from adapters.postgres import migrate
from adapters.postgres.tables import BASELINE, HEAD, metadata, revision_of
from tests.support.brabo_data import create_world, insert
from tests.support.schema_dump import dump_schema

REVISIONS = ["0065", "0066", "0067", "py0001", "py0002", "py0003", "py0004"]


def test_the_head_is_the_newest_revision() -> None:
    scripts = ScriptDirectory(str(migrate._folder()))
    assert scripts.get_current_head() == HEAD
    assert [script.revision for script in scripts.walk_revisions()][::-1] == REVISIONS
    assert (REVISIONS[0], REVISIONS[-1]) == (BASELINE, HEAD)


def test_the_migrated_schema_is_that_of_the_tables(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    migrated = dump_schema(empty_database_url)
    migrate.downgrade(empty_database_url, "base")
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty_database_url))
    metadata.create_all(engine)
    engine.dispose()
    # The tables do not know the triggers.
    triggers = {line for line in migrated if line.startswith("trigger ")}
    assert len(triggers) == 3
    assert migrated - triggers == dump_schema(empty_database_url)
    assert len(migrated) > 200
    assert "storage budgets {fillfactor=50}" in migrated


def test_every_revision_goes_down_and_up_again(empty_database_url: str) -> None:
    empty = dump_schema(empty_database_url)
    migrate.upgrade(empty_database_url)
    head = dump_schema(empty_database_url)
    for position in reversed(range(len(REVISIONS))):
        revision = REVISIONS[position]
        migrate.downgrade(empty_database_url, revision)
        assert migrate.where(empty_database_url).current == revision
        at_revision = dump_schema(empty_database_url)
        assert _columns(at_revision) == {
            str(column)
            for table in metadata.tables.values()
            for column in table.columns
            if revision_of(column) in REVISIONS[: position + 1]
        }

        report = migrate.upgrade(empty_database_url)
        assert report.applied == tuple(REVISIONS[position + 1 :])
        assert dump_schema(empty_database_url) == head

        migrate.downgrade(empty_database_url, revision)
        assert dump_schema(empty_database_url) == at_revision
    migrate.downgrade(empty_database_url, "base")
    assert dump_schema(empty_database_url) == empty
    assert migrate.where(empty_database_url).current is None
    migrate.upgrade(empty_database_url)
    assert dump_schema(empty_database_url) == head


def test_a_deleted_workspace_takes_everything_below_it_along(database_url: str) -> None:
    world = create_world(database_url, session_limit_micros=5)
    with psycopg.connect(database_url) as connection:
        insert(
            connection,
            "token_usage",
            session_id=world.session_id,
            actor_kind="agent",
            actor_id="dev-api",
            provider="openrouter",
            model_id=world.model_id,
            model_name=world.model_name,
            input_tokens=1,
            output_tokens=1,
            cost_micros=1,
            latency_ms=1,
        )
        below = ("workspace_members", "projects", "sessions", "budgets", "agent_areas", "token_usage")
        assert all(_count(connection, table) for table in below)
        connection.execute("DELETE FROM workspaces WHERE id = %s", (world.workspace_id,))
        assert {table: _count(connection, table) for table in below} == dict.fromkeys(below, 0)
        assert _count(connection, "users") == 1


def test_the_record_of_a_switch_stands_in_nobodys_way(database_url: str) -> None:
    world = create_world(database_url)
    with psycopg.connect(database_url) as connection:
        insert(
            connection,
            "brabo_api_router_switches",
            workspace_id=world.workspace_id,
            by_user_id=world.user_id,
            was_enabled=True,
            is_enabled=False,
        )
        connection.execute("DELETE FROM model_bindings")
        connection.execute("DELETE FROM user_credentials")
        connection.execute("DELETE FROM workspaces")
        connection.execute("DELETE FROM users")
        assert _count(connection, "brabo_api_router_switches") == 1


def test_a_deleted_model_leaves_its_usage(database_url: str) -> None:
    world = create_world(database_url)
    with psycopg.connect(database_url) as connection:
        usage_id = insert(
            connection,
            "token_usage",
            session_id=world.session_id,
            actor_kind="agent",
            actor_id="dev-api",
            provider="openrouter",
            model_id=world.model_id,
            model_name=world.model_name,
            input_tokens=1,
            output_tokens=1,
            cost_micros=1,
            latency_ms=1,
        )
        connection.execute("DELETE FROM model_bindings")
        connection.execute("DELETE FROM models")
        kept = connection.execute("SELECT model_id FROM token_usage WHERE id = %s", (usage_id,)).fetchone()
    assert kept == (None,)


def test_a_budget_belongs_to_a_project_or_to_a_session(database_url: str) -> None:
    world = create_world(database_url, project_limit_micros=None)
    with psycopg.connect(database_url, autocommit=True) as connection:
        for owners in ({}, {"project_id": world.project_id, "session_id": world.session_id}):
            with pytest.raises(psycopg.errors.CheckViolation, match="one_owner"):
                insert(connection, "budgets", limit_micros=1, **owners)


def test_an_address_is_taken_once_whatever_its_case(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        insert(connection, "users", email="Ana@example.com")
        with pytest.raises(psycopg.errors.UniqueViolation):
            insert(connection, "users", email="ana@EXAMPLE.com")


def _columns(schema: set[str]) -> set[str]:
    return {line.split()[1] for line in schema if line.startswith("column ")}


def _count(connection: psycopg.Connection, table: str) -> int:
    row = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))).fetchone()
    assert row is not None
    return int(row[0])
