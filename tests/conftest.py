import signal
from collections.abc import Iterator

import pytest

from tests.support.postgres import Databases, server_url

pytest_plugins = ("tests.support.recordings_plugin", "tests.support.summary_plugin")


def pytest_configure() -> None:
    # A shell that runs us in the background ignores Ctrl-C on our behalf, and so would every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server of this run; tests take a database of their own from `database_url` instead."""
    with server_url(tmp_path_factory.mktemp("postgres")) as url:
        yield url


@pytest.fixture(scope="session")
def databases(postgres_server_url: str) -> Iterator[Databases]:
    made = Databases(postgres_server_url)
    yield made
    made.close()


@pytest.fixture(scope="session")
def template_database(databases: Databases) -> str:
    """The URL of a migrated database that is only copied: whoever connects to it blocks the copies."""
    from adapters.postgres.migrate import (
        upgrade,  # unneeded, and slow to import, for the tests without a database
    )

    return databases.create_template(upgrade)


@pytest.fixture
def database_url(databases: Databases, template_database: str) -> Iterator[str]:
    """A migrated database for this test alone."""
    url = databases.create(template_database)
    yield url
    databases.drop(url)


@pytest.fixture
def empty_database_url(databases: Databases) -> Iterator[str]:
    """A database without a table for this test alone."""
    url = databases.create()
    yield url
    databases.drop(url)
