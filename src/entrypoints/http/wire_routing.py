"""`toolRouting`, the part of an answer that says what became of the menu (contract, section 5)."""

from typing import Self
from uuid import UUID

import msgspec

from domain.routing import Choice, Fallback, Routing


class WireRunnerUp(msgspec.Struct):
    """The likeliest option but the choice."""

    opcao: str
    probabilidade: float


class WireRouting(msgspec.Struct, rename="camel"):
    """Its field names are the contract's; the figures of a fallback are null."""

    modelo: str
    ofertadas: int
    menu_antes: list[str]
    menu_depois: list[str]
    escolha: str | None
    confianca: float | None
    segunda: WireRunnerUp | None
    anterior: str | None
    aplicado: bool
    motivo_da_queda: str | None
    origem_da_queda: str | None
    detalhe_da_queda: str | None
    latencia_ms: int
    custo_micros: int
    gasto_nao_registrado: bool
    turn_id: str

    @classmethod
    def of(cls, routing: Routing, turn_id: UUID) -> Self:
        """The same on the wire."""
        choice = routing.outcome if isinstance(routing.outcome, Choice) else None
        fallback = routing.outcome if isinstance(routing.outcome, Fallback) else None
        runner_up = choice.runner_up if choice else None
        return cls(
            modelo=routing.model,
            ofertadas=len(routing.catalogue),
            menu_antes=list(routing.catalogue),
            menu_depois=list(routing.menu),
            escolha=choice.option if choice else None,
            confianca=choice.confidence if choice else None,
            segunda=WireRunnerUp(runner_up.option, runner_up.probability) if runner_up else None,
            anterior=routing.previous_tool,
            aplicado=routing.is_applied,
            motivo_da_queda=fallback.reason.value if fallback else None,
            origem_da_queda=fallback.origin.value if fallback else None,
            detalhe_da_queda=fallback.detail if fallback else None,
            latencia_ms=routing.latency_ms,
            custo_micros=routing.cost_micros,
            gasto_nao_registrado=routing.is_spend_unrecorded,
            turn_id=str(turn_id),
        )
