"""One PostgreSQL server on one data directory: created, started, found again, stopped.

Nothing here is safe against another process that does the same at once: the caller holds the lock.
"""

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from adapters.embedded_postgres.account import Quarters
from adapters.embedded_postgres.binaries import find_binaries
from adapters.embedded_postgres.errors import EmbeddedPostgresError
from adapters.embedded_postgres.process import Process, identify

SUPERUSER = "brabo"
DATABASE = "brabo"

_PASSWORD_FILE = "brabo.pgpass"
_HOST = "127.0.0.1"
_POLL_S = 0.01
_FAST_STOP_S = 60
_IMMEDIATE_STOP_S = 10
_LEFTOVERS_S = 10
_PORTS_TRIED = 5

# Prints the server's pid, and lets it begin only when a line says so: whoever is killed before it has recorded the
# pid leaves no server behind, since the line never comes. The server is no child of ours, so nobody has to reap it.
_LAUNCH = 'exec 3<&0 </dev/null; { read -r go <&3 && exec "$@" 3<&- >&2; } & echo $!'


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that was started: its postmaster, the loopback port it listens on, its major version."""

    process: Process
    port: int
    major: int


class _PidFile(NamedTuple):
    """What PostgreSQL itself says of the postmaster in the data directory."""

    pid: int
    port: int
    status: str


class Server:
    """The server of one folder `home`, which holds its record (`server.json`) and its log (`server.log`)."""

    def __init__(self, home: Path, quarters: Quarters, *, durable: bool, say: Callable[[str], None]) -> None:
        self._record = home / "server.json"
        self._log = home / "server.log"
        self._homes = (home, quarters.data.parent)
        self._data = quarters.data
        self._binaries = quarters.binaries
        self._run_as = quarters.run_as
        self._durable = durable
        self._say = say

    def url(self, port: int, database: str) -> str:
        """A `postgresql://` URL with the password in it."""
        return f"postgresql://{SUPERUSER}:{self._password()}@{_HOST}:{port}/{database}"

    def ensure_running(self, timeout_s: float, lock: int) -> RunningServer:
        """The server that runs already, else one started now, on new data where there is none.

        `lock` is the descriptor of the lock that the caller holds on starting and stopping.
        Raises EmbeddedPostgresError: data of another major version, a server that is not ours, a start that failed.
        """
        deadline = time.monotonic() + timeout_s
        recorded = self._recorded()
        if recorded is not None and recorded.process.is_running():
            if recorded.major != self._binaries.major:
                raise EmbeddedPostgresError(
                    f"PostgreSQL {recorded.major} (pid {recorded.process.pid}) is running in {self._record.parent}, "
                    f"and PostgreSQL {self._binaries.major} was asked for: end the programs that use it first."
                )
            if self._becomes_ready(recorded, deadline):
                self._say(f"Joining the PostgreSQL {recorded.major} that runs on port {recorded.port}.")
                return recorded
        if not self._data.exists():
            self._refuse_other_versions()
            self._create(lock)
        return self._start(recorded.port if recorded else None, deadline)

    def stop(self) -> None:
        """Stop the recorded server in order, if it runs. Raises EmbeddedPostgresError when it does not end."""
        recorded = self._recorded()
        if recorded is not None and recorded.process.is_running():
            self._say(f"Stopping PostgreSQL {recorded.major}.")
            # Fast: disconnects everybody and writes a checkpoint. Immediate: the next start recovers from the log.
            for request, patience_s in ((signal.SIGINT, _FAST_STOP_S), (signal.SIGQUIT, _IMMEDIATE_STOP_S)):
                if _signal_and_wait(recorded.process, request, patience_s):
                    break
            else:
                raise EmbeddedPostgresError(
                    f"PostgreSQL (pid {recorded.process.pid}) did not stop within "
                    f"{_FAST_STOP_S + _IMMEDIATE_STOP_S} s; its log {self._log} ends with:\n{self._log_tail()}"
                )
        self._record.unlink(missing_ok=True)

    def _create(self, lock: int) -> None:
        self._say(f"Creating a PostgreSQL {self._binaries.major} data directory in {self._data}.")
        unfinished = self._data.with_name(f"{self._data.name}.new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(mode=0o700)
        self._run_as.give(unfinished)
        new_data = unfinished / "data"
        password_for_initdb = unfinished / "password"
        password = secrets.token_urlsafe(24)
        self._write_private(password_for_initdb, password)
        command = [self._binaries.program("initdb"), f"--pgdata={new_data}", f"--username={SUPERUSER}"]
        command += [
            "--auth=scram-sha-256",
            f"--pwfile={password_for_initdb}",
            "--encoding=UTF8",
            "--locale=C",
        ]
        if not self._durable:
            command.append("--no-sync")
        # initdb inherits the lock: should this process be killed, the next one waits until initdb is through.
        done = self._run_as.run(command, keep_open=(lock,))
        password_for_initdb.unlink()
        if done.returncode != 0:
            shutil.rmtree(unfinished)
            raise EmbeddedPostgresError(
                f"initdb of {self._binaries.bin_dir} could not create {self._data} (status {done.returncode}): "
                f"{_last_lines(done.stderr)}"
            )
        # The password moves and is backed up with the data it opens, in the form that PGPASSFILE expects.
        self._write_private(new_data / _PASSWORD_FILE, f"*:*:*:{SUPERUSER}:{password}\n")
        new_data.rename(self._data)
        unfinished.rmdir()

    def _start(self, last_port: int | None, deadline: float) -> RunningServer:
        self._say(f"Starting PostgreSQL {self._binaries.major} on {self._data}.")
        environment = self._past_a_reused_pid()
        if self._log.exists():
            self._log.replace(self._log.with_suffix(".log.1"))
        # Whoever still holds the address of a server that crashed finds the new one there.
        port = last_port or _free_port()
        ports_tried = 1
        leftovers_deadline = time.monotonic() + _LEFTOVERS_S
        while True:
            server = self._launch(port, environment)
            if self._becomes_ready(server, deadline):
                return server
            tail = self._log_tail()
            if "Address already in use" in tail and ports_tried < _PORTS_TRIED:
                port = _free_port()
                ports_tried += 1
            elif "pre-existing shared memory block" in tail and time.monotonic() < leftovers_deadline:
                time.sleep(0.1)  # processes of a killed postmaster, about to notice that it is gone
            else:
                raise EmbeddedPostgresError(
                    f"PostgreSQL {self._binaries.major} did not start on {self._data}; its log {self._log} ends "
                    f"with:\n{tail}"
                )

    def _launch(self, port: int, environment: dict[str, str]) -> RunningServer:
        command = [self._binaries.program("postgres"), "-D", str(self._data)]
        for name, value in self._settings(port).items():
            command += ["-c", f"{name}={value}"]
        log_descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._run_as.give(self._log)
        with os.fdopen(log_descriptor, "wb") as log:
            launcher = self._run_as.launch(_LAUNCH, command, stderr=log, environment=environment)
        with launcher:
            assert launcher.stdout is not None
            assert launcher.stdin is not None
            told = launcher.stdout.readline().strip()
            process = identify(int(told)) if told.isdigit() else None
            if process is None:
                pid = told.decode(errors="replace") or "unknown"
                raise EmbeddedPostgresError(
                    f"The process that was to become PostgreSQL (pid {pid}) was ended; its log {self._log} ends "
                    f"with:\n{self._log_tail()}"
                )
            server = RunningServer(process, port, self._binaries.major)
            self._write_record(server)
            launcher.stdin.write(b"go\n")
        return server

    def _settings(self, port: int) -> dict[str, str | int]:
        settings: dict[str, str | int] = {
            "listen_addresses": _HOST,
            "port": port,
            "unix_socket_directories": "",  # a path there may have no more than 107 bytes; a port always fits
            "max_connections": 200,
            "shared_buffers": "64MB",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_checkpoints": "off",
            # Details and statements of an error quote the rows, which hold what people wrote.
            "log_error_verbosity": "terse",
            "log_min_error_statement": "panic",
        }
        if not self._durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        return settings

    def _becomes_ready(self, server: RunningServer, deadline: float) -> bool:
        """Wait until the server takes connections; False when it ended instead."""
        while server.process.is_running():
            said = self._pid_file()
            if said is not None and said.pid == server.process.pid and said.status == "ready":
                return True
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"PostgreSQL (pid {server.process.pid}) was not ready in time; its log {self._log} ends "
                    f"with:\n{self._log_tail()}"
                )
            time.sleep(_POLL_S)
        return False

    def _past_a_reused_pid(self) -> dict[str, str]:
        """What the environment must say so that PostgreSQL is not misled by a stale `postmaster.pid`.

        It refuses to start while any process has the pid in that file, even one that got it after a crash or a
        zombie, unless it takes the pid for its grandparent's. Its check of the shared memory, which finds real
        leftovers, stays.
        """
        said = self._pid_file()
        if said is None:
            return {}
        if identify(said.pid) is not None and _is_listening(said.port):
            raise EmbeddedPostgresError(
                f"A PostgreSQL that was not started here (pid {said.pid}, port {said.port}) seems to be using "
                f"{self._data}; stop it with {self._run_as.in_a_shell()}{self._binaries.program('pg_ctl')} "
                f"-D {shlex.quote(str(self._data))} stop"
            )
        return {"PG_GRANDPARENT_PID": str(said.pid)}

    def _refuse_other_versions(self) -> None:
        for version_file in sorted(file for home in self._homes for file in home.glob("*/PG_VERSION")):
            if version_file.parent.name.isdigit():
                self._refuse(version_file.parent)

    def _refuse(self, old_data: Path) -> None:
        old = int((old_data / "PG_VERSION").read_text(encoding="ascii"))
        new = self._binaries.major
        try:
            old_programs = f"{find_binaries(old).bin_dir}/"
        except EmbeddedPostgresError:
            old_programs = ""
        run_as = self._run_as.in_a_shell()
        directory = shlex.quote(str(old_data))
        pg_ctl = f"{run_as}{shlex.quote(f'{old_programs}pg_ctl')} -D {directory}"
        port = _free_port()
        server_options = shlex.quote(f"-p {port} -h {_HOST} -c unix_socket_directories=")
        client_options = f"-h {_HOST} -U {SUPERUSER} -d {DATABASE}"
        raise EmbeddedPostgresError(
            f"{old_data} holds the data of PostgreSQL {old}, which PostgreSQL {new} ({self._binaries.bin_dir}) cannot "
            f"read. Dump it with the programs of PostgreSQL {old}, and move it out of the way:\n"
            f"  {pg_ctl} -o {server_options} -l /dev/null -w start\n"
            f"  PGPASSFILE={directory}/{_PASSWORD_FILE} {shlex.quote(f'{old_programs}pg_dump')} {client_options} "
            f"-p {port} --clean --if-exists -f brabo-{old}.sql\n"
            f"  {pg_ctl} -w stop\n"
            f"  mv {directory} {directory}.old\n"
            f"Then start again, and load the dump while the server runs, with the port that {self._record} says:\n"
            f"  PGPASSFILE={shlex.quote(str(self._data))}/{_PASSWORD_FILE} "
            f"{shlex.quote(self._binaries.program('psql'))} {client_options} -p PORT -f brabo-{old}.sql"
        )

    def _pid_file(self) -> _PidFile | None:
        try:
            lines = (self._data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return None
        if len(lines) < 4:  # being written
            return None
        return _PidFile(int(lines[0]), int(lines[3]), lines[7].strip() if len(lines) > 7 else "")

    def _recorded(self) -> RunningServer | None:
        try:
            fields = json.loads(self._record.read_bytes())
            process = Process(int(fields["pid"]), str(fields["started"]))
            return RunningServer(process, int(fields["port"]), int(fields["major"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise EmbeddedPostgresError(
                f"{self._record} does not say which server runs ({type(error).__name__}): end the programs that use "
                f"{self._data}, and delete it."
            ) from error

    def _write_record(self, server: RunningServer) -> None:
        fields = {
            "pid": server.process.pid,
            "started": server.process.started,
            "port": server.port,
            "major": server.major,
            "data": str(self._data),
        }
        unfinished = self._record.with_suffix(".new")
        unfinished.unlink(missing_ok=True)
        self._write_private(unfinished, json.dumps(fields))
        unfinished.replace(self._record)

    def _write_private(self, path: Path, text: str) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._run_as.give(path)

    def _password(self) -> str:
        path = self._data / _PASSWORD_FILE
        try:
            return path.read_text(encoding="ascii").strip().rpartition(":")[2]
        except FileNotFoundError:
            raise EmbeddedPostgresError(
                f"{path}, the password of the data beside it, is missing: put it back from a backup."
            ) from None

    def _log_tail(self) -> str:
        try:
            return _last_lines(self._log.read_text(encoding="utf-8", errors="replace"))
        except FileNotFoundError:
            return "(empty)"


def _signal_and_wait(process: Process, request: signal.Signals, patience_s: float) -> bool:
    if process.is_running():
        with suppress(ProcessLookupError):  # it ended by itself in between
            os.kill(process.pid, request)
    deadline = time.monotonic() + patience_s
    while process.is_running():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((_HOST, port)) == 0


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])[-4000:] or "(empty)"
