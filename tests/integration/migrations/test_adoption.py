"""Databases that another program made: used as they are where they fit, and refused by name where they do not."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, NullPool, create_engine

from adapters.postgres import migrate
from adapters.postgres.adoption import examine
from adapters.postgres.tables import HEAD
from tests.integration.migrations.conftest import MigratingProcesses
from tests.support.brabo_data import create_world
from tests.support.postgres import Databases
from tests.support.schema_dump import dump_schema

EXISTING = Path(__file__).with_name("existing_brabo.sql").read_text()

WITH_0066 = """
    ALTER TABLE workspaces ADD COLUMN tool_router_enabled boolean NOT NULL DEFAULT true;
    ALTER TABLE token_usage ADD COLUMN price_implicit boolean NOT NULL DEFAULT false;
"""
WITH_0067 = """
    ALTER TABLE token_usage ADD COLUMN catalog_cost_micros bigint;
    ALTER TABLE token_usage ADD COLUMN resolved_model_name varchar(200);
    ALTER TABLE token_usage ADD COLUMN generation_id text;
"""
WITH_PY0002 = """
    CREATE TABLE brabo_api_router_switches (
        id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
        workspace_id uuid NOT NULL,
        by_user_id uuid,
        was_enabled boolean NOT NULL,
        is_enabled boolean NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    );
    INSERT INTO brabo_api_router_switches (workspace_id, was_enabled, is_enabled)
    VALUES (gen_random_uuid(), true, false);
"""
WITH_PY0001 = "ALTER TABLE token_usage ADD COLUMN cached_input_tokens int, ADD COLUMN reasoning_tokens int;"
WITH_PY0003 = "ALTER TABLE token_usage ADD COLUMN charged_usd numeric;"

ADDED_LINES = {
    "0066": {
        "column workspaces.tool_router_enabled bool NO true",
        "column token_usage.price_implicit bool NO false",
    },
    "0067": {
        "column token_usage.catalog_cost_micros int8 YES -",
        "column token_usage.resolved_model_name text YES -",
        "column token_usage.generation_id text YES -",
    },
    "py0001": {
        "column token_usage.cached_input_tokens int4 YES -",
        "column token_usage.reasoning_tokens int4 YES -",
    },
    "py0002": {
        "column brabo_api_router_switches.id uuid NO gen_random_uuid()",
        "column brabo_api_router_switches.workspace_id uuid NO -",
        "column brabo_api_router_switches.by_user_id uuid YES -",
        "column brabo_api_router_switches.was_enabled bool NO -",
        "column brabo_api_router_switches.is_enabled bool NO -",
        "column brabo_api_router_switches.created_at timestamptz NO now()",
        "constraint brabo_api_router_switches pk_brabo_api_router_switches PRIMARY KEY (id)",
        "index CREATE UNIQUE INDEX pk_brabo_api_router_switches ON brabo_api_router_switches USING btree (id)",
        (
            "index CREATE INDEX ix_brabo_api_router_switches_workspace_id_created_at"
            " ON brabo_api_router_switches USING btree (workspace_id, created_at)"
        ),
    },
    "py0003": {"column token_usage.charged_usd numeric YES -"},
    "py0004": set(),  # see `books_lines`
}
REVISIONS = tuple(ADDED_LINES)
BOOKS = "py0004"


@pytest.fixture(scope="module")
def books_lines(databases: Databases) -> Iterator[set[str]]:
    """What py0004 adds: some two hundred lines, which test_schema.py compares with the tables one by one."""
    url = databases.create()
    migrate.upgrade(url)
    head = dump_schema(url)
    migrate.downgrade(url, "py0003")
    yield head - dump_schema(url)
    databases.drop(url)


def make_existing(database_url: str, *changes: str) -> set[str]:
    """Make the other program's database, changed so, and return its schema."""
    with psycopg.connect(database_url) as connection:
        for script in (EXISTING, *changes):
            connection.execute(script.encode())
    return dump_schema(database_url)


@pytest.fixture(scope="module")
def existing_connection(databases: Databases) -> Iterator[Connection]:
    """The other program's database, for tests that look at it and roll back what they changed."""
    url = databases.create()
    make_existing(url)
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
    databases.drop(url)


@pytest.fixture
def existing(existing_connection: Connection) -> Iterator[Connection]:
    yield existing_connection
    existing_connection.rollback()


def without_our_mark(schema: set[str]) -> set[str]:
    return {line for line in schema if "brabo_api_adoption" not in line}


