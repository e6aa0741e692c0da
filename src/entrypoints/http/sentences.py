"""The sentences that the people of a session read, in their language (contract, section 2.1).

Engines classify a failure by a word of its sentence: `orçamento`, `credencial`, `modelo vinculado`, `(402)`, or
`provider` with its name. Each sentence holds the word of its kind and of no other.
"""

import re
from decimal import Decimal
from typing import Final

from domain.budget import STRICT_OUTPUT_TOKENS_MIN, BudgetScope
from domain.failure import FailureCode, StrictObstacle, TurnFailure

_MAX_DETAIL_CHARACTERS: Final = 200
_NOT_FOR_READERS: Final = re.compile(
    r"or[çc]amento|credencia|modelo\s+vinculado|\(\d{3}\)|flagged_input|user_id"
    r"|\b(?:sk|pk|rk|key)-[\w-]{6,}|\bbearer\s|\b[\w-]{32,}\b",
    re.IGNORECASE,
)
"""What the provider's text may not bring in: another kind's word, an account's id, what looks like a key."""

_BUDGET_OF: Final = {
    BudgetScope.PROJECT: "do projeto",
    BudgetScope.SESSION: "da sessão",
    BudgetScope.AREA: "da área",
}

_OBSTACLES: Final = {
    StrictObstacle.UNBOUNDED_PROVIDER: "{provider} não aceita um teto de resposta e de preço por chamada",
    StrictObstacle.UNPRICED_MODEL: "o modelo deste turno não tem preço cadastrado",
    StrictObstacle.SHORT_MODEL: f"o modelo deste turno não chega a responder {STRICT_OUTPUT_TOKENS_MIN} tokens",
}
"""Why a strict budget cannot hold anything for a turn."""

_PROVIDER_FAILURES: Final = {
    FailureCode.CONNECTION: "A conexão com o provider {provider} falhou",
    FailureCode.TIMEOUT: "O provider {provider} não respondeu a tempo",
    FailureCode.UPSTREAM: "O provider {provider} falhou",
    FailureCode.RATE_LIMIT: "O provider {provider} pediu para esperar antes de uma nova chamada",
    FailureCode.CONTEXT_LENGTH: "O provider {provider} recusou: a conversa é maior do que o modelo aceita",
    FailureCode.INVALID_REQUEST: "O provider {provider} recusou o pedido como inválido",
    FailureCode.MODEL_NOT_FOUND: "O provider {provider} não encontrou o modelo",
    FailureCode.BAD_ANSWER: "O provider {provider} respondeu algo que não é uma resposta de chat",
    FailureCode.AUTH: "O provider {provider} recusou a credencial",
    FailureCode.FORBIDDEN: "O provider {provider} não permitiu a chamada",
    FailureCode.MODERATION: "O provider {provider} recusou o conteúdo por moderação",
    FailureCode.INSUFFICIENT_CREDIT: "O provider {provider} recusou a chamada por falta de crédito",
}


def sentence_for(failure: TurnFailure) -> str:
    """One sentence in Portuguese, with the status where the provider gave one, and its words where they are fit."""
    code = failure.code
    provider = failure.provider.value if failure.provider else ""
    if code is FailureCode.BUDGET_EXHAUSTED:
        return _budget_sentence(failure, provider)
    if code is FailureCode.NO_CREDENTIAL:
        return f"Não há credencial utilizável de {provider} no cadastro do dono deste workspace."
    if code is FailureCode.NO_MODEL:
        return "Nenhum modelo vinculado serve a este turno; se ele traz ferramentas, o modelo precisa saber chamá-las."
    if code is FailureCode.MODEL_GONE:
        scope_name = failure.binding.value if failure.binding else "deste turno"
        return f"O modelo vinculado no escopo {scope_name} não está mais disponível; vincule outro."
    if code is FailureCode.NO_PROVIDER:
        scope_name = failure.binding.value if failure.binding else "deste turno"
        return f"O provider {provider}, do vínculo no escopo {scope_name}, ainda não é atendido por esta api."
    if code is FailureCode.DRAINING:
        return "A api está sendo reiniciada e encerrou este turno antes do fim."
    if code is FailureCode.INTERNAL:
        return "A api falhou neste turno; o registro dela diz onde."
    sentence = _PROVIDER_FAILURES[code].format(provider=provider)
    return f"{sentence}{_status(failure)}{_detail(failure)}."


def _budget_sentence(failure: TurnFailure, provider: str) -> str:
    budget = f"O orçamento {_BUDGET_OF[failure.budget] if failure.budget else 'deste turno'}"
    left = "" if failure.left_micros is None else f" Restam {_usd(failure.left_micros)} USD."
    if failure.obstacle is not None:
        return f"{budget} é estrito, e {_OBSTACLES[failure.obstacle].format(provider=provider)}.{left}"
    if failure.needed_micros is None:
        return f"{budget} se esgotou; aumente o limite para continuar."
    return (
        f"{budget} é estrito e não cobre o pior caso deste turno, de {_usd(failure.needed_micros)} USD.{left} "
        "Aumente o limite para continuar."
    )


def _usd(micros: int) -> str:
    """With all its digits, and two decimals at least."""
    whole, _, decimals = f"{Decimal(micros).scaleb(-6):.6f}".partition(".")
    return f"{whole}.{decimals[:2]}{decimals[2:].rstrip('0')}"


def _status(failure: TurnFailure) -> str:
    if failure.code is FailureCode.INSUFFICIENT_CREDIT:
        return " (402)"  # engines look for it, however the provider put it
    if failure.status is None or failure.status == 402:
        return ""  # a 402 of another code is a wait, and its number would say that the credit is gone
    return f" ({failure.status})"


def _detail(failure: TurnFailure) -> str:
    text = " ".join(failure.detail.split())
    if not text or _NOT_FOR_READERS.search(text):
        return ""
    if len(text) > _MAX_DETAIL_CHARACTERS:
        text = f"{text[: _MAX_DETAIL_CHARACTERS - 1]}…"
    return f": {text.rstrip('.')}"
