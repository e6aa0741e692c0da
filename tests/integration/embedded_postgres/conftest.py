import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded import SCRIPT, Member, servers_below

Join = Callable[..., Member]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Starts a process that joins the server below `tmp_path`/data; whoever is left at the end leaves then."""
    members: list[Member] = []

    def start(
        *arguments: Path, command: tuple[str, ...] = (sys.executable, str(SCRIPT)), **options: Any
    ) -> Member:
        process = subprocess.Popen(
            [*command, *map(str, arguments or (tmp_path / "data",))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )
        members.append(Member(process))
        return members[-1]

    yield start
    for member in members:
        if member.process.poll() is None:
            member.process.communicate(timeout=60)
        with member.process:  # closes its pipes
            pass


@pytest.fixture(autouse=True)
def _no_server_stays_behind(tmp_path: Path) -> Iterator[None]:
    yield
    left = servers_below(tmp_path)
    for pid in left:
        os.kill(pid, 9)
    assert left == []