@pytest.mark.parametrize(
    ("changes", "applied", "added"),
    [
        pytest.param((), REVISIONS, REVISIONS, id="at 0065"),
        pytest.param((WITH_0066,), REVISIONS[1:], REVISIONS[1:], id="0066 is there"),
        pytest.param((WITH_0066, WITH_0067), REVISIONS[2:], REVISIONS[2:], id="0067 is there"),
        pytest.param((WITH_0066, WITH_0067, WITH_PY0001), REVISIONS[3:], REVISIONS[3:], id="py0001 is there"),
        pytest.param(
            (WITH_0066, WITH_0067, WITH_PY0001, WITH_PY0002),
            REVISIONS[4:],
            REVISIONS[4:],
            id="py0002 is there",
        ),
        pytest.param(
            (WITH_0066, WITH_0067, WITH_PY0001, WITH_PY0002, WITH_PY0003),
            (BOOKS,),
            (BOOKS,),
            id="py0003 is there",
        ),
        pytest.param(
            (WITH_0067,), REVISIONS, ("0066", "py0001", "py0002", "py0003", BOOKS), id="0067 without 0066"
        ),
        pytest.param(
            (WITH_PY0001,), REVISIONS, ("0066", "0067", "py0002", "py0003", BOOKS), id="py0001 alone"
        ),
        pytest.param((WITH_PY0003,), REVISIONS, (*REVISIONS[:-2], BOOKS), id="py0003 alone"),
    ],
)
def test_what_is_there_is_stamped_and_what_is_missing_is_added(
    empty_database_url: str,
    changes: tuple[str, ...],
    applied: tuple[str, ...],
    added: tuple[str, ...],
    books_lines: set[str],
) -> None:
    before = make_existing(empty_database_url, *changes)
    said: list[str] = []

    report = migrate.upgrade(empty_database_url, said.append)

    assert report == migrate.MigrationReport(before=None, after=HEAD, applied=applied, adopted=True)
    assert said[0].startswith("adopting")
    after = without_our_mark(dump_schema(empty_database_url))
    assert after - before == books_lines.union(*(ADDED_LINES[revision] for revision in added))
    assert before - after == set()
    state = migrate.where(empty_database_url)
    assert (state.current, state.adopted, state.pending) == (HEAD, True, ())
    assert migrate.upgrade(empty_database_url) == migrate.MigrationReport(HEAD, HEAD, (), adopted=False)
    create_world(empty_database_url, session_limit_micros=1)


def test_half_of_0066_is_completed(empty_database_url: str) -> None:
    before = make_existing(
        empty_database_url, "ALTER TABLE workspaces ADD COLUMN tool_router_enabled bool NOT NULL DEFAULT true"
    )
    assert migrate.upgrade(empty_database_url).applied == REVISIONS
    added = without_our_mark(dump_schema(empty_database_url)) - before
    assert "column token_usage.price_implicit bool NO false" in added
    assert "column workspaces.tool_router_enabled bool NO true" in before


def test_rows_that_were_there_stay_and_get_the_defaults(empty_database_url: str) -> None:
    make_existing(empty_database_url)
    world = create_world(empty_database_url)
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT id, plan, tool_router_enabled FROM workspaces").fetchall() == [
            (world.workspace_id, "free", True)
        ]
        assert connection.execute("SELECT number FROM other_migrations ORDER BY number").fetchall() == [
            (65,),
            (71,),
        ]


