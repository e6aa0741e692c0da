"""Nothing blocks the event loop: a probe ticks in it, in a process of its own, while something large goes through."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import Answered, http_client, ledger, post, request_body
from tests.support.served import ServedApi, served_api

MIB = 1024 * 1024
LONGEST_GAP_MS = 100.0
ATTEMPTS = 3
PROBED = (sys.executable, "-m", "tests.support.probed_server")

PROSE = "O relatório lista os arquivos lidos, o que cada um exporta e por quê; nada falta. "
ASCII_PROSE = "The report lists the files that were read, what each one exports, and why. "


def prose(characters: int, sentence: str = ASCII_PROSE) -> str:
    return (sentence * (characters // len(sentence) + 1))[:characters]


def sized(sentence: str, size_bytes: int, *, escaped: bool) -> str:
    """Text of that many bytes on the wire."""
    encoded = json.dumps(sentence)[1:-1] if escaped else sentence
    return sentence * (size_bytes // len(encoded.encode()))


@dataclass(frozen=True)
class Case:
    """What the engine sends, what the model says, and how."""

    content: str = "Leia a.ts"
    escapes: bool = False
    reply: list[str] = field(default_factory=lambda: ["oi"])
    stream: bool = True
    fault: str | None = None
    estimated: bool = False


def pieces(text: str, characters: int = 20_000) -> list[str]:
    return [text[at : at + characters] for at in range(0, len(text), characters)]


def cases() -> Iterator[tuple[str, Case]]:
    long_ascii, long_prose = prose(20 * MIB), sized(PROSE, 20 * MIB, escaped=False)
    yield "20 MiB body of prose, ASCII", Case(content=long_ascii)
    yield "20 MiB body of prose, UTF-8", Case(content=long_prose, stream=False)
    yield "20 MiB body of prose, escaped", Case(content=sized(PROSE, 20 * MIB, escaped=True), escapes=True)
    yield "20 MiB answer streamed, ASCII", Case(reply=pieces(long_ascii))
    yield "20 MiB answer streamed, UTF-8", Case(reply=pieces(long_prose))
    yield "20 MiB answer as JSON, UTF-8", Case(reply=pieces(long_prose), stream=False)
    yield "200 KB counted", Case(content=prose(200_000, PROSE), fault="usage-missing", estimated=True)
    yield "200 KB of dashes counted", Case(content="-" * 200_000, fault="usage-missing", estimated=True)
    yield "20 MiB counted by size", Case(content=long_prose, fault="usage-missing", estimated=True)


async def probed(api: ServedApi) -> dict[str, Any]:
    async with http_client(timeout=30) as client:
        report = (await client.get(f"{api.url}/_probe")).json()
    assert isinstance(report, dict)
    return report


@pytest.fixture
async def probed_api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[ServedApi]:
    variables = {"DATABASE_URL": database_url, "OPENROUTER_API_BASE": simulator.base_url}
    async with served_api(tmp_path, command=PROBED, **variables) as api:
        yield api


async def test_no_gap_over_100_ms_while_something_large_goes_through(
    probed_api: ServedApi, simulator: Simulator, database_url: str
) -> None:
    world = create_world(database_url, model_name="openai/gpt-4.1-mini", project_limit_micros=None)
    too_long = {}
    report: dict[str, Any] = {}
    rows = 0
    for name, case in cases():
        # Other programs only ever lengthen a gap, by what they take of the caches and of a shared core.
        for _ in range(ATTEMPTS):
            await probed(probed_api)
            got = await take(probed_api, simulator, world, case)
            report = await probed(probed_api)
            rows += 1
            print(f"\n{name}: {said(report)}", end="")
            assert got.answer["error"] is None
            assert got.answer["message"]["content"] == "".join(case.reply)
            stored = ledger(database_url, world)
            assert (len(stored), stored[-1]["estimated"]) == (rows, case.estimated)
            assert report["ticks"] > 5
            if report["largest_gap_ms"] <= LONGEST_GAP_MS:
                break
        else:
            too_long[name] = report
    print()
    assert too_long == {}


async def test_no_gap_over_100_ms_for_a_header_without_end(probed_api: ServedApi) -> None:
    host, port = probed_api.url.removeprefix("http://").split(":")
    await probed(probed_api)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Large: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(64):
            writer.write(b"x" * MIB)
            await writer.drain()
    report = await probed(probed_api)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()

    print(f"\na header of 64 MiB: {said(report)}")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert report["largest_gap_ms"] < LONGEST_GAP_MS


async def test_a_handler_that_sleeps_trips_the_probe(probed_api: ServedApi) -> None:
    report: dict[str, Any] = {}
    for _ in range(ATTEMPTS):
        await probed(probed_api)
        async with http_client(timeout=30) as client:
            await client.get(f"{probed_api.url}/_sleep")
        report = await probed(probed_api)
        print(f"\na handler that sleeps 200 ms: {said(report)}")
        assert report["largest_gap_ms"] > LONGEST_GAP_MS
    assert any("probed_server.py" in place for place in report["ran"])


async def take(api: ServedApi, simulator: Simulator, world: World, case: Case) -> Answered:
    script: dict[str, Any] = {"reply": {"text": case.reply}}
    simulator.script(script if case.fault is None else {**script, "fault": case.fault})
    body = request_body(world, messages=[{"role": "user", "content": case.content}])
    content = json.dumps(body, ensure_ascii=case.escapes).encode()
    return await post(api.turn_url(world.session_id, stream=case.stream), content)


def said(report: dict[str, Any]) -> str:
    ran = report["ran"][-1] if report["ran"] else "nothing for long"
    return (
        f"{report['ticks']} ticks, largest gap {report['largest_gap_ms']} ms "
        f"({report['largest_wall_gap_ms']} ms by the wall), ran {ran}"
    )
