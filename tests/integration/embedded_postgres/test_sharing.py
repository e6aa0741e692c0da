"""One server for however many processes: who starts it, who joins, who stops it."""

import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError, find_binaries
from tests.support.embedded import Member, port, record, servers_below

Join = Callable[..., Member]


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def test_two_at_once_on_an_empty_directory_share_one_server(join: Join, tmp_path: Path) -> None:
    first, second = join(), join()

    urls = {first.joined(), second.joined()}

    assert len(urls) == 1
    assert len(servers_below(tmp_path)) == 1
    assert sum(said.startswith("Creating") for said in first.said + second.said) == 1
    assert sum(said.startswith("Joining") for said in first.said + second.said) == 1


def test_the_last_one_out_stops_it_and_no_other(join: Join, tmp_path: Path) -> None:
    owner = join()
    url = owner.joined()
    second = join()
    second.joined()
    [postmaster] = servers_below(tmp_path)

    owner.leave()
    assert servers_below(tmp_path) == [postmaster]
    assert query(url, "SELECT 1") == 1

    second.leave()
    assert servers_below(tmp_path) == []
    assert not (tmp_path / "data/postgres/server.json").exists()
    assert not (tmp_path / "data/postgres/18/postmaster.pid").exists()  # stopped in order


def test_one_process_may_join_twice(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(durable=False)
    first, second = postgres.join(tmp_path), postgres.join(tmp_path)
    assert first.url == second.url

    first.leave()
    first.leave()
    assert query(second.url, "SELECT 1") == 1

    second.leave()
    assert servers_below(tmp_path) == []


def test_an_interrupt_at_the_owners_terminal_does_not_reach_it(join: Join, tmp_path: Path) -> None:
    owner = join()
    owner.joined()
    second = join()
    url = second.joined()

    os.killpg(owner.process.pid, signal.SIGINT)
    owner.process.wait(timeout=30)

    assert query(url, "SELECT 1") == 1


def test_it_holds_no_file_of_the_process_that_started_it(join: Join, tmp_path: Path) -> None:
    member = join()
    member.joined()

    [postmaster] = servers_below(tmp_path)
    held = {str(file.readlink()) for file in Path(f"/proc/{postmaster}/fd").iterdir()}

    assert str(tmp_path / "data/postgres/server.log") in held
    assert [name for name in held if name.endswith(".lock")] == []
    assert os.getsid(postmaster) != os.getsid(member.process.pid)


def test_its_environment_holds_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret-of-the-test")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=1MB")
    with EmbeddedPostgres(durable=False).join(tmp_path):
        [postmaster] = servers_below(tmp_path)
        environment = Path(f"/proc/{postmaster}/environ").read_bytes()
    assert b"secret-of-the-test" not in environment
    assert b"PGOPTIONS" not in environment


def test_the_password_is_needed_and_kept_private(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False).join(tmp_path) as membership:
        password = membership.url.split(":")[2].partition("@")[0]
        assert len(password) >= 32
        for wrong in (membership.url.replace(password, "guess"), membership.url.replace(f":{password}", "")):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(wrong)
        assert password not in repr(membership)
        assert password not in (tmp_path / "postgres/server.json").read_text()
        assert password not in (tmp_path / "postgres/server.log").read_text()
        files = [path for path in (tmp_path / "postgres").rglob("*") if path.is_file()]
        assert [path.name for path in files if password.encode() in path.read_bytes()] == ["brabo.pgpass"]
        assert [path for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
        assert stat.S_IMODE((tmp_path / f"postgres/{record(tmp_path)['major']}").stat().st_mode) == 0o700


def test_a_password_that_was_changed_is_a_clear_error_and_leaves_no_server(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False).join(tmp_path) as membership:
        query_password = "ALTER ROLE brabo PASSWORD 'another'"
        with psycopg.connect(membership.url) as connection:
            connection.execute(query_password)

    with pytest.raises(EmbeddedPostgresError, match="password authentication failed"):
        EmbeddedPostgres(durable=False).join(tmp_path)
    assert servers_below(tmp_path) == []


@pytest.mark.parametrize("durable", [True, False])
def test_it_speaks_utf8_in_the_c_locale_and_syncs_unless_told_otherwise(
    tmp_path: Path, durable: bool
) -> None:
    with EmbeddedPostgres(durable=durable).join(tmp_path) as membership:
        assert query(membership.url, "SHOW server_encoding") == "UTF8"
        assert query(membership.url, "SELECT datcollate FROM pg_database WHERE datname = 'brabo'") == "C"
        assert query(membership.url, "SHOW listen_addresses") == "127.0.0.1"
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert query(membership.url, f"SHOW {setting}") == ("on" if durable else "off")


def test_databases_are_made_once(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False).join(tmp_path) as membership:
        assert query(membership.url, "SELECT current_database()") == "brabo"
        first = membership.ensure_database('odd "name"')
        assert membership.ensure_database('odd "name"') == first


def test_a_second_run_finds_the_data_of_the_first(tmp_path: Path) -> None:
    for run in (1, 2):
        with (
            EmbeddedPostgres().join(tmp_path) as membership,
            psycopg.connect(membership.url) as connection,
        ):
            connection.execute("CREATE TABLE IF NOT EXISTS runs (run int)")
            connection.execute("INSERT INTO runs VALUES (%s)", [run])
            count = connection.execute("SELECT count(*) FROM runs").fetchone()
    assert count == (2,)


def test_a_start_that_fails_says_what_the_log_says(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False).join(tmp_path):
        data = tmp_path / "postgres" / str(record(tmp_path)["major"])
    (data / "postgresql.auto.conf").write_text("work_mem = 'plenty'\n")

    with pytest.raises(EmbeddedPostgresError, match=r"did not start on .*\n(.*\n)*.*invalid value.*work_mem"):
        EmbeddedPostgres(durable=False).join(tmp_path)
    assert servers_below(tmp_path) == []


def test_a_data_root_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"could not be set up in .*file"):
        EmbeddedPostgres(durable=False).join(tmp_path / "file" / "below")


def test_the_lock_on_starting_is_waited_for_no_longer_than_asked(join: Join, tmp_path: Path) -> None:
    starting = join()
    starting.hear_until("Creating")
    starting.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(EmbeddedPostgresError, match=r"more than 0\.2 s"):
            EmbeddedPostgres(durable=False).join(tmp_path / "data", timeout_s=0.2)
    finally:
        starting.process.send_signal(signal.SIGCONT)
    assert port(starting.joined())


def test_the_wheel_carries_version_18() -> None:
    binaries = find_binaries()
    assert (binaries.major, binaries.origin) == (18, "wheel")
    answer = subprocess.run(
        [binaries.program("postgres"), "--version"], capture_output=True, text=True, check=True
    )
    assert "18." in answer.stdout