def test_five_at_once_adopt_once(five_processes: MigratingProcesses, empty_database_url: str) -> None:
    make_existing(empty_database_url)
    assert five_processes.upgrade(empty_database_url) == [[], [], [], [], list(REVISIONS)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            "ALTER TABLE projects ALTER COLUMN name DROP NOT NULL",
            id="a column that no turn looks at allows null",
        ),
        pytest.param(
            "ALTER TABLE token_usage ALTER COLUMN model_name TYPE varchar(80)", id="varchar for text"
        ),
        pytest.param(
            "ALTER TABLE workspace_models ALTER COLUMN uses TYPE varchar(20)[]", id="varchar[] for text[]"
        ),
        pytest.param(
            "ALTER TABLE users ALTER COLUMN id SET DEFAULT md5('x')::uuid", id="another default of an id"
        ),
        pytest.param("ALTER TYPE llm_provider ADD VALUE 'mistral'", id="one more label"),
        pytest.param("ALTER TABLE token_usage ADD COLUMN note text", id="one more column"),
        pytest.param(
            "ALTER TABLE token_usage ADD COLUMN n bigint NOT NULL GENERATED ALWAYS AS IDENTITY", id="identity"
        ),
        pytest.param(
            "ALTER TABLE token_usage ADD COLUMN t int NOT NULL GENERATED ALWAYS AS (input_tokens + 1) STORED",
            id="a generated column",
        ),
        pytest.param(
            "ALTER TABLE sessions ADD COLUMN team text NOT NULL", id="a column of a table we do not write"
        ),
        pytest.param("DROP INDEX usage_by_session", id="an index fewer"),
    ],
)
def test_harmless_differences_are_accepted(existing: Connection, change: str) -> None:
    existing.exec_driver_sql(change)
    assert examine(existing).problems == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE agent_areas", "table agent_areas is missing"),
        ("ALTER TABLE budgets DROP COLUMN policy", "column budgets.policy is missing"),
        (
            "ALTER TABLE token_usage ALTER cost_micros TYPE int",
            "column token_usage.cost_micros is integer, not bigint",
        ),
        (
            "ALTER TABLE session_events ALTER payload DROP DEFAULT, ALTER payload TYPE json",
            "column session_events.payload is json, not jsonb",
        ),
        (
            "ALTER TABLE sessions ALTER created_at TYPE timestamp",
            "column sessions.created_at is timestamp without time zone, not timestamp with time zone",
        ),
        (
            "ALTER TABLE user_credentials ALTER provider TYPE text",
            "column user_credentials.provider is text, not credential_provider",
        ),
        (
            "CREATE TYPE short_role AS ENUM (); ALTER TABLE project_members DROP role, ADD role short_role",
            "column project_members.role is short_role, not role",
        ),
        (
            "ALTER TYPE budget_policy RENAME VALUE 'allow' TO 'permit'",
            "enum budget_policy lacks allow (column budgets.policy)",
        ),
        (
            "ALTER TABLE token_usage ALTER model_id SET NOT NULL",
            "column token_usage.model_id is NOT NULL and must allow null",
        ),
        (
            "ALTER TABLE models ALTER availability DROP NOT NULL",
            "column models.availability allows null and must be NOT NULL",
        ),
        (
            "ALTER TABLE budgets ALTER spent_micros DROP NOT NULL",
            "column budgets.spent_micros allows null and must be NOT NULL",
        ),
        ("ALTER TABLE budgets ALTER spent_micros DROP DEFAULT", "column budgets.spent_micros has no default"),
        (
            "ALTER TABLE model_bindings DROP CONSTRAINT one_binding_a_scope",
            "table model_bindings has no unique key over (scope, scope_id)",
        ),
        (
            "DROP INDEX budgets_of_project; CREATE UNIQUE INDEX ON budgets (project_id) WHERE project_id IS NOT NULL",
            "table budgets has no unique key over (project_id)",
        ),
        (
            "ALTER TABLE token_usage DROP CONSTRAINT token_usage_pkey",
            "table token_usage has no unique key over (id)",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN tenant text NOT NULL",
            "column token_usage.tenant is NOT NULL without a default, and this program does not know it",
        ),
        (
            WITH_0066 + "ALTER TABLE workspaces ALTER tool_router_enabled SET DEFAULT false",
            "column workspaces.tool_router_enabled has default false, not default true",
        ),
        (
            WITH_0066 + "ALTER TABLE workspaces ALTER tool_router_enabled DROP DEFAULT",
            "column workspaces.tool_router_enabled has no default, not default true",
        ),
        (
            WITH_0066 + "ALTER TABLE token_usage ALTER price_implicit DROP NOT NULL",
            "column token_usage.price_implicit allows null and must be NOT NULL",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN price_implicit int NOT NULL DEFAULT 0",
            "column token_usage.price_implicit is integer, not boolean",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN catalog_cost_micros numeric",
            "column token_usage.catalog_cost_micros is numeric, not bigint",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN catalog_cost_micros bigint DEFAULT 0",
            "column token_usage.catalog_cost_micros has default 0, not no default",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN reasoning_tokens bigint",
            "column token_usage.reasoning_tokens is bigint, not integer",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN charged_usd numeric(20, 12)",
            "column token_usage.charged_usd is numeric(20,12), not numeric",
        ),
        (
            "ALTER TABLE token_usage ADD COLUMN charged_usd double precision",
            "column token_usage.charged_usd is double precision, not numeric",
        ),
        (
            WITH_PY0002 + "ALTER TABLE brabo_api_router_switches DROP by_user_id",
            "column brabo_api_router_switches.by_user_id is missing",
        ),
        (
            WITH_PY0002 + "ALTER TABLE brabo_api_router_switches ALTER is_enabled TYPE text",
            "column brabo_api_router_switches.is_enabled is text, not boolean",
        ),
    ],
)
def test_what_does_not_fit_is_named(existing: Connection, change: str, problem: str) -> None:
    existing.exec_driver_sql(change)
    assert examine(existing).problems == (problem,)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("ALTER TABLE budgets DROP COLUMN policy", "column budgets.policy is missing"),
        (
            "ALTER TABLE workspaces ADD COLUMN tool_router_enabled text NOT NULL DEFAULT 'true'",
            "column workspaces.tool_router_enabled is text, not boolean",
        ),
    ],
)
def test_a_database_that_does_not_fit_is_refused_and_nothing_changes(
    empty_database_url: str, change: str, problem: str
) -> None:
    before = make_existing(empty_database_url, change)
    with pytest.raises(migrate.AdoptionRefused) as refused:
        migrate.upgrade(empty_database_url)
    assert refused.value.problems == (problem,)
    assert problem in str(refused.value)
    assert dump_schema(empty_database_url) == before
    assert migrate.where(empty_database_url).current is None


