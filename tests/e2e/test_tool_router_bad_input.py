"""Odd and large input on the router's path: every turn succeeds, and nothing holds the event loop."""

import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_world
from tests.support.engine import Answered, http_client, ledger, post, request_body
from tests.support.live import LiveApi
from tests.support.routed_turns import CATALOGUE, MODEL, after, comparable, offered, routed
from tests.support.served import ServedApi, served_api

DECISIONS: Final = "/api/alpha/decisions"
STARTED: Final = {"type": "tool_routing_started"}
ATTEMPTS: Final = 3
LONGEST_GAP_MS: Final = 100.0
PROBED: Final = (sys.executable, "-m", "tests.support.probed_server")
KB: Final = 1024
MB: Final = 1024 * KB
PROSE: Final = "O relatório lista os arquivos lidos, o que cada um exporta e por quê; nada falta. "
TOO_LARGE: Final = {"motivoDaQueda": "estado_grande", "origemDaQueda": "codigo", "latenciaMs": 0}
WIRE_LEVELS: Final = 6
"""Of a body, above what a call's arguments hold: body, messages, message, calls, call, arguments."""


@dataclass(frozen=True)
class Odd:
    """A request, and what has to come of it."""

    over: Mapping[str, Any]
    choice: str | None = None
    """What the simulator chooses; None: what it likes."""
    routing: Mapping[str, Any] = field(default_factory=lambda: {"motivoDaQueda": None})
    """Some of `toolRouting`."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """Some of what the router is sent; nothing is sent where a reason comes."""


def called(name: str, arguments: Mapping[str, Any], call_id: str | None = "c1") -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "toolCalls": [{"id": call_id, "name": name, "arguments": arguments}],
    }


def result(content: str, **over: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **over}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def described(description: str | None, *names: str) -> list[dict[str, Any]]:
    return [{**tool, "description": description} for tool in offered(*(names or CATALOGUE))]


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def steps(count: int) -> Iterator[dict[str, Any]]:
    for at in range(count):
        yield called("ler", {"path": f"{at}.ts"}, call_id=f"c{at}")
        yield result(f"conteúdo {at}", toolCallId=f"c{at}")


def recent(tool: str, arguments: str, outcome: str) -> dict[str, str]:
    return {"ferramenta": tool, "argumentos": arguments, "resultado": outcome}


def small_cases() -> Iterator[tuple[str, Odd]]:
    odd_names = ['a "b"', "c\nd", "e\\f\t", "ção\u2028", "\U0001f600"]
    yield "empty descriptions", Odd({"tools": described("")}, choice="editar", routing={"aplicado": True})
    yield "null descriptions", Odd({"tools": described(None)}, choice="editar", routing={"aplicado": True})
    yield (
        "control characters",
        Odd({"tools": described("a\0b\x1b[31m\r\n\x7f")}, routing={"motivoDaQueda": None}),
    )
    yield (
        "names with quotes and line ends",
        Odd(
            {"tools": offered(*odd_names), "messages": after(odd_names[0])},
            choice=odd_names[1],
            routing={"menuDepois": odd_names[:2], "anterior": odd_names[0], "aplicado": True},
        ),
    )
    yield "an empty name", Odd({"tools": offered("", "ler"), "messages": after("")}, choice="ler")
    yield (
        "the reserved name",
        Odd(
            {"tools": offered(*CATALOGUE, "responder_sem_ferramenta")},
            routing={"motivoDaQueda": "colisao_de_nome", "origemDaQueda": "codigo", "latenciaMs": 0},
        ),
    )
    yield "300 tools", Odd({"tools": offered(*(f"t{at}" for at in range(300)))}, routing=TOO_LARGE)
    yield "254 tools", Odd({"tools": offered(*(f"t{at}" for at in range(254)))}, choice="t253")
    yield "255 tools", Odd({"tools": offered(*(f"t{at}" for at in range(255)))}, routing=TOO_LARGE)
    yield "300 tools of one name", Odd({"tools": offered(*["ler"] * 300)}, choice="ler")
    yield (
        "no messages but a result",
        Odd({"messages": [result("r", name="ler")]}, state={"passos_recentes": []}),
    )
    yield (
        "results without calls",
        Odd(
            {"messages": [user("a"), result("r", toolCallId="zz"), result("s"), result("t", name="ler")]},
            routing={"anterior": None, "aplicado": False},
            state={"passos_recentes": []},
        ),
    )
    yield (
        "calls without results",
        Odd(
            {"messages": [user("a"), called("ler", {}), called("rodar", {"x": "é"}, call_id=None)]},
            choice="editar",
            routing={"anterior": "rodar", "menuDepois": ["rodar", "editar"]},
            state={
                "passos_recentes": [
                    recent("ler", "{}", "(sem resultado)"),
                    recent("rodar", '{"x":"é"}', "(sem resultado)"),
                ]
            },
        ),
    )
    yield (
        "several users",
        Odd(
            {"messages": [user("um"), *steps(1), user("dois"), user("três")]},
            routing={"anterior": None, "aplicado": False},
            state={"pedido": "três", "passos_recentes": []},
        ),
    )
    yield (
        "no user",
        Odd(
            {"messages": [system("s"), *steps(1)]},
            choice="editar",
            routing={"anterior": "ler", "aplicado": True},
            state={"pedido": "", "passos_recentes": [recent("ler", '{"path":"0.ts"}', "conteúdo 0")]},
        ),
    )
    yield "no system", Odd({"messages": [user("a"), *steps(1)]}, state={"contexto": ""})
    yield (
        "several systems, the last one after the results",
        Odd({"messages": [system("um"), user("a"), *steps(1), system("dois")]}, state={"contexto": "um"}),
    )
    yield (
        "an agent of 200 odd characters",
        Odd({"agentId": '"\n\u2028é' * 50}, state={"agente": '"\n\u2028é' * 50}),
    )
    yield (
        "emoji where texts are cut",
        Odd(
            {"messages": [system("\U0001f600" * 1_501), user("\U0001f600" * 6_002)]},
            state={
                "contexto": "\U0001f600" * 1_500 + "…[+1]",
                "pedido": "\U0001f600" * 6_000 + "…[+2]",
            },
        ),
    )


def large_cases() -> Iterator[tuple[str, Odd]]:
    yield "descriptions of 100 KB", Odd({"tools": described("d" * 100 * KB)}, routing=TOO_LARGE)
    yield (
        "300 tools of 100 KB",
        Odd({"tools": described("d" * 100 * KB, *(f"t{at}" for at in range(300)))}, routing=TOO_LARGE),
    )
    long_system = PROSE * (5 * MB // len(PROSE.encode()))
    yield (
        "a system message of 5 MB",
        Odd(
            {"messages": [system(long_system), user("a"), *steps(1)]},
            state={"contexto": f"{long_system[:1_500]}…[+{len(long_system) - 1_500}]"},
        ),
    )
    yield (
        "10,000 messages",
        Odd(
            {"messages": [user("a"), *steps(5_000)]},
            choice="editar",
            routing={"anterior": "ler", "aplicado": True},
            state={
                "passos_recentes": [
                    recent("ler", f'{{"path":"{at}.ts"}}', f"conteúdo {at}") for at in range(4_994, 5_000)
                ]
            },
        ),
    )
    yield (
        "2,000 calls in one message without ids",
        Odd(
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": "",
                        "toolCalls": [{"id": None, "name": "ler", "arguments": {}}] * 2_000,
                    },
                    *[result("r", name="ler")] * 2_000,
                ]
            },
            routing={"anterior": "ler"},
            state={"passos_recentes": [recent("ler", "{}", "r")] * 6},
        ),
    )
    deep = nested(900 - WIRE_LEVELS)
    deep_json = '{"x":' + json.dumps(deep) + "}"
    yield (
        "arguments down to the 900th level",
        Odd(
            {"messages": [user("a"), called("ler", {"x": deep})]},
            routing={"anterior": "ler"},
            state={
                "passos_recentes": [
                    recent("ler", f"{deep_json[:500]}…[+{len(deep_json) - 500}]", "(sem resultado)")
                ]
            },
        ),
    )
    text = PROSE * (10 * MB // len(PROSE.encode()))
    argument = '{"content":' + json.dumps(text, ensure_ascii=False) + "}"
    yield (
        "an argument of 10 MB",
        Odd(
            {"messages": [user("a"), called("ler", {"content": text}), result("r", toolCallId="c1")]},
            routing={"anterior": "ler"},
            state={"passos_recentes": [recent("ler", f"{argument[:500]}…[+{len(argument) - 500}]", "r")]},
        ),
    )
    yield (
        "a result of 10 MB",
        Odd(
            {"messages": [user("a"), called("ler", {}), result(text, toolCallId="c1")]},
            state={"passos_recentes": [recent("ler", "{}", f"{text[:500]}…[+{len(text) - 500}]")]},
        ),
    )
    yield (
        "5 MB of text further down",
        Odd(
            {"messages": [user("a"), called("ler", {"edits": [{"text": long_system}]})]},
            routing={"anterior": "ler"},
        ),
    )
    yield (
        "6 calls of 1 MB",
        Odd(
            {"messages": [user("a"), *(called("ler", {"content": text[:MB]}, f"c{at}") for at in range(6))]},
            routing={"anterior": "ler"},
        ),
    )
    yield "a user message of 5 MB", Odd({"messages": [user(long_system)]}, routing={"anterior": None})


async def take(
    api: LiveApi | ServedApi, simulator: Simulator, world: World, odd: Odd, stream: bool
) -> tuple[Answered, list[dict[str, Any]]]:
    """The turn, and what reached the simulator."""
    if odd.choice is not None:
        simulator.script({"path": "decisions", "reply": {"choice": odd.choice}})
    simulator.script({"path": "chat", "reply": {"text": "oi"}})
    body = json.dumps(request_body(world, **routed(**odd.over)), ensure_ascii=False).encode()
    before = len(simulator.requests())
    got = await post(api.turn_url(world.session_id, stream=stream), body)
    sent = simulator.requests()[before:]
    simulator.reset()
    return got, sent


def problems_of(odd: Odd, got: Answered, sent: list[dict[str, Any]]) -> list[str]:
    answer = got.answer
    if got.status != 200 or answer["error"] is not None:
        return [f"{got.status}: {answer}"]
    problems = []
    routing = answer.get("toolRouting", {})
    problems += [
        f"{key} is {str(routing.get(key))[:200]!r} and not {value!r}"
        for key, value in odd.routing.items()
        if routing.get(key) != value
    ]
    is_sent = odd.routing.get("latenciaMs") != 0
    paths = [request["path"] for request in sent]
    if (DECISIONS in paths) is not is_sent or len(paths) != 1 + is_sent:
        problems.append(f"sent {paths}")
    elif is_sent:
        state = sent[0]["body"]["state"]
        problems += [
            f"{key} is {str(state[key])[:700]!r} and not {str(value)[:700]!r}"
            for key, value in odd.state.items()
            if state[key] != value
        ]
    if got.frames and (got.frames[0] == STARTED) is not is_sent:
        problems.append(f"frames {got.frames[:-1]}")
    names = [tool["name"] for tool in routed(**odd.over)["tools"]]
    if routing.get("menuAntes") != names or sent[-1]["tools"] != routing.get("menuDepois"):
        problems.append("the menus are not what was sent")
    return problems


async def test_each_succeeds_alike_on_both_routes(
    api: LiveApi, simulator: Simulator, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problems, turns = [], 0
    worlds = {stream: create_world(database_url, model_name=MODEL) for stream in (False, True)}
    for name, odd in small_cases():
        answers = []
        for stream, world in worlds.items():
            got, sent = await take(api, simulator, world, odd, stream)
            problems += [f"{name}, stream {stream}: {problem}" for problem in problems_of(odd, got, sent)]
            answers.append(comparable(got))
            turns += 1
        if answers[0] != answers[1]:
            problems.append(f"{name}: {answers[0]} != {answers[1]}")

    with capsys.disabled():
        print(f"\nodd requests on the router's path, alike on both routes: {turns // 2}")
    assert problems == []
    rows = [row for world in worlds.values() for row in ledger(database_url, world)]
    assert len([row for row in rows if row["model_id"] is not None]) == turns


@pytest.fixture
async def probed_api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[ServedApi]:
    variables = {"DATABASE_URL": database_url, "OPENROUTER_API_BASE": simulator.base_url}
    async with served_api(tmp_path, command=PROBED, **variables) as api:
        yield api


async def probed(api: ServedApi) -> dict[str, Any]:
    async with http_client(timeout=30) as client:
        report = (await client.get(f"{api.url}/_probe")).json()
    assert isinstance(report, dict)
    return report


async def test_no_gap_over_100_ms_while_a_large_step_is_decided(
    probed_api: ServedApi, simulator: Simulator, database_url: str
) -> None:
    world = create_world(database_url, model_name=MODEL, project_limit_micros=None)
    problems = []
    report: dict[str, Any] = {}
    for at, (name, odd) in enumerate(large_cases()):
        # Other programs only ever lengthen a gap, by what they take of the caches and of a shared core.
        for _ in range(ATTEMPTS):
            await probed(probed_api)
            got, sent = await take(probed_api, simulator, world, odd, stream=at % 2 == 1)
            report = await probed(probed_api)
            print(f"\n{name}: {report['ticks']} ticks, largest gap {report['largest_gap_ms']} ms", end="")
            problems += [f"{name}: {problem}" for problem in problems_of(odd, got, sent)]
            if report["largest_gap_ms"] <= LONGEST_GAP_MS:
                break
        else:
            problems.append(f"{name}: {report}")
    print()
    assert problems == []
