"""What the turn's own adapters bring into a process."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["turn_contexts", "usage_recorder", "readiness"])
def test_the_turns_database_adapters_do_without_the_orm(module: str) -> None:
    # import-linter cannot name a part of another distribution; a process of its own can tell what was imported.
    program = (
        f"import sys, adapters.postgres.{module}; "
        "print(*sorted(name for name in sys.modules if name.startswith(('sqlalchemy.orm', 'alembic'))))"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []
