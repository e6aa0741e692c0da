"""Why a turn, or the call it rests on, did not work out: data, never an exception that reaches the engine."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from domain.binding import BindingScope
from domain.budget import BudgetScope
from domain.provider import Provider


class FailureOrigin(StrEnum):
    """Whose fault a failure is; the wire's `errorOrigin`."""

    INFRASTRUCTURE = "infra"
    MODEL = "modelo"
    POLICY = "politica"
    CODE = "codigo"


class FailureCode(StrEnum):
    """The wire's `errorCode` (contract, sections 2.1 and 6)."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    UPSTREAM = "upstream"
    RATE_LIMIT = "rate_limit"
    DRAINING = "draining"
    CONTEXT_LENGTH = "context_length"
    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_ANSWER = "bad_answer"
    BUDGET_EXHAUSTED = "budget_exhausted"
    NO_CREDENTIAL = "no_credential"
    AUTH = "auth"
    FORBIDDEN = "forbidden"
    MODERATION = "moderation"
    INSUFFICIENT_CREDIT = "insufficient_credit"
    NO_MODEL = "no_model"
    MODEL_GONE = "model_gone"
    NO_PROVIDER = "no_provider"
    INTERNAL = "internal"

    @property
    def origin(self) -> FailureOrigin:
        """Whose fault it is."""
        return _ORIGIN[self]


_ORIGIN: Final = {
    FailureCode.CONNECTION: FailureOrigin.INFRASTRUCTURE,
    FailureCode.TIMEOUT: FailureOrigin.INFRASTRUCTURE,
    FailureCode.UPSTREAM: FailureOrigin.INFRASTRUCTURE,
    FailureCode.RATE_LIMIT: FailureOrigin.INFRASTRUCTURE,
    FailureCode.DRAINING: FailureOrigin.INFRASTRUCTURE,
    FailureCode.CONTEXT_LENGTH: FailureOrigin.MODEL,
    FailureCode.INVALID_REQUEST: FailureOrigin.MODEL,
    FailureCode.MODEL_NOT_FOUND: FailureOrigin.MODEL,
    FailureCode.BAD_ANSWER: FailureOrigin.MODEL,
    FailureCode.BUDGET_EXHAUSTED: FailureOrigin.POLICY,
    FailureCode.NO_CREDENTIAL: FailureOrigin.POLICY,
    FailureCode.AUTH: FailureOrigin.POLICY,
    FailureCode.FORBIDDEN: FailureOrigin.POLICY,
    FailureCode.MODERATION: FailureOrigin.POLICY,
    FailureCode.INSUFFICIENT_CREDIT: FailureOrigin.POLICY,
    FailureCode.NO_MODEL: FailureOrigin.POLICY,
    FailureCode.MODEL_GONE: FailureOrigin.POLICY,
    FailureCode.NO_PROVIDER: FailureOrigin.POLICY,
    FailureCode.INTERNAL: FailureOrigin.CODE,
}


class StrictObstacle(StrEnum):
    """Why a strict budget cannot hold a turn's worst case, whatever is left of it."""

    UNBOUNDED_PROVIDER = "unbounded_provider"
    """It takes no cap of the answer, or no bound of the price."""
    UNPRICED_MODEL = "unpriced_model"
    SHORT_MODEL = "short_model"
    """Its own maximum is under the least cap that providers take."""


@dataclass(frozen=True, slots=True)
class TurnFailure:
    """One failure, with what its sentence needs."""

    code: FailureCode
    provider: Provider | None = None
    status: int | None = None
    """The provider's HTTP status, or the numeric code of its error object."""
    detail: str = field(default="", repr=False)
    """The provider's own text, which may echo what it was sent: kept out of logs and reprs."""
    retry_after_ms: int | None = None
    budget: BudgetScope | None = None
    """Which budget refuses, for `budget_exhausted`."""
    needed_micros: int | None = None
    """The worst case that did not fit in a strict budget; None: nothing more fits, or see `obstacle`."""
    left_micros: int | None = None
    """What a strict budget has left beside what is spent and held."""
    obstacle: StrictObstacle | None = None
    """What keeps a strict budget from holding anything."""
    binding: BindingScope | None = None
    """Where the model was bound, for `no_provider` and `model_gone`."""
