"""The router over HTTP: what is sent, what the answer says of it, what it costs; both routes alike."""

import asyncio
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_session, create_world
from tests.support.decision_faults import (
    BILLED_ANOTHER_WAY,
    DETAILS,
    NO_COUNTS_CAME,
    REASONS,
    is_costly,
)
from tests.support.engine import (
    Answered,
    http_client,
    ledger,
    parse_frames,
    post,
    request_body,
    select,
    take_turn,
)
from tests.support.live import HEADERS, LiveApi, environment, live_api
from tests.support.routed_turns import (
    CATALOGUE,
    CHOICE,
    MODEL,
    NARROWED,
    PREVIOUS,
    after,
    comparable,
    offered,
    routed,
)
from tests.support.served import eventually, served_api

ROUTES: Final = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
JEV: Final = "typesafe/jev-1.13"
DECISIONS: Final = "/api/alpha/decisions"
CHAT: Final = "/api/v1/chat/completions"
STARTED: Final = {"type": "tool_routing_started"}
TEXT: Final = ["um ", "dois"]
RESERVED: Final = "responder_sem_ferramenta"

KEYS: Final = {
    "modelo", "ofertadas", "menuAntes", "menuDepois", "escolha", "confianca", "segunda", "anterior", "aplicado",
    "motivoDaQueda", "origemDaQueda", "detalheDaQueda", "latenciaMs", "custoMicros", "gastoNaoRegistrado", "turnId",
}  # fmt: skip
ORIGINS: Final = {
    "erro_http": "infra",
    "timeout": "infra",
    "erro_de_rede": "infra",
    "resposta_invalida": "modelo",
    "escolha_fora_das_opcoes": "modelo",
    "estado_grande": "codigo",
    "colisao_de_nome": "codigo",
}

TIMEOUT_MS: Final = 2000
"""What ends well ends well within it on a machine that is busy, too."""
LATE: Final = {"delay-accept": "ms=5000", "delay-headers": "ms=5000", "drip": "ms=500"}
"""These come after it."""


@dataclass(frozen=True)
class Case:
    """A turn, and what has to come of it. Where no decision is sent there is neither a frame nor a cost."""

    name: str
    over: Mapping[str, Any] = field(default_factory=dict)
    """Laid over the usual request."""
    decision: Mapping[str, Any] = field(default_factory=lambda: {"reply": {"choice": CHOICE}})
    """How the simulator is to answer it."""
    routing: Mapping[str, Any] | None = None
    """Some of `toolRouting`; None: there is none."""
    is_sent: bool = True
    menu: Sequence[str] | None = None
    """What the chat model is given; None: the whole catalogue."""
    world: Mapping[str, Any] = field(default_factory=dict)
    is_on: bool = True
    error_code: str | None = None
    """Of a turn that ends before the router's turn comes."""

    @property
    def catalogue(self) -> list[str]:
        return [tool["name"] for tool in routed(**self.over)["tools"] or ()]

    @property
    def calls(self) -> list[tuple[str, list[str]]]:
        """What has to reach the simulator, with the tools of each."""
        if self.error_code is not None:
            return []
        chat = (CHAT, self.catalogue if self.menu is None else list(self.menu))
        # Some end before a byte of them is read.
        return [(DECISIONS, []), chat] if self.is_sent and not self.name.endswith("-accept") else [chat]

    def mark(self, stream: int) -> str:
        """What the simulator knows its calls by."""
        return f"{re.sub(r'[^a-z0-9]+', '-', self.name)}-{stream}"


def not_asked(name: str, **fields: Any) -> Case:
    return Case(name, is_sent=False, **fields)


WHOLE: Final = {"aplicado": False, "motivoDaQueda": None, "origemDaQueda": None, "detalheDaQueda": None}
MANY: Final = [f"ferramenta_{at}" for at in range(300)]
LONG: Final = [{**tool, "description": "d" * 20_000} for tool in offered(*CATALOGUE)]
WORDY: Final = [{**tool, "description": "ação útil à " * 400} for tool in offered(*MANY[:10])]

