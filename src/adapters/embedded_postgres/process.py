"""Which process is meant: a pid alone may be another program by now, a pid with its start time may not."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process for ever: its pid, and when it started as the system words it (opaque)."""

    pid: int
    started: str

    def is_running(self) -> bool:
        return identify(self.pid) == self


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when none has, or only a zombie that waits to be reaped."""
    found = _from_proc(pid) if sys.platform == "linux" else _from_ps(pid)
    if found is None or found[0].startswith(("Z", "X")):
        return None
    return Process(pid, found[1])


def _from_proc(pid: int) -> tuple[str, str] | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, which may hold blanks and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    state, ticks_since_boot = fields[0], fields[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return state, f"{boot}+{ticks_since_boot}"


def _from_ps(pid: int) -> tuple[str, str] | None:
    listed = subprocess.run(  # noqa: S603  a fixed program and a number
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C"},
    )
    state, _, started = listed.stdout.strip().partition(" ")
    return (state, started.strip()) if state else None
