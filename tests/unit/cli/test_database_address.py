"""What DATABASE_URL may be, and how it is shown."""

import pytest

from entrypoints.database import shown
from entrypoints.settings import SettingsError, read_settings


@pytest.mark.parametrize(
    "url",
    [
        "postgres://brabo:secret@db.example.com/brabo",
        "postgresql://brabo:se%40cret%2F@127.0.0.1:5432/brabo?sslmode=require",
        "postgresql://brabo@[::1]:5432/brabo",
        "postgresql://brabo@one:5432,two:5433/brabo",
        "postgresql:///brabo?host=/run/postgresql",
        "postgresql://%2Frun%2Fpostgresql/brabo",
        "postgresql+psycopg://brabo:secret@localhost/brabo",
    ],
)
def test_what_libpq_reads_is_taken(url: str) -> None:
    settings = read_settings({"DATABASE_URL": url})

    assert settings.database_url is not None
    assert settings.database_url.reveal() == url
    assert "secret" not in shown(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:se@cret@h/d", "postgresql://u:se/cret@h/d", "postgresql://u:s?e@h/d"]
)
def test_a_password_that_is_not_encoded_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="percent-encoded"):
        read_settings({"DATABASE_URL": url})


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "not a url", "host=h password=secret"])
def test_what_is_no_postgresql_address_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="DATABASE_URL") as refused:
        read_settings({"DATABASE_URL": url})
    assert "secret" not in str(refused.value)
