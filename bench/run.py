"""Measures what a turn costs: one api process, a simulator that answers at once, an embedded PostgreSQL.

Writes bench/results.json and prints it as a table. Needs Linux (it reads /proc), and a machine that is otherwise
idle: three processes share its cores. Takes about half a minute.
"""

import asyncio
import json
import os
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import psycopg
import uvloop

# Of a script only its own folder is on the path; the other modules are found from the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.command import run
from bench.cores import give_a_core
from bench.http_client import BareServer, Connection, post
from bench.results import keep
from scripts.own_brabo import OwnBrabo, StageFailedError

MODEL: Final = "openai/gpt-4o-mini"
KEY: Final = "sk-or-benchmark"

LONGEST_S: Final = 80.0
PIECES: Final = 20
WARM_UP_TURNS: Final = 200
TURNS: Final = 1500
CONNECTIONS: Final = 8
TIMED_TURNS: Final = 300
BARE_CALLS: Final = 5000

PACED_STREAMS: Final = 128
PACED_PIECES: Final = 60
FIRST_PIECE_MS: Final = 100
BETWEEN_PIECES_MS: Final = 10
PACED_FOR_S: Final = 6.0
# A stream's own length: the first piece, then a pause before each other one.
PACED_LENGTH_S: Final = (FIRST_PIECE_MS + (PACED_PIECES - 1) * BETWEEN_PIECES_MS) / 1000
MARK: Final = "[mark:paced]"


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Of one route. `cpu_ms` is processor time of the api process a turn; `latency_ms` are medians, to the body's end.

    `cpu_ratio` is `cpu_ms` in units of a bare call, both ends of it.
    """

    cpu_ms: float
    cpu_ratio: float
    latency_ms: float
    direct_latency_ms: float
    added_latency_ms: float


@dataclass(frozen=True, slots=True)
class PacedStreams:
    """Many streams at once through one api process, each paced by the provider; turns a second."""

    streams: int
    pieces: int
    offered_per_s: float
    reached_per_s: float
    ratio: float
    direct_ratio: float
    """The same load straight at the simulator: what this machine and this client reach without us."""
    cpu_ms: float
    """Processor time of the api process a turn."""
    errors: int


@dataclass(frozen=True, slots=True)
class Results:
    """One run. Ratios can be compared between machines; times cannot."""

    date: str
    python: str
    cores: int
    bare_call_cpu_ms: float
    """Processor time of a call with nothing in it over loopback, client and server together."""
    pieces: int
    """Text pieces of the answer that the turns below get from the provider, on both routes."""
    json_turn: TurnCost
    streamed_turn: TurnCost
    paced: PacedStreams


def main() -> int:
    return run(measure, keep_and_show, longest_s=LONGEST_S)


def keep_and_show(results: Results) -> None:
    keep(asdict(results))
    show(results)


def measure(brabo: OwnBrabo) -> Results:
    """Start what is needed, and measure."""
    say("Starting a simulated OpenRouter, PostgreSQL and one api")
    control_url = brabo.simulate()
    scripts = [
        {
            "mark": MARK,
            "times": None,
            "reply": {
                "text": [f"piece {number} " for number in range(PACED_PIECES)],
                "first_token_ms": FIRST_PIECE_MS,
                "between_ms": BETWEEN_PIECES_MS,
            },
        },
        {"times": None, "reply": {"text": [f"piece {number} " for number in range(PIECES)]}},
    ]
    httpx.post(f"{control_url}/_script", json=scripts, trust_env=False).raise_for_status()
    printed = brabo.init("--model", MODEL, key=KEY)
    ids = dict(re.findall(r"^(workspace|project|session) +([0-9a-f-]{36})$", printed, re.MULTILINE))
    brabo.switch_router_off(ids["workspace"])  # what it costs, bench/router.py measures
    brabo.serve()
    give_a_core(brabo.api_pid)
    bench = Bench(brabo, control_url, ids["project"], ids["session"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(asyncio.wait_for(bench.run(), LONGEST_S))
    with psycopg.connect(brabo.database_url) as connection:
        [rows] = connection.execute("SELECT count(*) FROM token_usage").fetchone() or [0]
    if rows != bench.turns_taken and not results.paced.errors:
        raise StageFailedError(f"{bench.turns_taken} turns were answered and {rows} are in the ledger.")
    return results


class Bench:
    """The requests, and the measurements one after the other."""

    def __init__(self, brabo: OwnBrabo, control_url: str, project_id: str, session_id: str) -> None:
        self._api = urlsplit(brabo.api_url)
        self._api_pid = brabo.api_pid
        self._simulator = urlsplit(control_url)
        self._project_id = project_id
        self._token = brabo.service_token
        self._turn_path = f"/internal/sessions/{session_id}/llm-turn"
        self.turns_taken = 0

    async def run(self) -> Results:
        say(f"Processor time of a bare call over loopback ({BARE_CALLS} calls)")
        bare_ms = await bare_call_cpu_ms()
        json_turn = await self._turn_cost(bare_ms, streamed=False)
        streamed_turn = await self._turn_cost(bare_ms, streamed=True)
        paced = await self._paced()
        return Results(
            date=datetime.now(UTC).date().isoformat(),
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            bare_call_cpu_ms=bare_ms,
            pieces=PIECES,
            json_turn=json_turn,
            streamed_turn=streamed_turn,
            paced=paced,
        )

    async def _turn_cost(self, bare_ms: float, *, streamed: bool) -> TurnCost:
        route = "streamed" if streamed else "JSON"
        request = self._turn_request(streamed=streamed)
        say(f"Processor time of a {route} turn ({TURNS} turns on {CONNECTIONS} connections)")
        await self._turns(request, WARM_UP_TURNS)
        before_s = processor_time_s(self._api_pid)
        await self._turns(request, TURNS)
        cpu_ms = 1000 * (processor_time_s(self._api_pid) - before_s) / TURNS

        say(
            f"Latency of a {route} turn, and of the same call without the api between ({TIMED_TURNS} of each)"
        )
        through_ms, direct_ms = await self._latencies_ms(request)
        return TurnCost(
            cpu_ms=cpu_ms,
            cpu_ratio=cpu_ms / bare_ms,
            latency_ms=through_ms,
            direct_latency_ms=direct_ms,
            added_latency_ms=through_ms - direct_ms,
        )

    async def _turns(self, request: bytes, count: int) -> None:
        left = count

        async def keep_turning(connection: Connection) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                self._check(await connection.send(request), PIECES)

        async with open_connections(self._api, CONNECTIONS) as connections:
            await asyncio.gather(*map(keep_turning, connections))

    async def _latencies_ms(self, request: bytes) -> tuple[float, float]:
        """Medians, one call at a time and the two in turns, so that whatever else the machine does meets both."""
        through_ms, direct_ms = [], []
        direct_request = self._provider_request()
        async with (
            open_connections(self._api, 1) as [api],
            open_connections(self._simulator, 1) as [simulator],
        ):
            for _ in range(TIMED_TURNS):
                elapsed_ms, body = await timed_ms(api.send(request))
                self._check(body, PIECES)
                through_ms.append(elapsed_ms)
                elapsed_ms, _ = await timed_ms(simulator.send(direct_request))
                direct_ms.append(elapsed_ms)
        return median(through_ms), median(direct_ms)

    async def _paced(self) -> PacedStreams:
        say(f"{PACED_STREAMS} streams at once, paced by the provider ({PACED_FOR_S:g} s through the api)")
        offered_per_s = PACED_STREAMS / PACED_LENGTH_S
        before_s, turns_before = processor_time_s(self._api_pid), self.turns_taken
        request = self._turn_request(streamed=True, mark=MARK)
        reached_per_s, errors = await paced_rate(
            self._api, request, lambda body: self._check(body, PACED_PIECES)
        )
        cpu_s = processor_time_s(self._api_pid) - before_s
        turns = self.turns_taken - turns_before
        say(f"The same straight at the simulator ({PACED_FOR_S:g} s)")
        direct_per_s, direct_errors = await paced_rate(
            self._simulator, self._provider_request(mark=MARK), lambda _: None
        )
        if direct_errors:
            raise StageFailedError(f"{direct_errors} streams failed without the api between.")
        return PacedStreams(
            streams=PACED_STREAMS,
            pieces=PACED_PIECES,
            offered_per_s=offered_per_s,
            reached_per_s=reached_per_s,
            ratio=reached_per_s / offered_per_s,
            direct_ratio=direct_per_s / offered_per_s,
            cpu_ms=1000 * cpu_s / max(1, turns),
            errors=errors,
        )

    def _turn_request(self, *, streamed: bool, mark: str = "") -> bytes:
        body = {
            "projectId": self._project_id,
            "agentId": "dev-api",
            "messages": conversation(mark),
            "tools": TOOLS,
        }
        path = f"{self._turn_path}{'-stream' if streamed else ''}"
        return post(path, json.dumps(body).encode(), X_Brabo_Service_Token=self._token)

    def _provider_request(self, mark: str = "") -> bytes:
        """About what the api sends the provider for the same turn."""
        messages = [
            {"role": message["role"], "content": message["content"]}
            for message in conversation(mark)
            if message["role"] in {"system", "user"}
        ]
        body = {
            "model": MODEL,
            "stream": True,
            "messages": messages,
            "tools": [{"type": "function", "function": tool} for tool in TOOLS],
        }
        return post("/api/v1/chat/completions", json.dumps(body).encode(), Authorization=f"Bearer {KEY}")

    def _check(self, body: bytes, pieces: int) -> None:
        """A turn that failed or lost a piece is no turn to measure."""
        self.turns_taken += 1
        answer = json.loads(body.rstrip().rpartition(b"\n\ndata: ")[2])
        said = answer["message"]["content"].count("piece")
        if answer["error"] is not None or said != pieces:
            raise StageFailedError(
                f"A turn came back with {said} of {pieces} pieces; its error: {answer['error']}"
            )


async def paced_rate(address: Any, request: bytes, check: Callable[[bytes], None]) -> tuple[float, int]:
    """Turns a second that all streams reach together once all are under way, and how many failed in the whole time."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time() + 2 * PACED_LENGTH_S
    end_s = begin_s + PACED_FOR_S
    done = 0
    failures: Counter[str] = Counter()

    async def keep_streaming(connection: Connection, wait_s: float) -> None:
        nonlocal done
        # Started evenly over the length of a stream: engines do not all begin in one instant.
        await asyncio.sleep(wait_s)
        while loop.time() < end_s:
            try:
                check(await connection.send(request))
            except (ConnectionError, StageFailedError) as error:
                failures[str(error)[:240]] += 1
                await asyncio.sleep(PACED_LENGTH_S)
            else:
                done += begin_s <= loop.time() < end_s

    async with open_connections(address, PACED_STREAMS) as connections:
        waits = [PACED_LENGTH_S * number / PACED_STREAMS for number in range(PACED_STREAMS)]
        await asyncio.gather(*map(keep_streaming, connections, waits))
    for failure, count in failures.most_common(3):
        say(f"  {count} failed: {failure}")
    return done / PACED_FOR_S, failures.total()


