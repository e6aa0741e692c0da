"""`brabo doctor` before a database that is not to be had: what is wrong, and what to do."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.brabo import environment, run

PASSWORD = "a-secret-password"


def urls(database_url: str) -> dict[str, str]:
    parts = urlsplit(database_url)
    port = parts.port
    return {
        "refused": f"postgresql://brabo:{PASSWORD}@127.0.0.1:1/brabo",
        "password": parts._replace(netloc=f"brabo:{PASSWORD}@{parts.hostname}:{port}").geturl(),
        "database": parts._replace(path="/no-such-database").geturl(),
        "tls": parts._replace(query="sslmode=verify-full").geturl(),
    }


@pytest.mark.parametrize(
    ("trouble", "said", "remedy"),
    [
        ("refused", "connection refused", "start the server"),
        ("password", "the database refused the password", "correct user and password in DATABASE_URL"),
        ("database", "the server has no such database", "create it, or correct its name"),
        ("tls", "no connection over TLS", "see sslmode and sslrootcert"),
    ],
)
def test_doctor_says_what_to_do(
    database_url: str, tmp_path: Path, trouble: str, said: str, remedy: str
) -> None:
    ran = run(["doctor"], environment(tmp_path, DATABASE_URL=urls(database_url)[trouble]))
    [line] = [line for line in ran.stdout.splitlines() if line.startswith("fail  database")]

    assert ran.returncode == 1
    assert said in line
    assert remedy in line
    assert "FATAL" not in line
    assert PASSWORD not in ran.stdout + ran.stderr