CASES: Final = [
    Case(
        "narrowed to the choice and the previous tool",
        routing={"escolha": CHOICE, "confianca": 0.25, "anterior": PREVIOUS, "aplicado": True},
        decision={"reply": {"choice": CHOICE, "confidence": 0.25}},
        menu=NARROWED,
    ),
    Case(
        "narrowed to one tool",
        routing={"escolha": PREVIOUS, "anterior": PREVIOUS, "aplicado": True},
        decision={"reply": {"choice": PREVIOUS}},
        menu=[PREVIOUS],
    ),
    Case(
        "two tools of a name stay two",
        {"tools": offered("ler", "editar", "rodar", "ler")},
        routing={"escolha": CHOICE, "ofertadas": 4, "aplicado": True},
        menu=["ler", "editar", "ler"],
    ),
    Case(
        "no previous tool", {"messages": after(None)}, routing={**WHOLE, "escolha": CHOICE, "anterior": None}
    ),
    Case(
        "the previous tool is not on the catalogue",
        {"messages": after("apagar")},
        routing={**WHOLE, "escolha": CHOICE, "anterior": "apagar"},
    ),
    Case(
        "no tool fits",
        decision={"reply": {"choice": RESERVED}},
        routing={**WHOLE, "escolha": RESERVED, "anterior": PREVIOUS},
    ),
    Case(
        "a choice that was not offered",
        decision={"reply": {"choice": "apagar"}},
        routing={"motivoDaQueda": "escolha_fora_das_opcoes", "escolha": None, "anterior": PREVIOUS},
    ),
    not_asked("another provider", world={"provider": "openai"}),
    not_asked("no key", world={"api_key": None}, error_code="no_credential"),
    not_asked("a spent budget", world={"project_limit_micros": 1}, error_code="budget_exhausted"),
    not_asked("one tool", over={"tools": offered("ler")}),
    not_asked("no tools", over={"tools": []}),
    not_asked("tools null", over={"tools": None}),
    not_asked("no agent", over={"agentId": None}),
    not_asked("an empty agent", over={"agentId": ""}),
    not_asked("anamnese", over={"agentId": "anamnese"}),
    not_asked("context-manager", over={"agentId": "context-manager"}),
    not_asked("the whole catalogue is wanted", over={"catalogoCompleto": True}),
    not_asked("switched off", is_on=False),
    not_asked(
        "more options than a question takes",
        over={"tools": offered(*MANY)},
        routing={"motivoDaQueda": "estado_grande", "ofertadas": 300},
    ),
    not_asked("over 64,000 characters", over={"tools": LONG}, routing={"motivoDaQueda": "estado_grande"}),
    not_asked("over 8,000 tokens", over={"tools": WORDY}, routing={"motivoDaQueda": "estado_grande"}),
    not_asked(
        "a tool of the reserved name",
        over={"tools": offered(*CATALOGUE, RESERVED)},
        routing={"motivoDaQueda": "colisao_de_nome", "anterior": PREVIOUS},
    ),
]


def fault_case(fault: str) -> Case:
    """What a fault of the simulator's comes to; a KeyError: nobody has said yet what to make of it."""
    reason = REASONS[fault]
    over = {"messages": after(PREVIOUS)}
    decision = {"fault": f"{fault};{LATE[fault]}" if fault in LATE else fault, "reply": {"choice": CHOICE}}
    if reason is None:
        routing = {"escolha": CHOICE, "anterior": PREVIOUS, "aplicado": True}
        return Case(fault, over, decision, routing, menu=NARROWED)
    detail = {"detalheDaQueda": DETAILS[fault]} if fault in DETAILS else {}
    return Case(fault, over, decision, {"motivoDaQueda": reason.value, "anterior": PREVIOUS, **detail})


@dataclass(frozen=True)
class Taken:
    """A turn as everybody saw it."""

    case: Case
    got: Answered
    sent: Sequence[Mapping[str, Any]]
    """The requests that reached the simulator, in order."""
    charged: Mapping[str, Any] | None
    """The decision on the simulator's bill."""
    rows: Sequence[Mapping[str, Any]]