async def bare_call_cpu_ms() -> float:
    """Processor time of one call that does nothing, client and server together, both in this process."""
    server = await asyncio.get_running_loop().create_server(BareServer, "127.0.0.1", 0)
    request = post("/", b"{}")
    async with server:
        connection = await Connection.open(*server.sockets[0].getsockname())
        for _ in range(WARM_UP_TURNS):
            await connection.send(request)
        before_s = time.process_time()
        for _ in range(BARE_CALLS):
            await connection.send(request)
        spent_s = time.process_time() - before_s
        connection.close()
    return 1000 * spent_s / BARE_CALLS


@asynccontextmanager
async def open_connections(address: Any, count: int) -> AsyncIterator[list[Connection]]:
    """That many connections, closed when the block ends."""
    connections = [await Connection.open(address.hostname, address.port) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


async def timed_ms(call: Awaitable[bytes]) -> tuple[float, bytes]:
    started_s = time.perf_counter()
    body = await call
    return 1000 * (time.perf_counter() - started_s), body


def processor_time_s(pid: int) -> float:
    """User and system time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


TOOLS: Final = [
    {
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path"],
        },
    }
    for name, description in (
        ("read_file", "Reads a file of the repository"),
        ("write_file", "Writes a file of the repository"),
        ("list_files", "Lists the files below a folder"),
        ("search", "Searches the repository for a text"),
        ("run_tests", "Runs the tests below a folder and says which failed"),
    )
]


def conversation(mark: str) -> list[dict[str, Any]]:
    """A few kilobytes, as in the middle of a piece of work."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You work on a repository with the tools that are given to you. " * 20},
        {"role": "user", "content": f"Find out why the tests of the parser fail, and mend it. {mark}"},
    ]
    for step in range(4):
        arguments = {"path": f"src/parser/part_{step}.py"}
        call = {"id": f"call_{step}", "name": "read_file", "arguments": arguments}
        messages.append({"role": "assistant", "content": "I will read this part.", "toolCalls": [call]})
        result = f"def part_{step}(text): ...\n" * 15
        messages.append({"role": "tool", "toolCallId": call["id"], "name": "read_file", "content": result})
    return messages


