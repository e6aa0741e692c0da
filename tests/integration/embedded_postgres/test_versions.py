"""Which PostgreSQL is found, and what becomes of data that another version made."""

import os
import subprocess
from pathlib import Path

import psycopg
import pytest

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError, binaries, find_binaries
from adapters.embedded_postgres.binaries import PostgresBinaries
from tests.support.embedded import port, record


def installed_majors() -> list[int]:
    majors = {18}
    for folder in Path("/usr/lib/postgresql").glob("*/bin/postgres"):
        majors.add(int(folder.parents[1].name))
    return sorted(majors)


@pytest.fixture
def _no_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "_WHEEL", "no_such_package")
    monkeypatch.setattr(binaries, "_SYSTEM_FOLDERS", tmp_path / "no-such-folder")
    monkeypatch.setenv("PATH", "/nowhere")


@pytest.mark.parametrize("major", installed_majors())
def test_each_installed_version_serves(tmp_path: Path, major: int) -> None:
    found = find_binaries(major)
    assert found.major == major
    with EmbeddedPostgres(binaries=found, durable=False).join(tmp_path) as membership:
        with psycopg.connect(membership.url) as connection:
            assert connection.info.server_version // 10_000 == major
        assert record(tmp_path)["major"] == major


@pytest.mark.usefixtures("_no_wheel")
def test_without_any_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError) as refusal:
        EmbeddedPostgres().join(tmp_path)
    message = str(refusal.value)
    assert "apt install postgresql" in message
    assert "DATABASE_URL" in message
    assert "\n" not in message
    assert ". " not in message  # one sentence
    assert list(tmp_path.iterdir()) == []


def test_without_the_wheel_the_path_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    bin_dir = find_binaries(18).bin_dir
    monkeypatch.setattr(binaries, "_WHEEL", "no_such_package")
    monkeypatch.setenv("PATH", f"/nowhere:{bin_dir}")
    assert find_binaries() == PostgresBinaries(bin_dir, 18, "PATH")


@pytest.mark.skipif(15 not in installed_majors(), reason="needs a PostgreSQL 15 beside the wheel's 18")
def test_data_of_another_version_is_refused_and_the_way_out_works(tmp_path: Path) -> None:
    data_root = tmp_path / "data"
    with EmbeddedPostgres(binaries=find_binaries(15), durable=False).join(data_root) as old:
        with psycopg.connect(old.url) as connection:
            connection.execute("CREATE TABLE kept (text text)")
            connection.execute("INSERT INTO kept VALUES ('ação')")
        with pytest.raises(
            EmbeddedPostgresError, match=r"PostgreSQL 15 .* is running .* PostgreSQL 18 was asked for"
        ):
            EmbeddedPostgres(durable=False).join(data_root)

    with pytest.raises(EmbeddedPostgresError) as refusal:
        EmbeddedPostgres(durable=False).join(data_root)
    message = str(refusal.value)
    assert "PostgreSQL 15" in message
    assert "PostgreSQL 18" in message

    *before, load = [line.strip() for line in message.splitlines() if line.startswith("  ")]
    assert len(before) == 4
    for command in before:
        _in_a_shell(command, tmp_path)
    with EmbeddedPostgres(durable=False).join(data_root) as new:
        _in_a_shell(load.replace("PORT", str(port(new.url))), tmp_path)
        with psycopg.connect(new.url) as connection:
            assert connection.execute("SELECT text FROM kept").fetchone() == ("ação",)
    assert (data_root / "postgres/15.old/PG_VERSION").exists()


def _in_a_shell(command: str, folder: Path) -> None:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