class Rig:
    """Takes the turns of many cases at once, each in a workspace and with a key of its own."""

    def __init__(self, api: LiveApi, simulator: Simulator, database_url: str) -> None:
        self.api = api
        self.simulator = simulator
        self.database_url = database_url
        self._at_once = asyncio.Semaphore(8)

    async def take(self, cases: Sequence[Case]) -> list[tuple[Taken, Taken]]:
        """Each as JSON and streamed."""
        worlds = await asyncio.to_thread(lambda: [self._world_of(case) for case in cases])
        answers = await asyncio.gather(
            *(
                self._answered(case, world, stream)
                for case, both in zip(cases, worlds, strict=True)
                for stream, world in enumerate(both)
            )
        )
        entries = self.simulator.bill()["entries"]
        taken = []
        for at, (case, both) in enumerate(zip(cases, worlds, strict=True)):
            taken.append(
                tuple(
                    self._seen(case, stream, world, answers[2 * at + stream], entries)
                    for stream, world in enumerate(both)
                )
            )
        return [(whole, streamed) for whole, streamed in taken]

    def _world_of(self, case: Case) -> tuple[World, World]:
        """One workspace, and a session of it for each route."""
        # A key of its own: five failures in a row open the circuit of one that is shared.
        world = create_world(
            self.database_url,
            **{"model_name": MODEL, "api_key": f"sk-or-v1-{case.name.replace(' ', '-')}", **case.world},
        )
        with psycopg.connect(self.database_url) as connection:
            other = create_session(connection, world.project_id, world.user_id)
            if not case.is_on:
                connection.execute(
                    "UPDATE workspaces SET tool_router_enabled = false WHERE id = %s", (world.workspace_id,)
                )
            if case.error_code == "budget_exhausted":
                connection.execute(
                    "UPDATE budgets SET spent_micros = 1 WHERE id = %s", (world.project_budget_id,)
                )
        return world, replace(world, session_id=other)

    async def _answered(self, case: Case, world: World, stream: int) -> Answered:
        mark = f"[mark:{case.mark(stream)}]"
        self.simulator.script(
            {"path": "decisions", "mark": mark, **case.decision},
            {"path": "chat", "mark": mark, "reply": {"text": TEXT}},
        )
        body = routed(**case.over)
        marked = [
            {**message, "content": f"{message['content']} {mark}"} if message["role"] == "user" else message
            for message in body["messages"]
        ]
        async with self._at_once:
            return await take_turn(self.api, world, stream=bool(stream), **{**body, "messages": marked})

    def _seen(
        self, case: Case, stream: int, world: World, got: Answered, entries: Sequence[Mapping[str, Any]]
    ) -> Taken:
        mark = case.mark(stream)
        sent = [request for request in self.simulator.requests() if request["mark"] == mark]
        charged = [entry for entry in entries if entry["mark"] == mark and entry["model"] == JEV]
        assert len(charged) <= 1
        return Taken(case, got, sent, charged[0] if charged else None, ledger(self.database_url, world))


def problems_of(taken: Taken) -> list[str]:
    """What is wrong with a turn."""
    case, got, answer = taken.case, taken.got, taken.got.answer
    if got.status != 200:
        return [f"status {got.status}: {answer}"]
    if answer.get("errorCode") != case.error_code:
        return [f"error {answer['error']}"]
    problems = []
    calls = [(request["path"], request["tools"]) for request in taken.sent]
    if calls != case.calls:
        problems.append(f"sent {calls} and not {case.calls}")
    if got.frames:
        deltas = [] if case.error_code else [{"type": "delta", "text": text} for text in TEXT]
        started = [STARTED] if case.is_sent else []
        if got.frames[:-1] != started + deltas:
            problems.append(f"frames {got.frames[:-1]}")
    rows = list(taken.rows)
    chat_rows = [row for row in rows if str(row["id"]) == answer["turnId"]]
    if len(chat_rows) != (0 if case.error_code else 1):
        problems.append(f"{len(chat_rows)} rows of the chat's")
    elif chat_rows and chat_rows[0]["cost_micros"] != answer["usage"]["costMicros"]:
        problems.append("the usage is not the chat's alone")
    router_rows = [row for row in rows if row not in chat_rows]
    routing = answer.get("toolRouting")
    if case.routing is None:
        if routing is not None or router_rows:
            problems.append(f"toolRouting {routing}, rows {router_rows}")
        return problems
    if routing is None:
        return [*problems, "no toolRouting"]
    return problems + problems_of_routing(taken, routing) + problems_of_spend(taken, routing, router_rows)


