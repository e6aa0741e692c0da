"""From what the provider says of an error to the code engines know."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final

from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.secret import Secret

_LONGEST_DETAIL: Final = 300
_LONGEST_WAIT_MS: Final = 24 * 60 * 60 * 1000

_BY_STATUS: Final[Mapping[int, FailureCode]] = {
    400: FailureCode.INVALID_REQUEST,
    401: FailureCode.AUTH,
    402: FailureCode.INSUFFICIENT_CREDIT,
    403: FailureCode.FORBIDDEN,
    404: FailureCode.MODEL_NOT_FOUND,
    408: FailureCode.TIMEOUT,
    413: FailureCode.CONTEXT_LENGTH,
    422: FailureCode.INVALID_REQUEST,
    429: FailureCode.RATE_LIMIT,
    524: FailureCode.TIMEOUT,
}

_BY_WORD: Final[Mapping[str, FailureCode]] = {
    word: code
    for code, words in {
        FailureCode.CONTEXT_LENGTH: (
            "context_length_exceeded max_tokens_exceeded token_limit_exceeded string_too_long payload_too_large"
        ),
        FailureCode.AUTH: "authentication authentication_error invalid_api_key unauthorized",
        FailureCode.FORBIDDEN: "permission_denied permission_error forbidden region_restricted privacy_restricted",
        FailureCode.INSUFFICIENT_CREDIT: "payment_required insufficient_credits insufficient_quota",
        FailureCode.RATE_LIMIT: (
            "rate_limit_exceeded rate_limit rate_limit_error too_many_requests capacity_exhausted"
        ),
        FailureCode.TIMEOUT: "timeout",
        FailureCode.MODEL_NOT_FOUND: (
            "not_found not_found_error model_not_found model_deprecated no_endpoints wrong_endpoint"
            " constraint_filtered free_variant_ended"
        ),
        FailureCode.INVALID_REQUEST: (
            "invalid_request invalid_request_error invalid_prompt unprocessable precondition_failed invalid_image"
        ),
        FailureCode.MODERATION: "content_policy_violation content_filter refusal",
    }.items()
    for word in words.split()
}

_SAYS_TOO_LONG: Final = re.compile(
    r"context[ _-](length|window|limit|size)|maximum context|max(imum)?[ _]tokens[ _]exceeded|token[ _]limit"
    r"|too many (input )?tokens|(prompt|input)( is)? too long|string_too_long|reduce the length",
    re.IGNORECASE,
)
_SAYS_NO_MODEL: Final = re.compile(
    r"not a valid model|does not exist|model[ _]not[ _]found|(unknown|no such|invalid) model", re.IGNORECASE
)
_LOOKS_SECRET: Final = re.compile(
    r"\b(?:sk|pk|rk|gsk|nvapi|xai)-[\w*.…-]+|\bbearer\s+\S+|\bAIza[\w-]{8,}|\buser_[A-Za-z0-9]{6,}",
    re.IGNORECASE,
)
_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


def failure_of(
    provider: Provider,
    error: Mapping[str, Any] | str | None,
    *,
    http_status: int | None,
    headers: Mapping[str, str],
    api_key: Secret | None,
    now: datetime,
) -> TurnFailure:
    """The failure that an error object or an error status means.

    `http_status` is None where the error came under a 200. `headers` must not mind case. `now` is for a `Retry-After`
    that names a date.
    """
    said = error if isinstance(error, Mapping) else {"message": error}
    status = http_status or _status(said)
    return TurnFailure(
        _code(said, status),
        provider=provider,
        status=status,
        detail=_detail(said, api_key),
        retry_after_ms=_retry_after_ms(said, headers, now),
    )


def error_in(body: bytes) -> Mapping[str, Any] | str | None:
    """The error that the body of an error status holds; plain text is its own message, a page of HTML none."""
    try:
        document = json.loads(body.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        text = body.decode("utf-8", "replace").strip()
        return None if text.startswith("<") else text
    if isinstance(document, str):
        return document
    if not isinstance(document, dict):
        return None
    for holder in (document, _object(document, "provider")):
        error = holder.get("error")
        if error and isinstance(error, dict | str):
            return error
    return document


def _code(said: Mapping[str, Any], status: int | None) -> FailureCode:
    words = [word.lower() for word in _words(said)]
    if status is None:
        code = next((_BY_WORD[word] for word in words if word in _BY_WORD), FailureCode.UPSTREAM)
        if code is FailureCode.UPSTREAM and any(word.startswith("image_") for word in words):
            code = FailureCode.INVALID_REQUEST
    else:
        code = _BY_STATUS.get(status, FailureCode.UPSTREAM)
    if code is FailureCode.INSUFFICIENT_CREDIT and _is_in_flight(said):
        return FailureCode.RATE_LIMIT
    if code is FailureCode.FORBIDDEN and _is_moderation(said):
        return FailureCode.MODERATION
    if code is FailureCode.INVALID_REQUEST and status != 422:
        texts = " ".join((*words, *_texts(said)))
        if _SAYS_TOO_LONG.search(texts):
            return FailureCode.CONTEXT_LENGTH
        if _SAYS_NO_MODEL.search(texts):
            return FailureCode.MODEL_NOT_FOUND
    return code


def _is_in_flight(said: Mapping[str, Any]) -> bool:
    metadata = _object(said, "metadata")
    return any("in_flight" in str(metadata.get(key)) for key in ("limit_source", "reason"))


def _is_moderation(said: Mapping[str, Any]) -> bool:
    metadata = _object(said, "metadata")
    return bool(metadata.get("reasons") or metadata.get("flagged_input"))


def _status(said: Mapping[str, Any]) -> int | None:
    for key in ("code", "http_status", "status"):
        value = said.get(key)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) == 3:
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return None


def _words(said: Mapping[str, Any]) -> Iterator[str]:
    metadata, availability = _object(said, "metadata"), _object(said, "availability")
    for value in (
        said.get("error_type"),
        metadata.get("error_type"),
        availability.get("code"),
        said.get("code"),
        metadata.get("provider_code"),
        metadata.get("provider_error_code"),
        said.get("type"),
    ):
        if isinstance(value, str):
            yield value


def _texts(said: Mapping[str, Any]) -> Iterator[str]:
    """What is said in sentences: the message, and what the upstream provider's own error says."""
    for key in ("message", "detail"):
        if isinstance(message := said.get(key), str) and message:
            yield message
    raw = _object(said, "metadata").get("raw")
    if isinstance(raw, str):
        raw = error_in(raw.encode("utf-8", "replace"))
    if isinstance(raw, str):
        yield raw
    elif isinstance(raw, Mapping):
        inner = raw.get("error")
        for holder in (raw, inner if isinstance(inner, Mapping) else {"message": inner}):
            yield from (
                text for key in ("message", "detail") if isinstance(text := holder.get(key), str) and text
            )


