"""Moving a database to the head: many at once, beside others who use it, and with errors that help."""

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from adapters.postgres import migrate
from adapters.postgres.tables import HEAD, READ_VERSION
from tests.integration.migrations.conftest import MigratingProcesses
from tests.support.brabo_data import World, create_world
from tests.support.schema_dump import dump_schema

REVISIONS = ["0065", "0066", "0067", "py0001", "py0002", "py0003", "py0004"]


@pytest.fixture
def another_database_url(empty_database_url: str) -> str:
    """A second schema of the same database, by its search path."""
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE SCHEMA another")
    separator = "&" if "?" in empty_database_url else "?"
    return f"{empty_database_url}{separator}options=-csearch_path%3Danother"


def insert_usage(connection: psycopg.Connection, world: World, count: int) -> None:
    connection.execute(
        """
        INSERT INTO token_usage (session_id, actor_kind, actor_id, provider, model_id, model_name, input_tokens,
                                 output_tokens, cost_micros, latency_ms)
        SELECT %s, 'agent', 'dev-api', 'openrouter', %s, %s, 10, 5, 3, 200 FROM generate_series(1, %s)
        """,
        (world.session_id, world.model_id, world.model_name, count),
    )


def test_five_at_once_on_an_empty_database(
    five_processes: MigratingProcesses, empty_database_url: str, another_database_url: str
) -> None:
    assert five_processes.upgrade(empty_database_url) == [
        [],
        [],
        [],
        [],
        REVISIONS,
    ]
    migrate.upgrade(another_database_url)
    assert dump_schema(empty_database_url) == dump_schema(another_database_url)


def test_five_at_once_one_revision_behind(
    five_processes: MigratingProcesses, empty_database_url: str
) -> None:
    migrate.upgrade(empty_database_url)
    head = dump_schema(empty_database_url)
    migrate.downgrade(empty_database_url, "0067")
    assert five_processes.upgrade(empty_database_url) == [
        [],
        [],
        [],
        [],
        ["py0001", "py0002", "py0003", "py0004"],
    ]
    assert dump_schema(empty_database_url) == head


def test_a_second_run_says_that_nothing_is_pending(empty_database_url: str) -> None:
    assert migrate.where(empty_database_url) == migrate.MigrationState(
        current=None, head=HEAD, adopted=False, pending=tuple(REVISIONS)
    )
    said: list[str] = []
    assert migrate.upgrade(empty_database_url, said.append) == migrate.MigrationReport(
        before=None, after=HEAD, applied=tuple(REVISIONS), adopted=False
    )
    assert said == [f"applying {revision}" for revision in REVISIONS]
    assert migrate.upgrade(empty_database_url) == migrate.MigrationReport(
        before=HEAD, after=HEAD, applied=(), adopted=False
    )
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute(READ_VERSION).fetchall() == [(HEAD,)]


def test_both_spellings_of_the_url_are_taken(empty_database_url: str) -> None:
    address = empty_database_url.split("://", 1)[1]
    assert migrate.upgrade(f"postgres://{address}").applied
    assert migrate.where(f"postgresql://{address}").pending == ()


