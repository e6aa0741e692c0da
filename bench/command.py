"""What every benchmark does as a command, around what it measures."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

from bench.cores import leave_a_core
from scripts.own_brabo import OwnBrabo, StageFailedError, leave_in_order_on_signals, own_brabo

_Figures = TypeVar("_Figures")


def run(
    measure: Callable[[OwnBrabo], _Figures], keep_and_show: Callable[[_Figures], None], *, longest_s: float
) -> int:
    """Measure with processes of our own, then keep and show the figures; the exit status."""
    if not Path("/proc/self/stat").exists():
        print(
            "The benchmark reads processor times from /proc, which this system does not have.",
            file=sys.stderr,
        )
        return 1
    leave_in_order_on_signals()
    leave_a_core()
    try:
        with own_brabo() as brabo:
            figures = measure(brabo)
    except (StageFailedError, ConnectionError, httpx.HTTPError) as error:
        print(f"This did not work: {error}", file=sys.stderr)
        return 1
    except TimeoutError:
        print(f"This did not work: measuring took longer than {longest_s:g} s.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    keep_and_show(figures)
    return 0