def problems_of_routing(taken: Taken, routing: Mapping[str, Any]) -> list[str]:
    case, catalogue = taken.case, taken.case.catalogue
    assert case.routing is not None
    menu = catalogue if case.menu is None else list(case.menu)
    expected: dict[str, Any] = {
        "modelo": JEV,
        "ofertadas": len(catalogue),
        "menuAntes": catalogue,
        "menuDepois": menu,
        "aplicado": len(menu) < len(catalogue),
        "gastoNaoRegistrado": False,
        "turnId": taken.got.answer["turnId"],
        "origemDaQueda": ORIGINS.get(case.routing.get("motivoDaQueda", "")),
        **case.routing,
    }
    problems = [
        f"{key} is {routing.get(key)!r} and not {value!r}"
        for key, value in expected.items()
        if routing.get(key) != value
    ]
    if set(routing) != KEYS:
        problems.append(f"keys {set(routing) ^ KEYS}")
    if routing["motivoDaQueda"] is None:
        if routing["detalheDaQueda"] is not None:
            problems.append(f"detail {routing['detalheDaQueda']!r} without a reason")
    elif (routing["escolha"], routing["confianca"], routing["segunda"]) != (None, None, None):
        problems.append("a choice beside a reason")
    elif not 0 < len(routing["detalheDaQueda"]) <= 200:
        problems.append(f"detail {routing['detalheDaQueda']!r}")
    if (routing["latenciaMs"] > 0) != case.is_sent:
        problems.append(f"latency {routing['latenciaMs']}")
    if routing["latenciaMs"] > TIMEOUT_MS + 1_000:
        problems.append(f"latency {routing['latenciaMs']}")
    return problems


def problems_of_spend(
    taken: Taken, routing: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> list[str]:
    case, entry = taken.case, taken.charged
    cost = routing["custoMicros"]
    is_expected = case.is_sent and (case.name not in REASONS or is_costly(case.name))
    if not is_expected:
        return [f"cost {cost}, rows {rows}"] if rows or cost else []
    if len(rows) != 1 or entry is None:
        return [f"{len(rows)} rows of the router's, {entry} on the bill"]
    (row,) = rows
    problems = []
    tokens = row["input_tokens"] + row["output_tokens"]
    expected: dict[str, Any] = {
        "actor_kind": "agent",
        "actor_id": "dev-api",
        "provider": "openrouter",
        "model_id": None,
        "model_name": JEV,
        "estimated": case.name in NO_COUNTS_CAME,
        "cost_micros": cost,
        "price_implicit": True,
        "input_price_per_million_micros": rounded(Decimal(cost * 1_000_000) / tokens) if tokens else 0,
        "output_price_per_million_micros": row["input_price_per_million_micros"],
        "catalog_cost_micros": None,
        "latency_ms": routing["latenciaMs"],
        "binding_origin": None,
        "routing_preference": None,
        "generation_id": entry["id"],
    }
    problems += [
        f"{column} is {row[column]!r} and not {value!r}"
        for column, value in expected.items()
        if row[column] != value
    ]
    if not row["estimated"] and (row["input_tokens"], row["output_tokens"]) != (
        entry["prompt_tokens"],
        entry["completion_tokens"],
    ):
        problems.append(f"the bill counts {entry}")
    if case.name not in BILLED_ANOTHER_WAY and rounded(Decimal(entry["cost"]) * 1_000_000) != cost:
        problems.append(f"the bill says {entry['cost']}, the answer {cost}")
    return problems


def rounded(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_HALF_UP))


