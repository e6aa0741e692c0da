"""Measures what the tool router adds to a turn: one api process, a simulated OpenRouter, an embedded PostgreSQL.

Two workspaces differ in their switch and in nothing else, and take the same turns by turns. Adds its figures to
bench/results.json and prints them. Needs Linux (it reads /proc), and a machine that is otherwise idle. Takes about a
minute and a half.
"""

import asyncio
import json
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import httpx
import psycopg
import uvloop

# Of a script only its own folder is on the path; the other modules are found from the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.command import run
from bench.cores import give_a_core
from bench.http_client import Connection, post
from bench.results import keep
from bench.run import (
    KEY,
    MODEL,
    TOOLS,
    bare_call_cpu_ms,
    conversation,
    open_connections,
    processor_time_s,
    say,
    timed_ms,
)
from scripts.own_brabo import OwnBrabo, StageFailedError

LONGEST_S: Final = 240.0
DECISION_MS: Final = 300
"""What the slow router takes."""
PAIRS: Final = 50
WARM_UP_TURNS: Final = 200
ROUNDS: Final = 12
TURNS_A_ROUND: Final = 150
CONNECTIONS: Final = 8
PIECES: Final = 20
SLOW: Final = "[mark:slow]"
CHOICE: Final = "write_file"
"""The step before called another tool, so that the menu has two."""


@dataclass(frozen=True, slots=True)
class RouterCost:
    """A turn with the router on beside one with it off; times in milliseconds, of the JSON route."""

    date: str
    python: str
    cores: int
    decision_ms: int
    """What the router of the pairs takes by itself."""
    pairs: int
    added_ms: float
    """What a turn takes more with it: the median of the pairs' differences."""
    beyond_decision_ms: float
    """What that is more than the router's own time."""
    cpu_off_ms: float
    cpu_on_ms: float
    cpu_added_ms: float
    """Processor time of the api a turn, the router answering at once: medians, and the median of the differences."""
    cpu_added_ratio: float
    """The last in units of a bare call over loopback, both ends of it: this can be compared between machines."""
    menu_before: int
    menu_after: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """One of the two: whose turns these are."""

    workspace_id: str
    project_id: str
    session_id: str
    is_routed: bool


def main() -> int:
    return run(measure, keep_and_show, longest_s=LONGEST_S)


def keep_and_show(cost: RouterCost) -> None:
    keep({"router": asdict(cost)})
    show(cost)


def measure(brabo: OwnBrabo) -> RouterCost:
    """Start what is needed, and measure."""
    say("Starting a simulated OpenRouter, PostgreSQL and one api, with two workspaces")
    control_url = brabo.simulate()
    reply = {"choice": CHOICE, "confidence": 0.9}
    scripts = [
        {"mark": SLOW, "times": None, "reply": {**reply, "first_token_ms": DECISION_MS}},
        {"path": "decisions", "times": None, "reply": reply},
        {"times": None, "reply": {"text": [f"piece {number} " for number in range(PIECES)]}},
    ]
    httpx.post(f"{control_url}/_script", json=scripts, trust_env=False).raise_for_status()
    on, off = (make_workspace(brabo, name, is_routed=name == "Routed") for name in ("Routed", "Unrouted"))
    brabo.switch_router_off(off.workspace_id)
    brabo.serve()
    give_a_core(brabo.api_pid)
    bench = Bench(brabo, control_url, on, off)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cost = runner.run(asyncio.wait_for(bench.run(), LONGEST_S))
    check_rows(brabo, on, turns=bench.turns_taken, decisions=bench.turns_taken)
    check_rows(brabo, off, turns=bench.turns_taken, decisions=0)
    return cost


def make_workspace(brabo: OwnBrabo, name: str, *, is_routed: bool) -> Workspace:
    printed = brabo.init(
        "--email", "owner@example.com", "--workspace", name, "--project", name, "--model", MODEL, key=KEY
    )
    ids = dict(re.findall(r"^(workspace|project|session) +([0-9a-f-]{36})$", printed, re.MULTILINE))
    return Workspace(ids["workspace"], ids["project"], ids["session"], is_routed)


def check_rows(brabo: OwnBrabo, workspace: Workspace, *, turns: int, decisions: int) -> None:
    """Every turn and every decision is in the ledger, and no other. Raises StageFailedError."""
    with psycopg.connect(brabo.database_url) as connection:
        found = connection.execute(
            "SELECT count(*) FILTER (WHERE model_id IS NOT NULL), count(*) FILTER (WHERE model_id IS NULL)"
            " FROM token_usage WHERE session_id = %s",
            [workspace.session_id],
        ).fetchone()
    if found != (turns, decisions):
        raise StageFailedError(
            f"{turns} turns with {decisions} decisions were taken; the ledger has {found}."
        )


