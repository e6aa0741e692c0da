"""The databases that the other tests get."""

import psycopg
import pytest

from tests.support.postgres import Databases


@pytest.mark.parametrize("_", [1, 2])
def test_each_test_has_a_migrated_database_of_its_own(
    database_url: str, template_database: str, _: int
) -> None:
    assert database_url != template_database
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT count(*) FROM token_usage").fetchone() == (0,)
        connection.execute("CREATE TABLE only_once (n int)")


def test_an_empty_one_has_no_table(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url) as connection:
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
    assert tables == (0,)


def test_databases_are_dropped(postgres_server_url: str) -> None:
    databases = Databases(postgres_server_url)
    first = databases.create()
    databases.drop(first)
    second = databases.create()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(first)
    with psycopg.connect(second):
        databases.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(second)
