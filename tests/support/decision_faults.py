"""What becomes of a decision under each of the simulator's faults: a fault without an entry is not understood yet."""

from collections.abc import Mapping
from typing import Final

from domain.routing import FallbackReason

SLOWER: Final[Mapping[str, str]] = {"drip": "drip;ms=100"}
"""Its own pace would end about when the router's clock does."""

HTTP, TIMEOUT, NETWORK, INVALID, OUTSIDE = (
    FallbackReason.HTTP_ERROR,
    FallbackReason.TIMEOUT,
    FallbackReason.NETWORK_ERROR,
    FallbackReason.INVALID_ANSWER,
    FallbackReason.CHOICE_NOT_OFFERED,
)
REASONS: Final[Mapping[str, FallbackReason | None]] = {
    fault: reason
    for reason, faults in {
        TIMEOUT: (
            "delay-accept silence-accept delay-headers silence-headers drip document-silence document-half-silence"
        ),
        NETWORK: (
            "reset-accept reset-headers close-headers bad-http charged-cut document-reset document-truncated"
        ),
        HTTP: (
            "status bad-request unknown-decisions-model window-exceeded window-exceeded-bare zod-validation"
            " provider-refusal missing-authentication user-not-found credits-exhausted can-only-afford key-limit"
            " in-flight-budget moderation guardrail budget-spent region provider-outage-403 no-endpoints"
            " no-allowed-providers moved gone model-deprecated timeout-408 body-too-large unprocessable rate-limit"
            " rate-limit-upstream rate-limit-retry-after capacity-exhausted server-error provider-down unavailable"
            " edge-timeout overloaded word-code string-code no-code error-string error-null error-not-json html"
            " redirect"
        ),
        INVALID: (
            "oversized malformed-document html-200 empty-body error-200 json-null json-array cost-nan choice-missing"
            " choice-null choice-number confidence-nan confidence-infinite confidence-string probabilities-nan"
            " probabilities-strings probabilities-list answers-list answers-empty answers-missing answers-null"
            " answer-of-another answer-wrong-type"
        ),
        OUTSIDE: "choice-outside",
        None: (
            "wrong-content-type no-generation-id split-bytes bad-utf8 byte-order-mark usage-missing usage-null"
            " usage-zero usage-counts-only usage-cost-only usage-strings usage-floats usage-negative cost-absent"
            " cost-null cost-string cost-negative cost-infinite cost-exponent billed-differently record-later"
            " record-never no-confidence no-probabilities bare-choice null-figures confidence-low tie near-tie sum-098"
            " sum-102 unknown-answers no-id no-decision-provider no-decision-model other-model duplicate-keys"
        ),
    }.items()
    for fault in faults.split()
}

NO_COST_CAME: Final = {
    "usage-missing", "usage-null", "usage-counts-only", "cost-absent", "cost-null", "cost-string", "cost-negative",
    "cost-infinite", "cost-nan", "html-200", "empty-body", "error-200", "json-null", "json-array",
}  # fmt: skip
NO_COUNTS_CAME: Final = {"usage-cost-only", "usage-strings", "usage-negative"}
"""A cost came all the same."""
BILLED_ANOTHER_WAY: Final = {"billed-differently"}
"""The usage names one cost and the bill another: only a reconciliation can tell."""
DETAILS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("server-error", "status", "error-null"), "HTTP 500"),
    "redirect": "HTTP 307",
    "gone": "HTTP 410",
    "moved": "HTTP 404",
    "no-endpoints": "HTTP 404",
    "no-allowed-providers": (
        "HTTP 404: as configurações da conta no OpenRouter não permitem o provedor do modelo"
    ),
    "bad-http": "o que veio não é HTTP",
    "reset-accept": "conexão interrompida",
    "oversized": "mais de 1 MiB",
}
"""Whatever the timeout."""


def is_costly(fault: str) -> bool:
    """Whether its answer names a cost."""
    return REASONS[fault] in (INVALID, OUTSIDE, None) and fault not in NO_COST_CAME