def test_strangers_tables_do_not_make_it_a_brabo_database(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE customers (id int)")
    report = migrate.upgrade(empty_database_url)
    assert (report.adopted, report.applied[0]) == (False, "0065")


def test_a_big_ledger_is_not_rewritten(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "0065")
    world = create_world(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        insert_usage(connection, world, 5_000)
        before = _file_node(connection)
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert _file_node(connection) == before
        assert connection.execute(
            """
            SELECT DISTINCT price_implicit, catalog_cost_micros, resolved_model_name, generation_id,
                            cached_input_tokens, reasoning_tokens, charged_usd FROM token_usage
            """
        ).fetchall() == [(False, None, None, None, None, None, None)]


def test_nobody_waits_long_behind_a_migration_that_waits(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    world = create_world(empty_database_url)
    migrate.downgrade(empty_database_url, "0065")
    said: list[str] = []
    waits_s: list[float] = []
    stop = threading.Event()

    def read_and_write() -> None:
        with psycopg.connect(empty_database_url, autocommit=True) as connection:
            while not stop.is_set():
                started = time.monotonic()
                insert_usage(connection, world, 1)
                connection.execute("SELECT id FROM token_usage LIMIT 1").fetchone()
                waits_s.append(time.monotonic() - started)
                time.sleep(0.005)

    others = [threading.Thread(target=read_and_write) for _ in range(2)]
    migration = threading.Thread(target=migrate.upgrade, args=(empty_database_url, said.append))
    with psycopg.connect(empty_database_url, application_name="a long report") as report:
        report.execute("SELECT count(*) FROM token_usage")
        for thread in (*others, migration):
            thread.start()
        time.sleep(3.5)
        assert migrate.where(empty_database_url).current == "0065"
        report.rollback()
        migration.join(timeout=20)
        stop.set()
        for thread in others:
            thread.join(timeout=20)
    assert migrate.where(empty_database_url).current == HEAD
    assert any("a long report" in line and "trying again" in line for line in said)
    # They do wait while the migration stands in line, but not longer than it may stand there.
    assert 0.5 < max(waits_s) < migrate._LOCK_TIMEOUT_MS / 1_000 + 1
    assert len(waits_s) > 50


def test_a_table_in_use_for_too_long_is_an_error_that_names_who_holds_it(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "0066")
    monkeypatch.setattr(migrate, "_LOCK_TIMEOUT_MS", 100)
    monkeypatch.setattr(migrate, "_RETRY_DELAYS_S", (0.05,))
    with psycopg.connect(empty_database_url, application_name="a long report") as report:
        report.execute("SELECT count(*) FROM token_usage WHERE actor_id = 'dev-secret'")
        with pytest.raises(migrate.MigrationError) as caught:
            migrate.upgrade(empty_database_url)
        pid = report.info.backend_pid
    assert f"session {pid} (a long report, idle in transaction, for 0 s)" in str(caught.value)
    assert "2 attempts" in str(caught.value)
    assert "dev-secret" not in str(caught.value)
    assert migrate.where(empty_database_url).current == "0066"
    assert migrate.upgrade(empty_database_url).applied == ("0067", "py0001", "py0002", "py0003", "py0004")


def test_waiting_for_another_migration_is_said_and_has_an_end(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_WAIT_FOR_OTHERS_S", 0.3)
    said: list[str] = []
    with psycopg.connect(empty_database_url, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(%s)", (migrate._ADVISORY_LOCK,))
        with pytest.raises(migrate.MigrationError, match="Another migration"):
            migrate.upgrade(empty_database_url, said.append)
    assert said == ["another process is migrating this database: waiting for it"]


def test_a_failed_revision_leaves_nothing_behind(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TYPE routing_preference AS ENUM ('something else')")
    before = dump_schema(empty_database_url)
    with pytest.raises(migrate.MigrationError, match="routing_preference"):
        migrate.upgrade(empty_database_url)
    assert dump_schema(empty_database_url) == before
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("DROP TYPE routing_preference")
    assert migrate.upgrade(empty_database_url).after == HEAD


def test_what_someone_else_hung_on_our_tables_stops_the_way_back(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("CREATE TABLE invoices (id int, usage_id uuid REFERENCES token_usage (id))")
    with pytest.raises(migrate.MigrationError, match="invoices"):
        migrate.downgrade(empty_database_url, "base")
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("SELECT id, usage_id FROM invoices")
    assert migrate.where(empty_database_url).current == "0065"


def test_a_database_of_a_newer_program_is_left_alone(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("UPDATE brabo_api_version SET version_num = 'py9999'")
    for action in (migrate.where, migrate.upgrade):
        with pytest.raises(migrate.MigrationError, match="py9999"):
            action(empty_database_url)


def test_there_is_no_way_down_to_what_is_not_below(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "0067")
    for revision, message in (("0042", "no revision '0042'"), ("py0001", "at 0067, below py0001")):
        with pytest.raises(migrate.MigrationError, match=message):
            migrate.downgrade(empty_database_url, revision)


def test_there_is_no_way_back_from_a_database_never_migrated(empty_database_url: str) -> None:
    with pytest.raises(migrate.MigrationError, match="never migrated"):
        migrate.downgrade(empty_database_url, "base")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u:hush-hush@127.0.0.1/x", "write postgresql://"),
        ("host=127.0.0.1 password=hush-hush", "write postgresql://"),
        ("postgres://u:hush-hush%zz@127.0.0.1/x", "percent-encoded"),
        ("postgres://u:hush-hush@127.0.0.1:1/x", "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("action", [migrate.where, migrate.upgrade])
def test_an_address_that_does_not_work_is_explained_without_its_password(
    action: Callable[[str], object], url: str, message: str
) -> None:
    with pytest.raises(migrate.MigrationError, match=message) as caught:
        action(url)
    assert "hush-hush" not in str(caught.value)


def _file_node(connection: psycopg.Connection) -> object:
    return connection.execute("SELECT pg_relation_filenode('token_usage')").fetchone()