def all_problems(pairs: Sequence[tuple[Taken, Taken]]) -> list[str]:
    """Of both routes, and between them."""
    problems = []
    for whole, streamed in pairs:
        for route, taken in (("json", whole), ("stream", streamed)):
            problems += [f"{taken.case.name}, {route}: {problem}" for problem in problems_of(taken)]
        if comparable(whole.got) != comparable(streamed.got):
            problems.append(f"{whole.case.name}: {comparable(whole.got)} != {comparable(streamed.got)}")
    return problems


@pytest.fixture
async def rig(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[Rig]:
    environ = environment(
        tmp_path,
        OPENROUTER_API_BASE=simulator.base_url,
        OPENAI_BASE_URL=f"{simulator.base_url}/v1",
        TOOL_ROUTER_TIMEOUT_MS=str(TIMEOUT_MS),
    )
    async with live_api(database_url, environ) as api:
        yield Rig(api, simulator, database_url)


async def test_every_condition_and_reason(rig: Rig, summarise: Callable[[str], None]) -> None:
    pairs = await rig.take(CASES)

    summarise(f"conditions and reasons, alike on both routes: {len(pairs)}")
    assert all_problems(pairs) == []
    reasons = {
        case.routing["motivoDaQueda"] for case in CASES if case.routing and "motivoDaQueda" in case.routing
    }
    assert reasons | {reason.value for reason in REASONS.values() if reason} | {None} == {*ORIGINS, None}


async def test_every_fault_of_the_simulator(rig: Rig, summarise: Callable[[str], None]) -> None:
    async with http_client() as client:
        listed = (await client.get(f"{rig.simulator.control_url}/_faults")).json()["faults"]
    faults = [fault["name"] for fault in listed if "decisions" in fault["applies_to"]]
    assert set(faults) == set(REASONS), "a fault without a row, or a row without its fault"

    pairs = []
    for some in (faults[:60], faults[60:]):  # the simulator keeps its last 500 requests
        pairs += await rig.take([fault_case(fault) for fault in some])
        rig.simulator.reset()

    summarise(f"faults on the decisions path, alike on both routes: {len(pairs)}")
    assert all_problems(pairs) == []
    assert len(faults) > 100


CIRCUIT: Final = {"detalheDaQueda": "circuit_open", "latenciaMs": 0, "custoMicros": 0, "aplicado": False}


def some_of(got: Answered, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: got.answer["toolRouting"][key] for key in keys}


@ROUTES
async def test_five_failures_in_a_row_open_the_circuit_of_that_key_alone(
    api: LiveApi, simulator: Simulator, database_url: str, world: World, stream: bool
) -> None:
    other = create_world(database_url, model_name=MODEL, api_key="sk-or-v1-of-another-owner")
    for fault in ("server-error", "overloaded", "unavailable", "provider-down", "reset-headers"):
        simulator.script({"path": "decisions", "fault": fault})
        got = await take_turn(api, world, stream=stream, **routed())
        assert got.answer["toolRouting"]["detalheDaQueda"] != "circuit_open"
    asked = len(simulator.requests())

    turns = [await take_turn(api, world, stream=stream, **routed()) for stream in (stream, not stream)]
    elsewhere = await take_turn(api, other, stream=stream, **routed())

    assert asked == 10
    for got in turns:
        assert got.answer["error"] is None
        assert some_of(got, CIRCUIT) == CIRCUIT
        assert got.answer["toolRouting"]["motivoDaQueda"] == "erro_de_rede"  # the last failure's
        assert got.answer["toolRouting"]["origemDaQueda"] == "infra"
        assert STARTED not in got.frames
    later = [(request["path"], len(request["tools"])) for request in simulator.requests()[asked:]]
    assert later[:2] == [(CHAT, len(CATALOGUE))] * 2
    assert later[2][0] == DECISIONS
    assert elsewhere.answer["toolRouting"]["motivoDaQueda"] is None
    assert not [row for row in ledger(database_url, world) if row["model_name"] == JEV]


@ROUTES
async def test_a_refusal_is_no_failure_and_begins_the_row_anew(
    api: LiveApi, simulator: Simulator, world: World, stream: bool
) -> None:
    for fault in (*["server-error"] * 4, "rate-limit", *["server-error"] * 4):
        simulator.script({"path": "decisions", "fault": fault})
        await take_turn(api, world, stream=stream, **routed())

    got = await take_turn(api, world, stream=stream, **routed())

    assert got.answer["toolRouting"]["motivoDaQueda"] is None


async def test_started_is_said_before_the_router_answers(
    api: LiveApi, simulator: Simulator, world: World
) -> None:
    simulator.script({"path": "decisions", "reply": {"choice": CHOICE, "first_token_ms": 700}})
    arrived: dict[str, float] = {}
    raw = b""
    async with (
        http_client(timeout=30) as client,
        client.stream(
            "POST",
            api.turn_url(world.session_id, stream=True),
            json=request_body(world, **routed()),
            headers=HEADERS,
        ) as response,
    ):
        async for piece in response.aiter_raw():
            raw += piece
            for frame in parse_frames(raw[: raw.rindex(b"\n\n") + 2]):
                arrived.setdefault(frame["type"], time.monotonic())

    assert list(arrived) == ["tool_routing_started", "delta", "final"]
    assert arrived["delta"] - arrived["tool_routing_started"] > 0.5


async def test_a_switch_that_cannot_be_read_costs_the_narrowing_and_no_more(
    api: LiveApi, simulator: Simulator, database_url: str, world: World
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE workspaces RENAME COLUMN tool_router_enabled TO elsewhere")

    whole, streamed = [await take_turn(api, world, stream=stream, **routed()) for stream in (False, True)]

    for got in (whole, streamed):
        assert (got.status, got.answer["error"]) == (200, None)
        assert "toolRouting" not in got.answer
    assert STARTED not in streamed.frames
    sent = [(request["path"], request["tools"]) for request in simulator.requests()]
    assert sent == [(CHAT, list(CATALOGUE))] * 2


@ROUTES
async def test_a_row_that_is_not_written_in_time_is_kept_for_later(
    api: LiveApi, simulator: Simulator, database_url: str, world: World, stream: bool
) -> None:
    simulator.script({"path": "decisions", "reply": {"choice": CHOICE}})
    with psycopg.connect(database_url) as connection:
        connection.execute("LOCK TABLE token_usage IN ACCESS EXCLUSIVE MODE")
        started_s = time.monotonic()
        turn = asyncio.create_task(take_turn(api, world, stream=stream, **routed()))
        await eventually(lambda: len(simulator.requests()) == 2)  # the chat waits for no row
        asked_s = time.monotonic() - started_s
        got = await turn
        took_s = time.monotonic() - started_s

    routing = got.answer["toolRouting"]
    assert got.answer["error"] is None
    assert (routing["gastoNaoRegistrado"], routing["aplicado"]) == (False, True)
    assert routing["custoMicros"] > 0
    assert asked_s < 1.5
    assert 1.5 < took_s < 4
    await eventually(lambda: ledger(database_url, world)[1:])


@ROUTES
async def test_leaving_while_the_router_is_asked_lets_it_finish_and_calls_no_chat(
    api: LiveApi, simulator: Simulator, database_url: str, world: World, stream: bool
) -> None:
    simulator.script({"path": "decisions", "reply": {"choice": CHOICE, "first_token_ms": 600}})
    client = http_client()
    sending = asyncio.create_task(
        client.post(
            api.turn_url(world.session_id, stream=stream),
            json=request_body(world, **routed()),
            headers=HEADERS,
        )
    )
    await eventually(lambda: simulator.bill()["entries"])

    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await client.aclose()

    (row,) = await eventually(lambda: ledger(database_url, world))
    (entry,) = simulator.bill()["entries"]
    assert (row["model_name"], row["generation_id"]) == (JEV, entry["id"])
    assert row["latency_ms"] > 500  # it was not cut short
    await asyncio.sleep(0.3)
    assert [request["path"] for request in simulator.requests()] == [DECISIONS]


@ROUTES
async def test_the_ceiling_holds_while_the_router_is_asked(
    simulator: Simulator, database_url: str, world: World, tmp_path: Path, stream: bool
) -> None:
    simulator.script({"path": "decisions", "reply": {"choice": CHOICE, "first_token_ms": 900}})
    ceilings = {"BRABO_TURN_CEILING_MS": "300", "BRABO_STREAM_CEILING_MS": "300"}
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, **ceilings)
    async with live_api(database_url, environ) as api:
        got = await take_turn(api, world, stream=stream, **routed())
        before = ledger(database_url, world)
        (row,) = await eventually(lambda: ledger(database_url, world))

    assert got.answer["errorCode"] == "timeout"
    assert got.answer["toolRouting"]["motivoDaQueda"] == "timeout"
    assert got.answer["toolRouting"]["menuDepois"] == got.answer["toolRouting"]["menuAntes"]
    assert before == []
    assert row["model_name"] == JEV
    assert [request["path"] for request in simulator.requests()] == [DECISIONS]


async def test_a_drain_while_the_router_is_asked_answers_at_once_and_waits_for_the_row(
    simulator: Simulator, database_url: str, world: World, tmp_path: Path
) -> None:
    simulator.script({"path": "decisions", "times": 2, "reply": {"choice": CHOICE, "first_token_ms": 1500}})
    variables = {
        "DATABASE_URL": database_url,
        "OPENROUTER_API_BASE": simulator.base_url,
        "BRABO_DRAIN_GRACE_S": "0",
        "BRABO_DRAIN_S": "0.5",
    }
    async with served_api(tmp_path, **variables) as api:
        body = json.dumps(request_body(world, **routed())).encode()
        urls = [api.turn_url(world.session_id, stream=stream) for stream in (False, True)]
        turns = [asyncio.create_task(post(url, body)) for url in urls]
        await eventually(lambda: len(simulator.bill()["entries"]) == 2)
        api.send(signal.SIGTERM)
        answers = await asyncio.gather(*turns)
        before = ledger(database_url, world)
        status, _ = await api.ended(10)

    assert [(got.status, got.answer["errorCode"]) for got in answers] == [(200, "draining")] * 2
    assert before == []
    assert status == 0
    assert [row["model_name"] for row in ledger(database_url, world)] == [JEV] * 2
    assert [request["path"] for request in simulator.requests()] == [DECISIONS] * 2


async def test_budgets_and_area_pay_for_both_and_the_gate_is_not_asked_in_between(
    api: LiveApi, simulator: Simulator, database_url: str, world: World
) -> None:
    """The decision alone spends the budget, and the turn goes on; the next one is refused."""
    simulator.script({"path": "decisions", "reply": {"choice": CHOICE, "cost": "20"}})

    paid = await take_turn(api, world, **routed())
    refused = await take_turn(api, world, **routed())

    cost_micros = sum(row["cost_micros"] for row in ledger(database_url, world))
    assert paid.answer["error"] is None
    assert paid.answer["toolRouting"]["custoMicros"] == 20_000_000
    assert paid.answer["usage"]["costMicros"] == cost_micros - 20_000_000
    assert refused.answer["errorCode"] == "budget_exhausted"
    assert "toolRouting" not in refused.answer
    for table, column in (("budgets", world.project_budget_id), ("agent_areas", world.area_ids["dev"])):
        (spent,) = select(database_url, f"SELECT spent_micros FROM {table} WHERE id = %s", column)
        assert spent["spent_micros"] == cost_micros


async def test_what_is_asked_is_what_the_contract_says(
    api: LiveApi, simulator: Simulator, world: World
) -> None:
    await take_turn(api, world, **routed())

    asked, chat = simulator.requests()
    assert asked["method"] == "POST"
    assert asked["headers"]["authorization"] == chat["headers"]["authorization"]
    question = asked["body"]["questions"]["ferramenta_do_passo"]
    assert list(asked["body"]) == ["model", "state", "questions"]
    assert asked["body"]["model"] == JEV
    assert list(question["criteria"]) == [*CATALOGUE, RESERVED]
    assert question["type"] == "choice"
    assert asked["body"]["state"] == {
        "agente": "dev-api",
        "contexto": "Você é o agente dev-api.",
        "pedido": "Edite a.ts",
        "passos_recentes": [
            {"ferramenta": "ler", "argumentos": '{"path":"a.ts"}', "resultado": "export const a = 1"}
        ],
    }
