"""As whom the server runs, and where its data lies: PostgreSQL refuses to run as root.

An ordinary user runs it as itself, in a user namespace if its number has no account. Root runs it, in this order:
as the owner of data that exists already; in a user namespace where root bears another number; as the account
`nobody`, with data and a copy of the binaries below a folder of ours that this account can reach. No account is
added, and no mode of a folder that is not ours changes.
"""

import hashlib
import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from adapters.embedded_postgres.binaries import PostgresBinaries, reachable_copy
from adapters.embedded_postgres.errors import EmbeddedPostgresError


@dataclass(frozen=True, slots=True)
class RunAs:
    """How commands are run: behind `prefix`, and as `uid` and `gid` where these are set."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run(self, command: Sequence[str], keep_open: Sequence[int] = ()) -> subprocess.CompletedProcess[str]:
        """Run to the end and hold what was printed; the exit status is for the caller to judge.

        The command inherits the descriptors `keep_open`.
        """
        return subprocess.run(  # noqa: S603  no shell; programs of PostgreSQL and util-linux
            [*self.prefix, *command],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            stdin=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else (),
            pass_fds=keep_open,
        )

    def launch(
        self, script: str, command: Sequence[str], *, stderr: IO[bytes], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a shell script, in a session of its own, with the command as its arguments and pipes to talk to it."""
        return subprocess.Popen(  # noqa: S603  the script is a constant, and the command reaches it as arguments
            ["/bin/sh", "-c", script, "sh", *self.prefix, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd="/",
            env=_environment() | environment,
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else (),
        )

    def give(self, path: Path) -> None:
        """Make a file or folder of ours belong to the account that the commands run as."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def in_a_shell(self) -> str:
        """What a person types before a command to run it in this way, with a blank behind it."""
        prefix = self.prefix
        if self.uid is not None:
            prefix = ("setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups")
        return f"{shlex.join(prefix)} " if prefix else ""


@dataclass(frozen=True, slots=True)
class Quarters:
    """Where the data lies, which binaries serve it, and as whom they run."""

    data: Path
    binaries: PostgresBinaries
    run_as: RunAs


def choose_quarters(home: Path, binaries: PostgresBinaries, account_root: Path) -> Quarters:
    """Quarters for the server whose own folder is `home`, which exists.

    `account_root` is where data and binaries go when root must use another account. Raises EmbeddedPostgresError
    when the data that is there can be served in no way.
    """
    data = home / str(binaries.major)
    if os.geteuid() != 0:
        return Quarters(data, binaries, _as_itself())
    account_home = account_root / hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    account_data = account_home / data.name
    if account_data.exists():
        data = account_data
    if data.exists() and (owner := data.stat()).st_uid != 0:
        _make_open_folder(account_root)
        return Quarters(data, reachable_copy(binaries, account_root), RunAs((), owner.st_uid, owner.st_gid))
    account = _unprivileged_account()
    namespace = _user_namespace(account)
    if namespace is not None and _can_work_in(namespace, home, binaries):
        return Quarters(data, binaries, namespace)
    if data.exists():
        raise EmbeddedPostgresError(
            f"{data} belongs to root, whom PostgreSQL serves in a user namespace only, and this system refuses one "
            f"now: allow user namespaces, or give the data to an account with "
            f"chown -R {account.pw_name} {shlex.quote(str(data))} && mkdir -p {shlex.quote(str(account_home))} && "
            f"mv {shlex.quote(str(data))} {shlex.quote(str(account_home))}/"
        )
    _make_open_folder(account_root)
    _make_open_folder(account_home)
    as_account = RunAs((), account.pw_uid, account.pw_gid)
    return Quarters(account_data, reachable_copy(binaries, account_root), as_account)


def _as_itself() -> RunAs:
    """An ordinary user, under its own number, or, where that number has no account, under one that has."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:  # as in a container that runs under a bare number
        return _user_namespace(_unprivileged_account()) or RunAs()
    return RunAs()


def _unprivileged_account() -> pwd.struct_passwd:
    # initdb looks its account up by number, so that a number without an account does not serve.
    others = [account for account in pwd.getpwall() if account.pw_uid != 0]
    if not others:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and this system has no other account to run it: add one, for example "
            "with useradd --system postgres, or set DATABASE_URL to a server you have."
        )
    return next((account for account in others if account.pw_name == "nobody"), others[0])


def _user_namespace(account: pwd.struct_passwd) -> RunAs | None:
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    return RunAs((unshare, "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}"))


def _can_work_in(namespace: RunAs, home: Path, binaries: PostgresBinaries) -> bool:
    # In the namespace root has no privilege left: a folder that belongs to somebody else may be closed to it.
    probe = ["/bin/sh", "-c", 'test -w "$1" && test -x "$2"', "sh", str(home), binaries.program("postgres")]
    return namespace.run(probe).returncode == 0


def _make_open_folder(folder: Path) -> None:
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # whatever the umask, the account must be able to pass


def _environment() -> dict[str, str]:
    # The server keeps its environment for life: it gets no key of ours and no PG* setting of the person's.
    kept = {name: value for name in ("PATH", "LD_LIBRARY_PATH") if (value := os.environ.get(name))}
    return kept | {"LC_ALL": "C"}
