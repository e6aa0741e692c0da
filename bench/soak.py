"""20,000 streamed turns, a third of them left mid-stream: how memory grows, and whether connections come back.

Needs Linux (it reads /proc). Fails when resident memory grows by more than 0.1 MB per 1,000 turns after the first
thousand, or when connections to the database are left over.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import linear_regression
from typing import Final
from urllib.parse import urlsplit

import httpx
import psycopg

# Of a script only its own folder is on the path; the other modules are found from the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.command import run
from bench.run import KEY, MODEL, say
from scripts.own_brabo import OwnBrabo, StageFailedError

TURNS: Final = 20_000
STEP: Final = 1_000
AT_ONCE: Final = 16
LONGEST_S: Final = 1_200.0
MOST_MB_A_STEP: Final = 0.1


def main() -> int:
    return run(measure, show, longest_s=LONGEST_S)


def measure(brabo: OwnBrabo) -> list[float]:
    """Resident memory in MB after each thousand turns. Raises StageFailedError when it grows."""
    control_url = brabo.simulate()
    script = {"times": None, "reply": {"text": ["um ", "dois ", "tres"], "between_ms": 5}}
    httpx.post(f"{control_url}/_script", json=[script], trust_env=False).raise_for_status()
    printed = brabo.init("--model", MODEL, key=KEY)
    ids = dict(re.findall(r"^(workspace|project|session) +([0-9a-f-]{36})$", printed, re.MULTILINE))
    brabo.switch_router_off(ids["workspace"])
    brabo.serve()
    body = json.dumps(
        {"projectId": ids["project"], "messages": [{"role": "user", "content": "Leia"}]}
    ).encode()
    head = (
        f"POST /internal/sessions/{ids['session']}/llm-turn-stream HTTP/1.1\r\nHost: api\r\n"
        f"Content-Type: application/json\r\nX-Brabo-Service-Token: {brabo.service_token}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return asyncio.run(asyncio.wait_for(_soak(brabo, head.encode() + body), LONGEST_S))


async def _soak(brabo: OwnBrabo, request: bytes) -> list[float]:
    port = urlsplit(brabo.api_url).port or 0
    before = _connections(brabo.database_url)
    memory_mb: list[float] = []
    for step in range(TURNS // STEP):
        left = iter(range(STEP))
        await asyncio.gather(*(_keep_turning(left, port, request) for _ in range(AT_ONCE)))
        await asyncio.sleep(0.3)
        memory_mb.append(_resident_mb(brabo.api_pid))
        say(f"{(step + 1) * STEP:>6} turns: {memory_mb[-1]:.2f} MB resident")
    slope_mb = linear_regression(range(len(memory_mb) - 1), memory_mb[1:]).slope
    after = _connections(brabo.database_url)
    say(f"{slope_mb:+.3f} MB per 1,000 turns after the first thousand; connections {before}, then {after}")
    if slope_mb > MOST_MB_A_STEP or after > before:
        raise StageFailedError("Memory or connections are left over.")
    return memory_mb


async def _keep_turning(left: Iterator[int], port: int, request: bytes) -> None:
    for number in left:
        await _turn(port, request, leaves=number % 3 == 0)


async def _turn(port: int, request: bytes, *, leaves: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async for line in reader:
        if leaves and b'"delta"' in line:
            break
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


def _connections(database_url: str) -> int:
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert row is not None, "a count has a row"
    return int(row[0])


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None, "Linux says how much is resident"
    return int(found[1]) / 1024


def show(memory_mb: list[float]) -> None:
    print(f"From {memory_mb[0]:.2f} to {memory_mb[-1]:.2f} MB.")


if __name__ == "__main__":
    sys.exit(main())