class Bench:
    """The measurements, one after the other."""

    def __init__(self, brabo: OwnBrabo, control_url: str, on: Workspace, off: Workspace) -> None:
        self._api = urlsplit(brabo.api_url)
        self._api_pid = brabo.api_pid
        self._token = brabo.service_token
        self._control_url = control_url
        self._on, self._off = on, off
        self.turns_taken = 0
        """In each workspace."""

    async def run(self) -> RouterCost:
        say(
            f"Processor time of a turn, router on and off by turns ({ROUNDS} × {TURNS_A_ROUND} turns of each)"
        )
        bare_ms = await bare_call_cpu_ms()
        cpu_on_ms, cpu_off_ms = await self._processor_times_ms()
        say(f"Time of a turn with a router of {DECISION_MS} ms, and without one ({PAIRS} pairs)")
        added_ms = median(await self._differences_ms())
        cpu_added_ms = median(on - off for on, off in zip(cpu_on_ms, cpu_off_ms, strict=True))
        before, after = menus(self._control_url)
        return RouterCost(
            date=datetime.now(UTC).date().isoformat(),
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            decision_ms=DECISION_MS,
            pairs=PAIRS,
            added_ms=added_ms,
            beyond_decision_ms=added_ms - DECISION_MS,
            cpu_off_ms=median(cpu_off_ms),
            cpu_on_ms=median(cpu_on_ms),
            cpu_added_ms=cpu_added_ms,
            cpu_added_ratio=cpu_added_ms / bare_ms,
            menu_before=before,
            menu_after=after,
        )

    async def _processor_times_ms(self) -> tuple[list[float], list[float]]:
        """Of a turn, round by round and the two by turns, so that whatever else the machine does meets both."""
        on_ms: list[float] = []
        off_ms: list[float] = []
        for workspace in (self._on, self._off):
            await self._turns(workspace, WARM_UP_TURNS)
        self.turns_taken += WARM_UP_TURNS
        for round_number in range(ROUNDS):
            both = [(self._on, on_ms), (self._off, off_ms)]
            for workspace, times_ms in both if round_number % 2 else reversed(both):
                before_s = processor_time_s(self._api_pid)
                await self._turns(workspace, TURNS_A_ROUND)
                times_ms.append(1000 * (processor_time_s(self._api_pid) - before_s) / TURNS_A_ROUND)
            self.turns_taken += TURNS_A_ROUND
        return on_ms, off_ms

    async def _differences_ms(self) -> list[float]:
        """What each pair's turn took more with the slow router; which of the two comes first changes by turns."""
        differences_ms = []
        async with open_connections(self._api, 1) as [connection]:
            for number in range(PAIRS):
                took_ms: dict[bool, float] = {}
                for workspace in (self._on, self._off) if number % 2 else (self._off, self._on):
                    elapsed_ms, body = await timed_ms(connection.send(self._request(workspace, mark=SLOW)))
                    check(body, workspace)
                    took_ms[workspace.is_routed] = elapsed_ms
                differences_ms.append(took_ms[True] - took_ms[False])
        self.turns_taken += PAIRS
        return differences_ms

    async def _turns(self, workspace: Workspace, count: int) -> None:
        request = self._request(workspace)
        left = count

        async def keep_turning(connection: Connection) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                check(await connection.send(request), workspace)

        async with open_connections(self._api, CONNECTIONS) as connections:
            await asyncio.gather(*map(keep_turning, connections))

    def _request(self, workspace: Workspace, *, mark: str = "") -> bytes:
        body = {
            "projectId": workspace.project_id,
            "agentId": "dev-api",
            "messages": conversation(mark),
            "tools": TOOLS,
        }
        path = f"/internal/sessions/{workspace.session_id}/llm-turn"
        return post(path, json.dumps(body).encode(), X_Brabo_Service_Token=self._token)


def check(body: bytes, workspace: Workspace) -> None:
    """A turn that failed, or whose menu is not as it should be, is no turn to measure. Raises StageFailedError."""
    answer = json.loads(body)
    routing = answer.get("toolRouting")
    is_narrowed = routing is not None and routing["aplicado"]
    if answer["error"] is not None or is_narrowed != workspace.is_routed or (routing and not is_narrowed):
        raise StageFailedError(f"A turn came back with toolRouting {routing}; its error: {answer['error']}")


def menus(control_url: str) -> tuple[int, int]:
    """How many tools the chat model got without the router and with it, by what the simulator received."""
    requests = httpx.get(f"{control_url}/_requests", trust_env=False).raise_for_status().json()["requests"]
    sizes = sorted({len(request["tools"]) for request in requests if request["tools"]})
    return sizes[-1], sizes[0]


def show(cost: RouterCost) -> None:
    """In sentences."""
    print(
        f"\n{cost.date}, Python {cost.python}, {cost.cores} cores; "
        f"menus of {cost.menu_before} and {cost.menu_after} tools\n"
        f"a router of {cost.decision_ms} ms adds {cost.added_ms:.1f} ms to a turn (median of {cost.pairs} pairs), "
        f"{cost.beyond_decision_ms:.1f} ms beyond its own time\n"
        f"one that answers at once: {cost.cpu_on_ms:.2f} ms of the api's processor time a turn, "
        f"{cost.cpu_off_ms:.2f} ms without it, {cost.cpu_added_ms:.2f} ms more "
        f"({cost.cpu_added_ratio:.0f} bare calls)"
    )


if __name__ == "__main__":
    sys.exit(main())
