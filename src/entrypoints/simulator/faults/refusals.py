"""Faults that answer without running the call: error statuses, and failures under status 200. All are free."""

from collections.abc import Iterator
from typing import Any, Final

from entrypoints.simulator.faults.fault import CALLS, CHAT, DECISIONS, EVERYTHING, Fault, Kind, Parameters
from entrypoints.simulator.refusal import Refusal, error_body

_HTML: Final = (
    b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>"
    b"<body><center><h1>502 Bad Gateway</h1></center><hr><center>cloudflare</center></body></html>\n"
)
_HTML_TYPE: Final = "text/html; charset=UTF-8"
_SHARED_POOL: Final = (
    "The model is temporarily rate-limited upstream. Please retry shortly, or add your own key to accumulate "
    "your rate limits: https://openrouter.ai/settings/integrations"
)
_ZOD: Final = (
    '[\n  {\n    "code": "invalid_type",\n    "path": [\n      "questions"\n    ],\n'
    '    "message": "Invalid input: expected record, received array"\n  }\n]'
)


def _retry_after(p: Parameters) -> tuple[tuple[str, str], ...]:
    return (("retry-after", str(p["retry_after"])),) if p.get("retry_after", "") != "" else ()


def _fixed(
    name: str,
    status: int,
    body: Any,
    description: str,
    applies_to: frozenset[Kind] = CALLS,
    retry_after: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    content_type: str = "application/json",
) -> Fault:
    """A row with a constant body. `retry_after` makes the header a parameter with that default ("" leaves it out)."""
    return Fault(
        name=name,
        phase="refusal",
        applies_to=applies_to,
        description=f"{status}: {description}",
        parameters={} if retry_after is None else {"retry_after": retry_after},
        refuse=lambda p: Refusal(status, body, headers + _retry_after(p), content_type),
    )