def show(results: Results) -> None:
    """As a table."""
    print(
        f"\n{results.date}, Python {results.python}, {results.cores} cores; answers of {results.pieces} pieces"
    )
    columns = "{:<46} {:>10} {:>10}"
    print(columns.format("", "JSON", "streamed"))
    routes = (results.json_turn, results.streamed_turn)
    print_row(columns, "processor time of the api a turn, ms", [route.cpu_ms for route in routes])
    print_row(columns, "  the same in bare calls over loopback", [route.cpu_ratio for route in routes])
    print_row(columns, "time of a turn, median, ms", [route.latency_ms for route in routes])
    print_row(
        columns,
        "  the same call straight to the simulator, ms",
        [route.direct_latency_ms for route in routes],
    )
    print_row(columns, "  added by the api, ms", [route.added_latency_ms for route in routes])
    paced = results.paced
    print(
        f"{paced.streams} paced streams of {paced.pieces} pieces: {paced.offered_per_s:.1f} turns/s offered, "
        f"{paced.reached_per_s:.1f} reached, {paced.ratio:.0%} ({paced.direct_ratio:.0%} without the api), "
        f"{paced.errors} errors; {paced.cpu_ms:.2f} ms of the api's processor time a turn"
    )


def print_row(columns: str, title: str, values: Sequence[float]) -> None:
    print(columns.format(title, *(f"{value:.2f}" for value in values)))


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main())