def test_a_database_older_than_0065_is_refused_with_every_name(empty_database_url: str) -> None:
    before = make_existing(
        empty_database_url,
        """
        DROP TABLE agent_areas, model_price_changes;
        ALTER TABLE token_usage DROP COLUMN upstream_provider, DROP COLUMN routing_preference;
        ALTER TABLE model_bindings DROP COLUMN routing_preference;
        DROP TYPE routing_preference;
        """,
    )
    with pytest.raises(migrate.AdoptionRefused) as refused:
        migrate.upgrade(empty_database_url)
    assert set(refused.value.problems) == {
        "table agent_areas is missing",
        "table model_price_changes is missing",
        "column model_bindings.routing_preference is missing",
        "column token_usage.upstream_provider is missing",
        "column token_usage.routing_preference is missing",
    }
    assert dump_schema(empty_database_url) == before


def test_there_is_no_way_down_below_what_is_ours(empty_database_url: str) -> None:
    make_existing(empty_database_url)
    migrate.upgrade(empty_database_url)
    before = dump_schema(empty_database_url)
    for revision in ("0067", "0066", "0065", "base"):
        with pytest.raises(migrate.MigrationError, match="adopted"):
            migrate.downgrade(empty_database_url, revision)
    assert dump_schema(empty_database_url) == before
    assert migrate.where(empty_database_url).current == HEAD


def test_what_was_there_before_us_is_remembered(empty_database_url: str) -> None:
    make_existing(empty_database_url, WITH_0066)
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        remembered = connection.execute(
            "SELECT table_name, column_name FROM brabo_api_adoption ORDER BY 1"
        ).fetchall()
    assert remembered == [("token_usage", "price_implicit"), ("workspaces", "tool_router_enabled")]


def test_our_own_table_found_again_is_used_as_it_is_and_stays_ours(empty_database_url: str) -> None:
    make_existing(empty_database_url, WITH_0066, WITH_0067, WITH_PY0001, WITH_PY0002, WITH_PY0003)
    assert migrate.upgrade(empty_database_url).applied == (BOOKS,)
    with psycopg.connect(empty_database_url) as connection:
        kept = connection.execute("SELECT was_enabled, is_enabled FROM brabo_api_router_switches").fetchall()
        remembered = connection.execute("SELECT table_name FROM brabo_api_adoption").fetchall()
    assert kept == [(True, False)]
    assert {name for (name,) in remembered} == {"token_usage", "workspaces"}

    migrate.downgrade(empty_database_url, "py0001")
    assert not {line for line in dump_schema(empty_database_url) if "brabo_api_router_switches" in line}
    assert migrate.upgrade(empty_database_url).applied == ("py0002", "py0003", BOOKS)


def test_our_own_table_alone_makes_no_database_of_another_program(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute(WITH_PY0002.encode())
    report = migrate.upgrade(empty_database_url)
    assert (report.adopted, report.after) == (False, HEAD)


def test_an_adopted_database_that_is_behind_is_looked_at_again(empty_database_url: str) -> None:
    make_existing(empty_database_url)
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("UPDATE brabo_api_version SET version_num = '0067'")
        connection.execute("ALTER TABLE token_usage ALTER reasoning_tokens TYPE bigint")
    with pytest.raises(migrate.AdoptionRefused, match=r"reasoning_tokens is bigint"):
        migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("ALTER TABLE token_usage ALTER reasoning_tokens TYPE int")
    report = migrate.upgrade(empty_database_url)
    assert (report.applied, report.adopted) == (("py0001", "py0002", "py0003", BOOKS), False)
