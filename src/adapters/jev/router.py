"""Asking Jev which tool fits a step."""

from collections.abc import Callable
from typing import Final

from adapters.jev.circuit import CIRCUIT_OPEN, Circuits
from adapters.jev.question import Endpoint, JevQuestion
from adapters.jev.request import MODEL, MOST_TOKENS, request_for, too_large
from adapters.transport.way_out import WayOut, fits_a_header
from application.ports.clock import Clock
from application.ports.token_estimator import TokenEstimator
from application.ports.tool_router import Question, ToolRouter
from domain.routing import Fallback, FallbackReason, Verdict
from domain.secret import Secret
from domain.step import Step

_DEFAULT_BASE: Final = "https://openrouter.ai/api"


def decisions_url(openrouter_base: str | None) -> str:
    """Where decisions are asked for: a sibling of OpenRouter's `/v1`, under the root above both; None: the usual."""
    return f"{openrouter_base or _DEFAULT_BASE}/alpha/decisions"


class JevToolRouter(ToolRouter):
    """Asks Jev over the shared way out, with a circuit for each key."""

    def __init__(
        self,
        url: str,
        way_out: WayOut,
        estimator: TokenEstimator,
        clock: Clock,
        *,
        timeout_s: float,
        on_decision: Callable[[str], None] = lambda _outcome: None,
        on_unseen_charge: Callable[[], None] = lambda: None,
        on_circuits_open: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """`timeout_s` is for a whole exchange. `on_decision` is told `ok`, a fallback's reason, or `circuit_open`;
        `on_unseen_charge`, that a request was sent and neither a refusal nor a readable answer came;
        `on_circuits_open`, how many are open.
        """
        self._endpoint = Endpoint(
            url=url,
            way_out=way_out,
            estimator=estimator,
            circuits=Circuits(clock.monotonic, on_open=on_circuits_open),
            timeout_s=timeout_s,
            on_decision=on_decision,
            on_unseen_charge=on_unseen_charge,
        )

    @property
    def model(self) -> str:
        return MODEL

    async def prepare(self, step: Step, api_key: Secret) -> Question | Fallback:
        prepared = await self._prepare(step, api_key)
        if isinstance(prepared, Fallback):
            self._endpoint.report(Verdict(prepared))
        return prepared

    async def _prepare(self, step: Step, api_key: Secret) -> Question | Fallback:
        """The circuit comes last: a probe is granted only to what is then sent."""
        request = request_for(step)
        if isinstance(request, Fallback):
            return request
        if len(request.body) > MOST_TOKENS:  # a token has a byte at least
            tokens = await self._endpoint.estimator.count([request.text])
            if tokens > MOST_TOKENS:
                return too_large(f"{tokens} tokens, e o limite é {MOST_TOKENS}")
        if not fits_a_header(api_key):
            return Fallback(FallbackReason.HTTP_ERROR, "a chave não cabe num cabeçalho, e nada foi enviado")
        reason = self._endpoint.circuits.refusal(api_key)
        if reason is not None:
            return Fallback(reason, CIRCUIT_OPEN)
        return JevQuestion(self._endpoint, request, api_key)
