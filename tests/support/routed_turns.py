"""Turns whose router is to be asked, over HTTP, and what came of them."""

from typing import Any, Final

from tests.support.engine import Answered

MODEL: Final = "openai/gpt-4.1-mini"
CATALOGUE: Final = ("rodar", "editar", "procurar", "ler")
DESCRIPTIONS: Final = {
    "rodar": "Roda um comando no repositório",
    "editar": "Edita um arquivo do repositório",
    "procurar": "Procura um texto nos arquivos",
    "ler": "Lê um arquivo do repositório",
}
PREVIOUS: Final = "ler"
CHOICE: Final = "editar"
NARROWED: Final = ["editar", "ler"]
"""The menu of that choice after that tool, in catalogue order."""


def offered(*names: str) -> list[dict[str, Any]]:
    """A catalogue on the wire."""
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
    return [
        {"name": name, "description": DESCRIPTIONS.get(name, name), "parameters": parameters}
        for name in names
    ]


def after(tool: str | None, request: str = "Edite a.ts") -> list[dict[str, Any]]:
    """A conversation in which that tool was called last, and has answered."""
    opening = [
        {"role": "system", "content": "Você é o agente dev-api."},
        {"role": "user", "content": request},
    ]
    if tool is None:
        return opening
    call = {"id": "c1", "name": tool, "arguments": {"path": "a.ts"}}
    return [
        *opening,
        {"role": "assistant", "content": "", "toolCalls": [call]},
        {"role": "tool", "content": "export const a = 1", "toolCallId": "c1"},
    ]


def routed(**over: Any) -> dict[str, Any]:
    """What a request holds beside its project."""
    return {"agentId": "dev-api", "tools": offered(*CATALOGUE), "messages": after(PREVIOUS), **over}


def comparable(got: Answered) -> dict[str, Any]:
    """An answer without what no two turns share: ids, and how long things took."""
    answer = {key: value for key, value in got.answer.items() if key not in ("turnId", "toolRouting")}
    routing = got.answer.get("toolRouting")
    if routing is not None:
        answer["toolRouting"] = {
            key: value for key, value in routing.items() if key not in ("turnId", "latenciaMs")
        }
    return answer
