"""Who only asks for the usage does not wait for libraries."""

import subprocess
import sys

import pytest

from entrypoints.cli.main import _COMMANDS

SLOW = (
    "alembic",
    "cryptography",
    "dependency_injector",
    "httpx",
    "litestar",
    "psycopg",
    "sqlalchemy",
    "uvicorn",
)


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_a_commands_help_loads_neither_server_nor_database(command: str) -> None:
    program = f"""
import contextlib, sys
from entrypoints.cli.main import main
with contextlib.suppress(SystemExit):
    main([{command!r}, "--help"])
print(*sorted({set(SLOW)!r} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert f"usage: brabo {command}" in ran.stdout
    assert ran.stdout.splitlines()[-1] == ""
