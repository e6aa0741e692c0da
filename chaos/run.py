"""`make chaos`: turns under every fault at once, while the books are audited, and a reckoning at the end."""

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from adapters.postgres import migrate
from adapters.postgres.audit import PostgresAudit
from application.ports.database import DatabaseFailed
from chaos.engine import Seen, take
from chaos.parts import Api, Postgres
from chaos.proxy import ResettingProxy
from chaos.reckoning import Reckoning, reckon, rows_of
from chaos.schedule import Break, Engine, PlannedTurn, Schedule, Upstream, make_schedule
from entrypoints.simulator import Simulator
from tests.support import brabo_data
from tests.support.brabo_data import World, create_world

ROOT: Final = Path(__file__).parents[1]
MODEL: Final = "openai/gpt-4.1-mini"
_STRICT_LIMIT_MICROS: Final = 20_000
"""Room for a few worst cases at a time."""

_TURNS_WHILE_BROKEN: Final = 5
"""Then whoever sends turns waits until it is mended: engines would too."""

BREAKS: Final[dict[str, dict[str, dict[str, str]]]] = {
    "expiry-frees": {
        "adapters/postgres/settle.py": {
            "id = turn_id AND NOT awaits_truth AS frees_chat": "id = turn_id AS frees_chat"
        },
    },
    "no-begin": {
        "application/turn.py": {"        await pipeline.journal.begin(start)\n": ""},
    },
    "sum-from-input": {
        "adapters/postgres/settle.py": {
            "AS cost, true AS is_spend FROM written": "AS cost, true AS is_spend FROM handed"
        },
    },
    "hold-unconditional": {
        "domain/budget.py": {
            "return self.spent_micros + self.held_micros + micros <= self.limit_micros": "return True"
        },
        "adapters/postgres/holds.py": {
            "+ r.micros > b.limit_micros": "+ r.micros > b.limit_micros + 1000000000",
            "+ r.micros > limit_micros": "+ r.micros > limit_micros + 1000000000",
        },
    },
}
"""Named breaks of the api under test: balance or audit has to find each."""

UPSTREAMS: Final[dict[Upstream, dict[str, Any]]] = {
    Upstream.WELL: {},
    Upstream.CUTS: {"fault": "charged-cut"},
    Upstream.RESETS: {"fault": "reset-headers"},
    Upstream.SAYS_NO_USAGE: {"fault": "usage-missing"},
    Upstream.STALLS: {"fault": "delay-first-token;ms=4000"},
    Upstream.REFUSES: {"fault": "server-error"},
    Upstream.DECIDES_LATE: {},
}


