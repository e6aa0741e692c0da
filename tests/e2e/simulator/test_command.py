"""The command as a process: its words, its pace on uvloop, and its end."""

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e.simulator.raw_client import CHAT, chat_body, exchange


@asynccontextmanager
async def simulate(*options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "entrypoints.simulator", "--port", "0", *options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        first = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        url = re.search(r"http://\S+", first)
        assert url, first
        yield process, url.group()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def run_to_its_end(*options: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "entrypoints.simulator", *options, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode is not None
    return process.returncode, errors.decode()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_until_a_signal_and_stops_in_the_middle_of_a_stream(signum: signal.Signals) -> None:
    async with simulate("--fault", "delay-between;ms=200") as (process, url):
        running = asyncio.create_task(exchange(f"{url}/api", CHAT, chat_body(), patience_s=5))
        await asyncio.sleep(0.2)
        process.send_signal(signum)
        assert await asyncio.wait_for(process.wait(), 5) == 0
        assert (await running).ending in ("closed", "reset")
        assert process.stdout is not None
        said = (await process.stdout.read()).decode()
    assert "OPENROUTER_API_BASE=" in said
    assert re.search(r"Stopped\. 1 calls on the bill, 0\.0000\d+ USD\.", said)


async def test_faults_reset_the_socket_on_uvloop_too() -> None:
    async with simulate("--fault", "reset;after=1") as (_, url):
        answer = await exchange(f"{url}/api", CHAT, chat_body())
        assert (answer.ending, len(answer.chunks())) == ("reset", 1)
        bill = (await exchange(url, "/_bill")).json()
        assert bill["entries"][0]["status"] == "finished"
        slow = await exchange(f"{url}/api", CHAT, chat_body(), fault="delay-headers;ms=9000", patience_s=0.1)
        assert slow.ending == "silent"
        await asyncio.sleep(0.1)
        bill = (await exchange(url, "/_bill")).json()
        assert bill["entries"][1]["status"] == "cancelled"


async def test_an_unknown_fault_and_a_taken_port_are_said_in_one_line() -> None:
    status, errors = await run_to_its_end("--port", "0", "--fault", "nope")
    assert (status, errors.count("\n")) == (2, 1)
    assert "no fault is called 'nope'" in errors

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, errors = await run_to_its_end("--port", str(taken.getsockname()[1]))
    assert (status, errors.count("\n")) == (1, 1)
    assert "cannot listen on 127.0.0.1:" in errors


async def test_many_paced_streams_keep_their_pace() -> None:
    ideal_s = 0.1 + 59 * 0.01
    async with simulate() as (_, url):
        script = {
            "times": None,
            "reply": {"text": ["palavra "] * 60, "first_token_ms": 100, "between_ms": 10},
        }
        await exchange(url, "/_script", script)
        streams = await asyncio.gather(
            *(exchange(f"{url}/api", CHAT, chat_body(), patience_s=5) for _ in range(32))
        )
    assert {stream.text() for stream in streams} == {"palavra " * 60}
    slowest_s = max(stream.elapsed_s for stream in streams)
    print(f"32 streams of {ideal_s:.2f} s: slowest {slowest_s:.2f} s")
    assert ideal_s <= slowest_s < ideal_s / 0.7


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--port", "99999", "from 0 to 65535"),
        ("--port", "-1", "from 0 to 65535"),
        ("--between-ms", "-5", "0 or more"),
        ("--first-token-ms", "inf", "0 or more"),
        ("--generation-delay-s", "nan", "0 or more"),
    ],
)
async def test_a_number_out_of_range_is_wrong_usage(option: str, value: str, says: str) -> None:
    status, errors = await run_to_its_end(f"{option}={value}")

    assert (status, says in errors) == (2, True), errors