def _detail(said: Mapping[str, Any], api_key: Secret | None) -> str:
    """The provider's text, without what must not be shown: keys, account ids, and the person's own words."""
    texts = list(dict.fromkeys(text[: 20 * _LONGEST_DETAIL] for text in _texts(said)))
    detail = _UNPRINTABLE.sub(" ", " — ".join(texts)).strip()
    flagged = _object(said, "metadata").get("flagged_input")
    for hidden in (flagged, api_key.reveal() if api_key else None, said.get("user_id")):
        if isinstance(hidden, str) and hidden.strip():
            detail = detail.replace(_UNPRINTABLE.sub(" ", hidden).strip(), "[…]")
    return _LOOKS_SECRET.sub("[…]", detail)[:_LONGEST_DETAIL]


def _retry_after_ms(said: Mapping[str, Any], headers: Mapping[str, str], now: datetime) -> int | None:
    for wait_ms in (
        _number(headers.get("retry-after-ms"), 1),
        _number(headers.get("retry-after"), 1000),
        _until(headers.get("retry-after"), now),
        _number(_object(said, "availability").get("retry_after"), 1000),
        _number(_object(said, "metadata").get("retry_after"), 1000),
    ):
        if wait_ms is not None:
            return min(max(0, round(wait_ms)), _LONGEST_WAIT_MS)
    return None


def _number(value: object, unit_ms: int) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value) * unit_ms
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _until(value: str | None, now: datetime) -> float | None:
    try:
        date = parsedate_to_datetime(value or "")
        return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - now).total_seconds() * 1000
    except (ValueError, OverflowError):
        return None


def _object(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    return value if isinstance(value, Mapping) else {}