class Rig:
    """Everything under the turns."""

    def __init__(self, schedule: Schedule, folder: Path, broken: str | None) -> None:
        self.schedule = schedule
        self.folder = folder
        self.postgres = Postgres(folder)
        self.source = _patched(folder, broken) if broken else ROOT / "src"
        self.token = secrets.token_hex(16)
        self.seen: dict[str, Seen] = {}
        self.worlds: dict[bool, World] = {}
        self.sessions: dict[bool, list[str]] = {False: [], True: []}
        self.deleted_rows: list[dict[str, Any]] = []
        self.hits: Counter[tuple[str, str]] = Counter()
        """How often each break found a turn in which phase."""
        self.findings: list[str] = []
        self.audits = 0
        self.is_database_up = True
        self.other_rows = 0

    async def run(self) -> Reckoning:
        """Run the schedule, mend everything, and reckon."""
        await asyncio.to_thread(self.postgres.start)
        await asyncio.to_thread(migrate.upgrade, self.postgres.url)
        self._make_worlds()
        async with Simulator.start(between_ms=15, generation_delay_ms=3_000) as simulator:
            self.simulator = simulator
            upstream_port = int(simulator.control_url.rpartition(":")[2])
            self.to_provider = ResettingProxy(upstream_port)
            await self.to_provider.start()
            self.to_database = ResettingProxy(self.postgres.port)
            await self.to_database.start()
            self.api = Api(self.source, self.folder, self._variables())
            self.to_api = ResettingProxy(self.api.port)
            await self.to_api.start()
            await self.api.start()
            stop = asyncio.Event()
            beside = [asyncio.create_task(self._audit(stop)), asyncio.create_task(self._other_program(stop))]
            try:
                await self._take_turns()
                await self._mend()
            finally:
                stop.set()
                await asyncio.gather(*beside)
                await self.api.stop()
                await self.to_api.stop()
                await self.to_provider.stop()
                await self.to_database.stop()
            self._audit_once()
            result = reckon(simulator.bill()["entries"], self.postgres.url, self.deleted_rows)
        await asyncio.to_thread(self.postgres.stop)
        result.wrong += self.findings
        return result

    def _variables(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.postgres.url.replace(
                f":{self.postgres.port}/", f":{self.to_database.port}/"
            ),
            "OPENROUTER_API_BASE": f"http://127.0.0.1:{self.to_provider.port}/api",
            "BRABO_SERVICE_TOKEN": self.token,
            "CREDENTIALS_MASTER_KEY": brabo_data.MASTER_KEY,
            "AUTH_JWT_SECRET": secrets.token_hex(16),
            "BRABO_TURN_CEILING_MS": "3000",
            "BRABO_STREAM_CEILING_MS": "3000",
            "BRABO_DRAIN_GRACE_S": "0",
            "BRABO_DRAIN_S": "1",
            "TOOL_ROUTER_TIMEOUT_MS": "300",
            "BRABO_STRICT_OUTPUT_TOKENS": "1000",
        }

    def _make_worlds(self) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            first = create_world(self.postgres.url, model_name=MODEL, project_limit_micros=10**9)
            second = create_world(
                self.postgres.url,
                model_name=f"{MODEL}#strict",
                project_limit_micros=_STRICT_LIMIT_MICROS,
                input_price_per_million_micros=400_000,
                output_price_per_million_micros=1_600_000,
            )
            connection.execute(
                "UPDATE model_bindings SET model_id = %s WHERE id = %s", (first.model_id, second.binding_id)
            )
            connection.execute(
                "UPDATE models SET input_price_per_million_micros = 400000,"
                " output_price_per_million_micros = 1600000 WHERE id = %s",
                (first.model_id,),
            )
            connection.execute("UPDATE budgets SET strict = true WHERE project_id = %s", (second.project_id,))
            self.worlds = {False: first, True: second}
            for strict, world in self.worlds.items():
                self.sessions[strict] = [
                    str(brabo_data.create_session(connection, world.project_id, world.user_id))
                    for _ in range(6)
                ]

    async def _take_turns(self) -> None:
        breaks = list(self.schedule.breaks)
        running: set[asyncio.Task[None]] = set()
        breaking: asyncio.Task[None] | None = None
        broken_at = 0
        for at, turn in enumerate(self.schedule.turns):
            if breaking is not None and at - broken_at >= _TURNS_WHILE_BROKEN:
                await breaking
                breaking = None
            while breaks and breaks[0][0] <= at:
                if breaking is not None:
                    await breaking
                breaking, broken_at = asyncio.create_task(self._break(breaks.pop(0)[1])), at
            self._script(turn)
            repeats = 2 if turn.engine is Engine.REPEATS else 1
            for again in range(repeats):
                task = asyncio.create_task(self._take(turn, f"{turn.agent}/{again}"))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(turn.after_ms / 1000)
            while len(running) > 40:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for _, kind in breaks:
            if breaking is not None:
                await breaking
            breaking = asyncio.create_task(self._break(kind))
        if breaking is not None:
            await breaking
        while running:
            await asyncio.wait(running)

    async def _take(self, turn: PlannedTurn, key: str) -> None:
        self.seen[key] = seen = Seen()
        sessions = self.sessions[turn.strict]
        session = sessions[zlib.crc32(turn.agent.encode()) % len(sessions)]
        world = self.worlds[turn.strict]
        await take(turn, seen, self.to_api.port, self.token, str(world.project_id), session)

    def _script(self, turn: PlannedTurn) -> None:
        mark = f"[mark:{turn.agent}]"
        times = 2 if turn.engine is Engine.REPEATS else 1
        reply = {"text": "uma resposta de algumas palavras que vem aos poucos", "pieces": 8, "between_ms": 15}
        self.simulator.script(
            {"mark": mark, "path": "chat", "times": times, "reply": reply, **UPSTREAMS[turn.upstream]}
        )
        if turn.routed:
            late = turn.upstream is Upstream.DECIDES_LATE
            pause = {"first_token_ms": 1_000 if late else 60}
            self.simulator.script(
                {"mark": mark, "path": "decisions", "times": times, "reply": {"choice": "ler", **pause}}
            )

    async def _break(self, kind: Break) -> None:
        for _ in range(50):  # nothing is broken for want of a turn that it could hit
            if self._phases()["streaming"]:
                break
            await asyncio.sleep(0.02)
        for phase, count in self._phases().items():
            self.hits[kind.value, phase] += count
        match kind:
            case Break.KILL:
                await self.api.kill()
            case Break.TERMINATE:
                await self.api.terminate()
            case Break.DATABASE:
                self.is_database_up = False
                await asyncio.to_thread(self.postgres.stop)
                await asyncio.sleep(1)
                await asyncio.to_thread(self.postgres.start)
                self.to_database.target_port = self.postgres.port
                self.is_database_up = True
            case Break.RESET_ENGINES:
                self.to_api.reset_all()
            case Break.RESET_PROVIDER:
                self.to_provider.reset_all()
            case Break.FULL_DISK:
                self.api.fill_disk()
                await asyncio.sleep(0.7)
                self.api.free_disk()
            case Break.DELETE_SESSION:
                await asyncio.to_thread(self._delete_session)

    def _phases(self) -> Counter[str]:
        """In which phase each turn is that is under way, by the engine's view and the bill's."""
        calls: dict[str, list[dict[str, Any]]] = {}
        for entry in self.simulator.bill()["entries"]:
            calls.setdefault(entry["mark"], []).append(entry)
        phases: Counter[str] = Counter()
        for key, seen in self.seen.items():
            if seen.has_ended or not seen.has_sent:
                continue
            mine = calls.get(key.partition("/")[0], [])
            under_way = [call for call in mine if call["status"] == "accepted"]
            if any("decisions" in call["path"] for call in under_way):
                phases["router"] += 1
            elif any(not call["headers_sent"] for call in under_way):
                phases["chat, before headers"] += 1
            elif under_way:
                phases["streaming"] += 1
            elif any("chat" in call["path"] for call in mine):
                phases["settling"] += 1
            else:
                phases["before its first call"] += 1
        return phases

    def _delete_session(self) -> None:
        """Delete one as the existing program does, having read the rows that go with it."""
        sessions = self.sessions[False]
        with psycopg.connect(self.postgres.url) as connection:
            doomed = sessions.pop(0)
            world = self.worlds[False]
            with psycopg.connect(self.postgres.url) as maker:
                sessions.append(str(brabo_data.create_session(maker, world.project_id, world.user_id)))
            connection.execute("SELECT id FROM sessions WHERE id = %s FOR UPDATE", (doomed,))
            self.deleted_rows += rows_of(
                connection,
                "SELECT id, turn_id, actor_id, model_name, cost_micros, estimated, generation_id FROM token_usage"
                " WHERE session_id = %s AND turn_id IS NOT NULL",
                doomed,
            )
            connection.execute("DELETE FROM sessions WHERE id = %s", (doomed,))

    async def _audit(self, stop: asyncio.Event) -> None:
        """Once a second, while the turns run."""
        while not stop.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1)
            if self.is_database_up:
                await asyncio.to_thread(self._audit_once)

    def _audit_once(self) -> None:
        try:
            findings = PostgresAudit(self.postgres.url).run(since=None)
            with psycopg.connect(self.postgres.url) as connection:
                over = connection.execute(
                    "SELECT id, spent_micros, held_micros, limit_micros FROM budgets"
                    " WHERE strict AND spent_micros + held_micros > limit_micros"
                ).fetchall()
        except (DatabaseFailed, psycopg.OperationalError):
            return  # stopped in between
        self.audits += 1
        for finding in findings:
            for one in finding.violations[:3]:
                self._find(f"audit: {finding.name}: {one.id}: {one.detail}")
        for budget in over:
            self._find(f"strict budget {budget[0]}: spent {budget[1]} and held {budget[2]} of {budget[3]}")

    def _find(self, what: str) -> None:
        if len(self.findings) < 20 and what not in self.findings:
            self.findings.append(what)

    async def _other_program(self, stop: asyncio.Event) -> None:
        """Write as the existing program does: the row, then the counters, in one transaction."""
        while not stop.is_set():
            if self.is_database_up:
                with suppress(psycopg.Error):
                    await asyncio.to_thread(self._other_row)
            await asyncio.sleep(0.1)

    def _other_row(self) -> None:
        world, session = self.worlds[False], self.sessions[False][-1]
        with psycopg.connect(self.postgres.url) as connection:
            connection.execute(
                "INSERT INTO token_usage (session_id, actor_kind, actor_id, provider, model_name, input_tokens,"
                " output_tokens, cost_micros, input_price_per_million_micros, latency_ms)"
                " VALUES (%s, 'agent', 'dev-outro', 'openrouter', 'm', 1000000, 0, 3, 3, 5)",
                (session,),
            )
            connection.execute(
                "UPDATE budgets SET spent_micros = spent_micros + 3 WHERE project_id = %s OR session_id = %s",
                (world.project_id, session),
            )
            connection.execute(
                "UPDATE agent_areas SET spent_micros = spent_micros + 3 WHERE project_id = %s AND key = 'dev'",
                (world.project_id,),
            )
        self.other_rows += 1

    async def _mend(self) -> None:
        """Everything is up: wait until each start has its end, and ask for what can be known."""
        deadline_s = time.monotonic() + 90
        while time.monotonic() < deadline_s and self._count("turn_starts WHERE ended_at IS NULL"):
            await asyncio.sleep(1)
        await asyncio.sleep(6)  # a look for the dead, once more
        self.simulator.advance_clock(120_000)
        said = ""
        for _ in range(5):
            if not self._count("usage_truths WHERE state = 'open' AND generation_id IS NOT NULL"):
                return
            said = await self.api.command("reconcile")
        self._find(f"reconciliation does not end: {said}")

    def _count(self, of: str) -> int:
        with psycopg.connect(self.postgres.url) as connection:
            row = connection.execute(f"SELECT count(*) FROM {of}".encode()).fetchone()
        assert row is not None, "a count has a row"
        return int(row[0])


