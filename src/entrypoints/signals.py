"""Being told to leave by a signal, and being left alone while leaving."""

import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

_LEAVE: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Told by a supervisor, by Ctrl-C, and by a terminal that was closed."""


def when_told_to_leave(act: Callable[[signal.Signals], object]) -> None:
    """From now on, call `act` with each signal that asks to leave: in the main thread, in the middle of anything."""

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _forget_a_closed_terminal()
        act(signal.Signals(number))

    for number in _LEAVE:
        # `nohup` has the signal ignored, for whoever is to outlive the terminal.
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handle)


def leave_alone() -> None:
    """From now on no such signal disturbs whoever is leaving: what is still done must have an end of its own."""
    for number in _LEAVE:
        # Not a handler: as it ends, the interpreter puts the default back in its place, which is death.
        signal.signal(number, signal.SIG_IGN)


def _forget_a_closed_terminal() -> None:
    """What is written to it would fail, and with it the leaving of whoever says that he leaves."""
    for output in (1, 2):
        poll = select.poll()
        poll.register(output, 0)
        if poll.poll(0):  # hung up, or broken
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)
