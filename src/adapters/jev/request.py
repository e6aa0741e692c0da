"""What is asked of the decision model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from domain.menu import RESERVED_OPTION
from domain.routing import Fallback, FallbackReason
from domain.step import Step

MODEL: Final = "typesafe/jev-1.13"
"""Pinned: another one is another pull request."""
QUESTION: Final = "ferramenta_do_passo"
_INSTRUCTIONS: Final = (
    "Considerando o pedido, o contexto e os passos recentes, que ferramenta este agente deve usar agora? "
    f'Se o certo for responder em texto ou terminar o turno, escolha "{RESERVED_OPTION}".'
)
_RESERVED_DESCRIPTION: Final = "Sem ferramenta: responder em texto, ou terminar o turno."

_MOST_OPTIONS: Final = 255
"""A question takes no more, the reserved one included."""
_MOST_CHARACTERS: Final = 64_000
MOST_TOKENS: Final = 8_000
"""In the o200k vocabulary, of the whole body."""

_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Request:
    """The body, as text and as sent, and what it offers."""

    text: str = field(repr=False)
    body: bytes = field(repr=False)
    options: Sequence[str] = field(repr=False)
    """In catalogue order, the reserved one last."""


def request_for(step: Step) -> Request | Fallback:
    """The request, its tokens not yet counted; a fallback for what must not be sent.

    Linear in the number of tools, and no description is read before their lengths are known.
    """
    criteria: dict[str, str] = {}
    for tool in step.catalogue:
        criteria.setdefault(tool.name, tool.description or tool.name)
    if RESERVED_OPTION in criteria:
        return Fallback(FallbackReason.NAME_COLLISION, f"uma ferramenta se chama {RESERVED_OPTION}")
    criteria[RESERVED_OPTION] = _RESERVED_DESCRIPTION
    if len(criteria) > _MOST_OPTIONS:
        return too_large(f"{len(criteria)} opções, e uma pergunta aceita {_MOST_OPTIONS}")
    recent = [
        {"ferramenta": call.name, "argumentos": call.arguments, "resultado": call.result}
        for call in step.recent_calls
    ]
    state = {
        "agente": step.agent,
        "contexto": step.context,
        "pedido": step.request,
        "passos_recentes": recent,
    }
    texts = [step.agent, *criteria, *criteria.values(), *(call.name for call in step.recent_calls)]
    if sum(map(len, texts)) > _MOST_CHARACTERS:
        return _too_long()
    question = {"type": "choice", "instructions": _INSTRUCTIONS, "criteria": criteria}
    body = {"model": MODEL, "state": state, "questions": {QUESTION: question}}
    text = _json(body)
    if len(text) > _MOST_CHARACTERS:
        return _too_long()
    return Request(text, text.encode("utf-8", "replace"), list(criteria))


def too_large(detail: str) -> Fallback:
    """More than the router is asked; nothing is sent."""
    return Fallback(FallbackReason.STATE_TOO_LARGE, detail)


def _too_long() -> Fallback:
    return too_large(f"mais de {_MOST_CHARACTERS} caracteres")