def _patched(folder: Path, name: str) -> Path:
    """A copy of the source with the break in it."""
    copy = folder / "broken" / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "migrations", copy.parent / "migrations")
    for file, changes in BREAKS[name].items():
        path = copy / file
        source = path.read_text(encoding="utf-8")
        for text, instead in changes.items():
            assert source.count(text) == 1, f"{name}: {text!r} is not in src/{file} once"
            source = source.replace(text, instead)
        path.write_text(source, encoding="utf-8")
    return copy


def main() -> int:
    """0 when the books agree, 1 when they do not."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument(
        "--break", dest="broken", choices=sorted(BREAKS), help="break the api so: it must be found"
    )
    arguments = parser.parse_args()
    schedule = make_schedule(arguments.seed, arguments.turns)
    print(
        f"Seed {arguments.seed}, {arguments.turns} turns. The seed fixes the schedule, and not the timing:"
        f" {', '.join(f'{count} x {fault}' for fault, count in sorted(schedule.counts().items()))}"
    )
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="brabo-chaos-", ignore_cleanup_errors=True) as name:
        rig = Rig(schedule, Path(name), arguments.broken)
        try:
            result = asyncio.run(rig.run())
        finally:
            rig.postgres.stop()
    for (fault, phase), count in sorted(rig.hits.items()):
        print(f"{fault}: hit {count} turns {phase if phase.startswith('before') else 'in ' + phase}")
    statuses = Counter(seen.status or "no answer" for seen in rig.seen.values())
    print(
        f"Answers: {dict(sorted(statuses.items(), key=str))}; {sum(one.has_final for one in rig.seen.values())} final"
    )
    print(f"{rig.audits} audits meanwhile, {rig.other_rows} rows of another program")
    print("\n".join(result.lines()))
    print(
        f"{'The books do NOT agree' if result.wrong else 'The books agree'} ({time.monotonic() - started_s:.0f} s)."
    )
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
