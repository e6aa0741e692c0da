"""One question, sent once."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import structlog

from adapters.jev.answer import LONGEST_BYTES, Answer, charge_within, read_answer
from adapters.jev.circuit import CIRCUIT_OPEN, Circuits
from adapters.jev.request import Request
from adapters.tokenizer.size import tokens_by_size
from adapters.transport.breaks import Break, break_of
from adapters.transport.names import storable_name
from adapters.transport.way_out import ClockExpiredError, ConnectionBrokenError, Exchange, WayOut
from application.ports.token_estimator import TokenEstimator
from application.ports.tool_router import Question
from domain.routing import Fallback, FallbackReason, RouterSpend, Verdict
from domain.secret import Secret
from domain.usage import TokenCounts

_log: Final = structlog.get_logger("brabo.router")

_BREAKS: Final = {
    Break.NAME: "o nome do servidor não tem endereço (DNS)",
    Break.REFUSED: "conexão recusada",
    Break.TLS: "a conexão segura falhou (TLS)",
    Break.CUT: "conexão interrompida",
    Break.NOT_HTTP: "o que veio não é HTTP",
    Break.OTHER: "sem conexão",
}
_GOOD: Final = range(200, 300)
_NOT_FOUND: Final = 404
_LONGEST_REFUSAL_BYTES: Final = 64 * 1024
_NO_PROVIDER_ALLOWED: Final = b"allowed providers"
_ACCOUNT_SETTING: Final = "as configurações da conta no OpenRouter não permitem o provedor do modelo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """What the questions of a process share."""

    url: str
    way_out: WayOut
    estimator: TokenEstimator
    circuits: Circuits
    timeout_s: float
    """For a whole exchange."""
    on_decision: Callable[[str], None]
    """Told `ok`, the reason of a fallback, or `circuit_open`."""
    on_unseen_charge: Callable[[], None]
    """Told that a request was sent, and neither a refusal nor an answer that can be read came: it may have cost
    something."""

    def report(self, verdict: Verdict) -> None:
        """Count what came of a step, and log why the router had no say in it."""
        if not isinstance(fallback := verdict.outcome, Fallback):
            self.on_decision("ok")
            return
        self.on_decision(CIRCUIT_OPEN if fallback.detail == CIRCUIT_OPEN else fallback.reason.value)
        _log.info(
            "tool_router_fell_back",
            reason=fallback.reason.value,
            detail=fallback.detail,
            latency_ms=verdict.latency_ms,
        )


@dataclass(frozen=True, slots=True)
class JevQuestion(Question):
    """A question that may be sent: its circuit has let it through."""

    endpoint: Endpoint
    request: Request
    api_key: Secret

    async def ask(self) -> Verdict:
        endpoint = self.endpoint
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        reply = await self._exchange(started_s + endpoint.timeout_s)
        latency_ms = ceil((loop.time() - started_s) * 1000)
        answer = self._answer(reply)
        if isinstance(answer.outcome, Fallback) and reply.is_failure:
            endpoint.circuits.failed(self.api_key, answer.outcome.reason)
        else:
            endpoint.circuits.answered(self.api_key)
        may_be_charged = (
            answer.charge is None and reply.is_sent and not reply.is_refusal and not answer.is_readable
        )
        if may_be_charged:
            endpoint.on_unseen_charge()
        try:
            spend = await self._spend(answer, reply)
        except asyncio.CancelledError:
            # The end of the process, while tokens were counted.
            endpoint.on_unseen_charge()
            _log.warning(
                "decision_cut",
                generation_id=answer.generation_id or reply.generation_id,
                charged_usd=str(answer.charge.usd) if answer.charge else None,
            )
            raise
        verdict = Verdict(answer.outcome, latency_ms, spend, may_be_charged)
        endpoint.report(verdict)
        return verdict

    async def _exchange(self, deadline_s: float) -> "_Reply":
        timeout_s = self.endpoint.timeout_s
        reply = _Reply()
        exchange = Exchange(
            self.endpoint.way_out,
            self.endpoint.url,
            self._headers(),
            [self.request.body],
            deadline_s=deadline_s,
            first_byte_s=timeout_s,
        )
        try:
            await _receive(exchange, reply, timeout_s)
        except ClockExpiredError:
            detail = f"sem a resposta inteira em {timeout_s * 1000:.0f} ms"
            reply.cut = Fallback(FallbackReason.TIMEOUT, detail)
        except ConnectionBrokenError as broken:
            reply.cut = Fallback(FallbackReason.NETWORK_ERROR, _BREAKS[break_of(broken)])
        except asyncio.CancelledError:
            # The end of the process: a turn that leaves does not cancel its decision.
            exchange.close()
            if exchange.is_sent and not reply.is_refusal:
                self.endpoint.on_unseen_charge()
                _log.warning("decision_cut", generation_id=reply.generation_id)
            raise
        if reply.cut is None:
            exchange.finish()
        else:
            exchange.close()
        reply.is_sent = exchange.is_sent
        return reply

    def _answer(self, reply: "_Reply") -> Answer:
        if reply.is_refusal:
            return Answer(Fallback(FallbackReason.HTTP_ERROR, _detail(reply)), charge_within(reply.body))
        if reply.cut is not None:
            return Answer(reply.cut, charge_within(reply.body))
        return read_answer(bytes(reply.body), self.request.options)

    def _headers(self) -> Mapping[str, str]:
        return {
            "Content-Type": "application/json",
            "Content-Length": str(len(self.request.body)),
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "brabo-api",
            "Authorization": f"Bearer {self.api_key.reveal()}",
        }

    async def _spend(self, answer: Answer, reply: "_Reply") -> RouterSpend | None:
        charge = answer.charge
        if charge is None:
            return None
        tokens = charge.tokens
        if tokens is None:
            tokens = TokenCounts(await self._count(), 0)
        return RouterSpend(
            charge.usd,
            tokens,
            is_estimated=charge.tokens is None,
            generation_id=answer.generation_id or reply.generation_id,
            resolved_model=answer.resolved_model,
        )

    async def _count(self) -> int:
        try:
            return await self.endpoint.estimator.count([self.request.text])
        except Exception as error:  # noqa: BLE001 - whatever fails here, neither choice nor charge is lost for it
            _log.warning("token_count_failed", error=type(error).__name__)
            return tokens_by_size(len(self.request.body))


@dataclass(slots=True)
class _Reply:
    """An answer, as far as it came; of an error status no more than its first 64 KiB."""

    status: int = 0
    """0: no head came."""
    generation_id: str | None = None
    body: bytearray = field(default_factory=bytearray, repr=False)
    cut: Fallback | None = None
    """Why there is no more of it."""
    is_sent: bool = False
    """A byte of the request was written."""

    @property
    def is_refusal(self) -> bool:
        """Its status says no, whatever came of the rest."""
        return self.status != 0 and self.status not in _GOOD

    @property
    def is_failure(self) -> bool:
        """What opens a circuit."""
        return self.status >= 500 if self.is_refusal else self.cut is not None


async def _receive(exchange: Exchange, reply: _Reply, patience_s: float) -> None:
    reply.status, headers = await exchange.send(patience_s)
    reply.generation_id = storable_name(headers.get("X-Generation-Id"))
    if not _is_plain(headers):
        return
    longest_bytes = _LONGEST_REFUSAL_BYTES if reply.is_refusal else LONGEST_BYTES
    while len(reply.body) <= longest_bytes and (received := await exchange.read(patience_s)):
        reply.body += received


def _is_plain(headers: Mapping[str, str]) -> bool:
    """No encoding was asked for; one that came all the same is not undone, and leaves no body to read."""
    return headers.get("Content-Encoding", "").strip().lower() in ("", "identity")


def _detail(reply: _Reply) -> str:
    status = f"HTTP {reply.status}"
    is_account_setting = reply.status == _NOT_FOUND and _NO_PROVIDER_ALLOWED in reply.body.lower()
    return f"{status}: {_ACCOUNT_SETTING}" if is_account_setting else status
