"""Processes that use the embedded server, and what a look from outside says of it."""

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SCRIPT = Path(__file__).with_name("embedded_member.py")


@dataclass
class Member:
    """A process that has joined, or tries to."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)

    def hear(self) -> dict[str, Any]:
        """The next line that the process prints; empty when it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line else {}
        if "said" in told:
            self.said.append(told["said"])
        return told

    def hear_until(self, beginning: str) -> None:
        while not self.hear()["said"].startswith(beginning):
            pass

    def joined(self) -> str:
        """The URL it got, once it has joined."""
        while "url" not in (told := self.hear()):
            assert "said" in told, told
        url: str = told["url"]
        return url

    def refused(self) -> str:
        """The message it was refused with."""
        while "error" not in (told := self.hear()):
            assert "said" in told, told
        message: str = told["error"]
        return message

    def leave(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


def servers_below(folder: Path) -> list[int]:
    """The pids of the postmasters whose data lies below the folder."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().split(b"\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if command[0].endswith(b"/postgres") and any(os.fsencode(folder) in word for word in command[1:]):
            parents[int(process.name)] = parent
    # A child bears the command line of its postmaster until it has given itself a title.
    return [pid for pid, parent in parents.items() if parent not in parents]


def record(data_root: Path) -> dict[str, Any]:
    """What the server's record says."""
    fields: dict[str, Any] = json.loads((data_root / "postgres" / "server.json").read_text())
    return fields


def port(url: str) -> int:
    found = urlsplit(url).port
    assert found is not None
    return found
