"""A core for the api alone: what else runs here would be measured with it, and not always the same part of it."""

import os
from pathlib import Path


def leave_a_core() -> None:
    """Keep this process, and those it starts from now on, off the first core, where there is another."""
    cores = os.sched_getaffinity(0)
    if len(cores) > 1:
        os.sched_setaffinity(0, cores - {min(cores)})


def give_a_core(pid: int) -> None:
    """Put a process with all its threads on the core that was left for it, where one was."""
    free = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
    if free:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), free)