def _error(
    name: str,
    status: int,
    message: str,
    description: str,
    metadata: dict[str, Any] | None = None,
    applies_to: frozenset[Kind] = CALLS,
    retry_after: str | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> Fault:
    body = error_body(status, message, metadata)
    return _fixed(name, status, body, description, applies_to, retry_after, headers)


def _availability(
    name: str, status: int, code: str, message: str, retryable: bool, description: str
) -> Fault:
    """The envelope without error.code, documented since August 2026."""
    body = {
        "error": {
            "message": message,
            "error_type": "not_found" if status == 404 else "provider_overloaded",
            "http_status": status,
            "availability": {
                "code": code,
                "retryable": retryable,
                "affected_providers": [],
                "fallback_models": [],
            },
        }
    }
    return _fixed(name, status, body, description, retry_after="")


def _status(p: Parameters) -> Refusal:
    return Refusal(p["status"], error_body(p["status"], p["message"]), _retry_after(p))


def _redirect(p: Parameters) -> Refusal:
    return Refusal(p["status"], b"", (("location", p["location"]),), "text/plain")


def refusals() -> Iterator[Fault]:
    """Every fault of this file."""
    # fmt: off
    yield Fault(
        "status", "refusal", EVERYTHING, "any status with the error envelope",
        {"status": 500, "message": "Internal Server Error", "retry_after": ""}, refuse=_status,
    )
    yield _error("bad-request", 400, "Invalid request parameters", "the body is not valid")
    yield _error("unknown-model", 400, "openai/gpt-unknown is not a valid model ID", "unknown model (not 404)",
                 applies_to=CHAT)
    yield _error("unknown-decisions-model", 400, "Model typesafe/jev-unknown does not exist", "unknown model",
                 applies_to=DECISIONS)
    yield _error("wrong-endpoint", 400, "This model is a decisions model and cannot be used with the chat/completions "
                 "endpoint. Use the /api/alpha/decisions endpoint instead.", "model of the other endpoint",
                 applies_to=CHAT)
    yield _error("context-length", 400, "This endpoint's maximum context length is 128000 tokens. However, you "
                 "requested about 200000 tokens (199000 of text input, 1000 in the output). Please reduce the length.",
                 "too long, said in words", {"error_type": "context_length_exceeded"}, CHAT)
    yield _error("window-exceeded", 400, "Provider returned error", "too long for the decisions model",
                 {"raw": '{"error":"max_tokens_exceeded"}', "provider_name": "TypeSafe"}, DECISIONS)
    yield _fixed("window-exceeded-bare", 400, {"error": "max_tokens_exceeded"},
                 "too long, error is a bare string", DECISIONS)
    yield _error("zod-validation", 400, _ZOD, "message is a pretty-printed list of issues", applies_to=DECISIONS)
    yield _error("provider-refusal", 400, "Provider returned error", "metadata.raw is a JSON document as a string",
                 {"raw": '{"error":{"message":"unsupported parameter","type":"invalid_request_error"}}',
                  "provider_name": "OpenAI"})
    yield _error("missing-authentication", 401, "Missing Authentication header", "no key", applies_to=EVERYTHING)
    yield _error("user-not-found", 401, "User not found.", "a key nobody owns", applies_to=EVERYTHING)
    yield _error("credits-exhausted", 402, "Insufficient credits. Add more using https://openrouter.ai/settings/credits",
                 "the account is empty", {"limit_source": "openrouter_credits", "reason": "balance",
                                          "remedy_hint": "add_credits"})
    yield _error("can-only-afford", 402, "This request requires more credits, or fewer max_tokens. You requested up to "
                 "50000 tokens, but can only afford 6666.", "a smaller max_tokens would do")
    yield _error("key-limit", 402, "Key limit exceeded", "the key's own limit is spent",
                 {"limit_source": "openrouter_key_limit", "reason": "weight_exceeds_budget"})
    yield _error("in-flight-budget", 402, "Too many requests in flight for the remaining credits",
                 "transient: running calls hold the credits",
                 {"limit_source": "openrouter_in_flight_budget", "reason": "in_flight_budget_exhausted"},
                 retry_after="1")
    yield _error("moderation", 403, "Your input was flagged", "moderation, with a piece of the user's text",
                 {"reasons": ["violence"], "flagged_input": "flagged text of the user", "provider_name": "OpenAI",
                  "model_slug": "openai/gpt-4o"})
    yield _error("guardrail", 403, "Request blocked by guardrail", "guardrail", {"patterns": ["card-number"]})
    yield _error("budget-spent", 403, "Guardrail budget exceeded", "a budget at the provider is spent",
                 {"limit_source": "openrouter_guardrail_budget", "scope": "workspace", "limit_usd": 5,
                  "spend_usd": 5.01, "resets_at": "2026-12-01T00:00:00Z"})
    yield _error("region", 403, "This model is not available in your region", "region")
    yield _error("provider-outage-403", 403, "Provider returned error", "an outage that says 403",
                 {"raw": "temporarily unavailable", "provider_name": "Azure"})
    yield _error("no-endpoints", 404, "No endpoints found for this model.", "nothing routable")
    yield _error("no-allowed-providers", 404, "No allowed providers are available for the selected model. Change your "
                 "settings at https://openrouter.ai/settings/preferences", "an account setting")
    yield _error("moved", 404, "Not Found", "a renamed or removed path", applies_to=EVERYTHING)
    yield _error("gone", 410, "Gone", "a removed path, said with 410", applies_to=EVERYTHING)
    yield _availability("model-deprecated", 404, "model_deprecated", "This model has been deprecated", False,
                        "error.availability and no error.code")
    yield _error("timeout-408", 408, "Request timed out", "timeout")
    yield _error("body-too-large", 413, "Payload too large", "body too large")
    yield _error("unprocessable", 422, "Unprocessable entity", "unprocessable")
    yield _error("rate-limit", 429, "Rate limit exceeded", "the service's own limit, without Retry-After",
                 {"error_type": "rate_limit_exceeded", "limit_source": "openrouter_free_models_per_min"},
                 headers=(("x-ratelimit-limit", "20"), ("x-ratelimit-remaining", "0"),
                          ("x-ratelimit-reset", "1798761600000")))
    yield _error("rate-limit-upstream", 429, "Provider returned error", "the provider's limit, without Retry-After",
                 {"raw": _SHARED_POOL, "provider_name": "ModelRun", "is_byok": False, "provider_error_code": "429",
                  "limit_source": "upstream_provider_shared_pool"})
    yield _error("rate-limit-retry-after", 429, "Provider returned error", "with Retry-After (seconds or an HTTP date)",
                 {"raw": _SHARED_POOL, "provider_name": "ModelRun", "provider_code": "429"}, retry_after="1")
    yield _availability("capacity-exhausted", 429, "capacity_exhausted", "All providers are at capacity", True,
                        "error.availability and no error.code")
    yield _error("server-error", 500, "Internal Server Error", "masked error", applies_to=EVERYTHING)
    yield _error("provider-down", 502, "Provider returned error", "the provider is down",
                 {"raw": "", "provider_name": "DeepInfra"}, EVERYTHING)
    yield _error("unavailable", 503, "No available model provider meets your routing requirements", "none to route to",
                 applies_to=EVERYTHING, retry_after="1")
    yield _error("edge-timeout", 524, "A timeout occurred", "timeout at the edge", applies_to=EVERYTHING)
    yield _error("overloaded", 529, "Provider overloaded", "overloaded", {"error_type": "provider_overloaded"})
    yield _fixed("word-code", 500, {"error": {"code": "server_error", "message": "The server had an error"}},
                 "error.code is a word")
    yield _fixed("string-code", 503, {"error": {"code": "503", "message": "Unavailable"}}, "error.code is a string")
    yield _fixed("no-code", 502, {"error": {"message": "Bad gateway"}}, "error without a code")
    yield _fixed("error-string", 500, {"error": "something went wrong"}, "error is a bare string", EVERYTHING)
    yield _fixed("error-null", 500, {"error": None}, "error is null", EVERYTHING)
    yield _fixed("error-not-json", 500, b"upstream connect error or disconnect/reset before headers",
                 "plain text in a body that claims to be JSON", EVERYTHING)
    yield _fixed("html", 502, _HTML, "HTML from a proxy", EVERYTHING, content_type=_HTML_TYPE)
    yield Fault("redirect", "refusal", EVERYTHING, "307: to another place, not to be followed",
                {"status": 307, "location": "/_redirected"}, refuse=_redirect)
    yield _fixed("html-200", 200, _HTML.replace(b"502 Bad Gateway", b"Just a moment..."),
                 "HTML from a proxy under a good status", EVERYTHING, content_type=_HTML_TYPE)
    yield _fixed("empty-body", 200, b"", "nothing at all", EVERYTHING)
    yield _fixed("error-200", 200, error_body(502, "Upstream error from provider"), "a body with error only",
                 EVERYTHING)
    yield _fixed("error-200-null-choices", 200,
                 {"id": None, "choices": None, "error": {"code": 429, "message": "Provider returned error"}},
                 "choices null beside error", CHAT)
    yield _fixed("null-choices", 200, {"id": "gen-null", "object": "chat.completion", "choices": None},
                 "choices null and no error", CHAT)
    yield _fixed("empty-choices", 200, {"id": "gen-empty", "object": "chat.completion", "choices": []},
                 "no choice and no error", CHAT)
    yield _fixed("nested-provider", 200,
                 {"provider": {"error": {"code": 502, "message": "Upstream error"}, "choices": None, "id": None}},
                 "everything nested under provider", CHAT)
    yield _fixed("json-null", 200, None, "the body is null", EVERYTHING)
    yield _fixed("json-array", 200, [], "the body is a list", EVERYTHING)
    # fmt: on
