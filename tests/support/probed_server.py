"""`brabo serve` with a probe in its event loop: `python -m tests.support.probed_server`, settings as always.

`GET /_probe` answers what was seen since it was last asked, and `GET /_sleep` blocks the loop on purpose.
"""

import asyncio
import gc
import json
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from litestar.types import ASGIApp, Receive, Scope, Send

from entrypoints.container import Container
from entrypoints.http.server import DrainingServer, make_server
from entrypoints.logs import configure_logs
from entrypoints.settings import read_settings

TICK_S: Final = 0.005
SLEEP_S: Final = 0.2
_LATE_S: Final = 0.03
"""From here on it is worth knowing what runs."""


@dataclass
class Gap:
    """The time between two ticks."""

    ours_ms: float = 0.0
    """The wall time, less what the thread waited for a processor: that is the machine's doing and not ours."""
    ran: list[str] = field(default_factory=list)
    """Where the loop's thread was, innermost first, looked at every 10 ms."""


class Probe:
    """Ticks in the loop; a thread looks at what the loop's thread runs when a tick is late."""

    def __init__(self) -> None:
        self._loop_thread = threading.get_ident()
        self._schedule = _open_schedule()
        self._ticked_s = time.monotonic()
        self._seen: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self._ticks = 0
        self._largest_wall_ms = 0.0
        self._largest = Gap()

    def report(self) -> dict[str, Any]:
        """What was seen, and begin anew."""
        report = {
            "ticks": self._ticks,
            "largest_wall_gap_ms": round(self._largest_wall_ms, 1),
            "largest_gap_ms": round(self._largest.ours_ms, 1),
            "ran": self._largest.ran,
        }
        self._reset()
        return report

    async def tick(self) -> None:
        """Until cancelled."""
        threading.Thread(target=self._watch, daemon=True).start()
        last_s, last_waited_ms = time.monotonic(), self._waited_ms()
        while True:
            await asyncio.sleep(TICK_S)
            now_s, waited_ms = time.monotonic(), self._waited_ms()
            wall_ms = (now_s - last_s) * 1000
            ours_ms = wall_ms - (waited_ms - last_waited_ms)
            self._ticks += 1
            self._largest_wall_ms = max(self._largest_wall_ms, wall_ms)
            if ours_ms > self._largest.ours_ms:
                self._largest = Gap(ours_ms, self._seen)
            self._seen = []
            self._ticked_s = last_s = now_s
            last_waited_ms = waited_ms

    def _waited_ms(self) -> float:
        """How long this thread has been ready to run without a processor to run on."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e6 if self._schedule is not None else 0.0

    def _watch(self) -> None:
        while True:
            time.sleep(0.01)
            if time.monotonic() - self._ticked_s < _LATE_S:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            if frame is not None:
                stack = traceback.extract_stack(frame, limit=None)[-4:]
                places = [f"{Path(one.filename).name}:{one.lineno} {one.name}" for one in reversed(stack)]
                self._seen.append(" < ".join(places))


def _open_schedule() -> int | None:
    """The kernel's account of this thread's waits; without it every wait counts as ours."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return None


def _with_routes(app: Any, probe: Probe) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if path not in ("/_probe", "/_sleep"):
            await app(scope, receive, send)
            return
        if path == "/_sleep":
            time.sleep(SLEEP_S)
        body = json.dumps(probe.report() if path == "/_probe" else {}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


async def _serve(server: DrainingServer, probe: Probe) -> None:
    ticking = asyncio.create_task(probe.tick())
    await server.serve()
    ticking.cancel()


def main() -> None:
    """Serve until told to leave."""
    configure_logs()
    settings = read_settings(os.environ)
    assert settings.database_url is not None, "this server needs DATABASE_URL"
    server = make_server(Container(settings=settings, database_url=settings.database_url.reveal()))
    probe = Probe()
    server.config.app = _with_routes(server.config.app, probe)
    # As `serve` does it: what was made until now is no work for the collector.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(server, probe))


if __name__ == "__main__":
    main()
