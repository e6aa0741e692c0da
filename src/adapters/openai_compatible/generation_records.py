"""OpenRouter's records of single calls: `GET {base}/v1/generation?id=`."""

import json
import ssl
from decimal import Decimal
from typing import Any, Final

import httpx

from adapters.transport.names import storable_name
from application.ports.generation_records import GenerationRecord, GenerationRecords, RecordsUnavailable
from domain.provider import Provider
from domain.secret import Secret
from domain.usage import TokenCounts

_DEFAULT_BASE: Final = "https://openrouter.ai/api"
_PATIENCE_S: Final = 10.0
_MOST_USD: Final = 1_000_000
_MOST_TOKENS: Final = 2**31 - 1


class OpenRouterGenerationRecords(GenerationRecords):
    """Asks over a client of its own, made with the first question; close it in the event loop that used it."""

    def __init__(self, openrouter_base: str | None, *, patience_s: float = _PATIENCE_S) -> None:
        self._url = f"{openrouter_base or _DEFAULT_BASE}/v1/generation"
        self._patience_s = patience_s
        self._client: httpx.AsyncClient | None = None

    async def find(self, provider: Provider, generation_id: str, key: Secret) -> GenerationRecord | None:
        assert provider.keeps_records, "only OpenRouter keeps records"
        headers = {"Authorization": f"Bearer {key.reveal()}", "Accept": "application/json"}
        try:
            answer = await self._opened().get(self._url, params={"id": generation_id}, headers=headers)
        except (httpx.HTTPError, UnicodeError) as error:
            # Without its cause: the request in it holds the key.
            raise RecordsUnavailable(type(error).__name__) from None
        # A key of another account is told the same as one that asks too early.
        if answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.status_code != httpx.codes.OK:
            raise RecordsUnavailable(f"status {answer.status_code}", _retry_after_s(answer))
        try:
            data = json.loads(answer.content, parse_float=Decimal)["data"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RecordsUnavailable("an answer that is no record") from None
        return _record_of(data) if isinstance(data, dict) else None

    async def close(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            # As the turn's own client does: the system's certificates, and no proxy from the environment.
            self._client = httpx.AsyncClient(
                timeout=self._patience_s, trust_env=False, verify=ssl.create_default_context()
            )
        return self._client


def _record_of(data: dict[str, Any]) -> GenerationRecord | None:
    """None where it names no cost, or one that is not what the key was charged (`is_byok`)."""
    cost = data.get("total_cost")
    if isinstance(cost, bool) or not isinstance(cost, int | Decimal) or data.get("is_byok") is True:
        return None
    usd = Decimal(cost)
    if not (usd.is_finite() and 0 <= usd <= _MOST_USD):
        return None
    prompt, completion = (_count(data, f"native_tokens_{part}") for part in ("prompt", "completion"))
    return GenerationRecord(
        charged_usd=usd,
        tokens=None if prompt is None or completion is None else TokenCounts(prompt, completion),
        resolved_model=_name(data.get("model")),
        upstream_provider=_name(data.get("provider_name")),
    )


def _count(data: dict[str, Any], field: str) -> int | None:
    value = data.get(field)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
    return value if is_count else None


def _name(value: object) -> str | None:
    return storable_name(value) if isinstance(value, str) else None


def _retry_after_s(answer: httpx.Response) -> float | None:
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None
