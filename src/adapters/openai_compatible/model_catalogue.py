"""The providers' lists of models."""

import json
import ssl
import time
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import httpx

from adapters.openai_compatible.profiles import ProviderProfile
from application.ports.model_catalogue import CatalogueUnavailable, ModelCatalogue, OfferedModel
from domain.provider import Provider
from domain.usage import Prices, to_micros

_PATIENCE_S: Final = 5.0
_LONGEST_LIST_BYTES: Final = 32 * 1024 * 1024
_TOKENS_PRICED: Final = 1_000_000
_MOST_MICROS: Final = 2**63 - 1
"""What a bigint holds."""
_MOST_TOKENS: Final = 2**31 - 1
"""What an integer holds."""


class OpenAICompatibleCatalogue(ModelCatalogue):
    """Reads `GET {base}/models`, for one command: it blocks, and keeps no connection. `patience_s` bounds it all."""

    def __init__(
        self, profiles: Mapping[Provider, ProviderProfile], *, patience_s: float = _PATIENCE_S
    ) -> None:
        self._profiles = profiles
        self._patience_s = patience_s

    def offered(self, provider: Provider) -> Mapping[str, OfferedModel] | None:
        url = self._profiles[provider].chat_url.removesuffix("/chat/completions") + "/models"
        body = self._read(url)
        if body is None:
            return None
        try:
            answer = json.loads(body, parse_float=Decimal)
        except (ValueError, RecursionError):
            raise CatalogueUnavailable(f"{url} answered with something that is no JSON.") from None
        entries = answer.get("data") if isinstance(answer, dict) else answer
        if not isinstance(entries, list):
            raise CatalogueUnavailable(f"{url} answered without a list of models.")
        return {
            name: _model(name, entry)
            for entry in entries
            if isinstance(entry, dict) and isinstance(name := entry.get("id"), str)
        }

    def _read(self, url: str) -> bytes | None:
        """The body of a 200; None when the provider asks for a key."""
        deadline_s = time.monotonic() + self._patience_s
        body = bytearray()
        try:
            # As the turn's own client does: the system's certificates, and no proxy from the environment.
            with (
                httpx.Client(
                    timeout=self._patience_s, trust_env=False, verify=ssl.create_default_context()
                ) as client,
                client.stream("GET", url, headers={"Accept": "application/json"}) as response,
            ):
                if response.status_code in (401, 403):
                    return None
                if response.status_code != 200:
                    raise CatalogueUnavailable(f"{url} answered with status {response.status_code}.")
                for piece in response.iter_bytes():
                    body += piece
                    if time.monotonic() > deadline_s:
                        raise httpx.ReadTimeout("the whole answer took too long")
                    if len(body) > _LONGEST_LIST_BYTES:
                        raise CatalogueUnavailable(f"{url} answered with more than a list of models.")
        except httpx.TimeoutException:
            raise CatalogueUnavailable(
                f"{url} did not answer within {self._patience_s:g} s: check the address and the way there."
            ) from None
        except httpx.HTTPError as error:
            raise CatalogueUnavailable(
                f"{url} cannot be reached ({type(error).__name__}: {error}): check the address and the way there."
            ) from None
        return bytes(body)


def _model(name: str, entry: Mapping[str, Any]) -> OfferedModel:
    display_name, parameters, pricing = (
        entry.get(key) for key in ("name", "supported_parameters", "pricing")
    )
    top_provider = entry.get("top_provider")
    return OfferedModel(
        display_name=display_name if isinstance(display_name, str) else name,
        prices=_prices(pricing) if isinstance(pricing, dict) else None,
        context_window=_tokens(entry.get("context_length")),
        max_output_tokens=_tokens(top_provider.get("max_completion_tokens"))
        if isinstance(top_provider, dict)
        else None,
        supports_tool_calling="tools" in parameters if isinstance(parameters, list) else None,
    )


def _tokens(count: object) -> int | None:
    if not isinstance(count, int) or isinstance(count, bool):
        return None
    return count if 0 < count <= _MOST_TOKENS else None


def _prices(pricing: Mapping[str, Any]) -> Prices | None:
    """OpenRouter's convention: decimal text, USD a token. Negative: it depends on where the call is routed."""
    in_micros, out_micros = (_per_million_micros(pricing.get(part)) for part in ("prompt", "completion"))
    return None if in_micros is None or out_micros is None else Prices(in_micros, out_micros)


def _per_million_micros(usd_per_token: object) -> int | None:
    try:
        usd = Decimal(usd_per_token) if isinstance(usd_per_token, str) else Decimal("NaN")
    except InvalidOperation:
        return None
    if not (usd.is_finite() and 0 <= usd < 1_000_000):
        return None
    micros = to_micros(usd * _TOKENS_PRICED)
    return micros if micros <= _MOST_MICROS else None
