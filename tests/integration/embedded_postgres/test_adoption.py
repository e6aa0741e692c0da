"""What the next process finds after a death: a server to adopt, data to recover, or somebody else's process."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from tests.support.embedded import Member, port, record, servers_below

Join = Callable[..., Member]


def test_the_next_adopts_the_server_of_a_killed_owner_and_stops_it(join: Join, tmp_path: Path) -> None:
    owner = join()
    url = owner.joined()
    [postmaster] = servers_below(tmp_path)
    owner.kill()
    assert servers_below(tmp_path) == [postmaster]

    heir = join()
    assert heir.joined() == url
    assert heir.said == [f"Joining the PostgreSQL 18 that runs on port {port(url)}."]
    assert servers_below(tmp_path) == [postmaster]

    heir.leave()
    assert servers_below(tmp_path) == []


def test_data_survives_when_owner_and_server_are_killed(tmp_path: Path) -> None:
    membership = EmbeddedPostgres().join(tmp_path)
    with psycopg.connect(membership.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (42)")
    [postmaster] = servers_below(tmp_path)
    os.kill(postmaster, signal.SIGKILL)
    old = port(membership.url)

    with EmbeddedPostgres().join(tmp_path) as heir:
        assert servers_below(tmp_path) != [postmaster]
        assert port(heir.url) == old  # the first one's address serves again
        for url in (heir.url, membership.url):
            with psycopg.connect(url) as connection:
                assert connection.execute("SELECT n FROM kept").fetchone() == (42,)
    membership.leave()
    assert servers_below(tmp_path) == []


@pytest.mark.parametrize("moment", ["Creating", "Starting"])
@pytest.mark.parametrize("delay_s", [0, 0.01, 0.05])
def test_whoever_is_killed_while_it_starts_one_leaves_nothing_unusable(
    join: Join, tmp_path: Path, moment: str, delay_s: float
) -> None:
    owner = join()
    owner.hear_until(moment)
    time.sleep(delay_s)
    owner.kill()

    heir = join()
    with psycopg.connect(heir.joined()) as connection:
        connection.execute("CREATE TABLE t (n int)")
    assert len(servers_below(tmp_path)) == 1
    heir.leave()
    assert servers_below(tmp_path) == []


def test_a_server_with_another_start_time_is_neither_adopted_nor_killed(tmp_path: Path) -> None:
    with EmbeddedPostgres(durable=False).join(tmp_path):
        [postmaster] = servers_below(tmp_path)
        path = tmp_path / "postgres/server.json"
        true_record = path.read_text()
        path.write_text(json.dumps(record(tmp_path) | {"started": "another time"}))

        with pytest.raises(
            EmbeddedPostgresError, match=rf"not started here \(pid {postmaster}, .*pg_ctl -D .* stop"
        ):
            EmbeddedPostgres(durable=False).join(tmp_path)
        assert servers_below(tmp_path) == [postmaster]

        path.write_text(true_record)
    assert servers_below(tmp_path) == []


def test_a_stranger_that_got_the_pid_is_left_alone(tmp_path: Path) -> None:
    membership = EmbeddedPostgres().join(tmp_path)
    with psycopg.connect(membership.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
    data = tmp_path / "postgres" / str(record(tmp_path)["major"])
    os.kill(record(tmp_path)["pid"], signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "postgres/server.json").write_text(json.dumps(record(tmp_path) | {"pid": stranger.pid}))
        pid_file = data / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")

        with EmbeddedPostgres().join(tmp_path) as heir, psycopg.connect(heir.url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        membership.leave()

        assert servers_below(tmp_path) == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_port_that_is_taken_is_not_insisted_on(tmp_path: Path) -> None:
    membership = EmbeddedPostgres(durable=False).join(tmp_path)
    os.kill(record(tmp_path)["pid"], signal.SIGKILL)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deadline = time.monotonic() + 10
        while True:
            try:
                squatter.bind(("127.0.0.1", port(membership.url)))
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        squatter.listen()
        # The old postmaster's pid is nobody's now, so that the squatter is not taken for its server.
        with EmbeddedPostgres(durable=False).join(tmp_path) as heir:
            assert port(heir.url) != port(membership.url)
    membership.leave()
