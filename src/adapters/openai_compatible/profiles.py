"""The providers that speak the dialect, and what is particular to each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domain.provider import Provider

_DEFAULT_BASES: Final[Mapping[Provider, str]] = {
    Provider.OPENROUTER: "https://openrouter.ai/api",
    Provider.OPENAI: "https://api.openai.com/v1",
    Provider.NVIDIA_NIM: "https://integrate.api.nvidia.com/v1",
    Provider.TOGETHER: "https://api.together.xyz/v1",
    Provider.DEEPINFRA: "https://api.deepinfra.com/v1/openai",
    Provider.BITDEER: "https://api-inference.bitdeer.ai/v1",
    Provider.VULTR: "https://api.vultrinference.com/v1",
    Provider.OLLAMA: "http://127.0.0.1:11434",
}

_VERSIONED: Final = frozenset({Provider.OPENROUTER, Provider.OLLAMA})
"""Their base is the root of the whole API; the dialect lives under `/v1` of it."""

_OPENROUTER_BODY: Final[Mapping[str, Any]] = {
    "usage": {"include": True},
    "plugins": [{"id": "context-compression", "enabled": False}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderProfile:
    """One provider of the dialect."""

    chat_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent with every call, beside those of the dialect."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every request, beside those of the dialect."""
    takes_sort: bool = False
    """Whether a routing preference goes along as `provider.sort`."""
    states_charge: bool = False
    """Whether `usage.cost` is what the key is charged; elsewhere a field of that name is anybody's guess."""
    holds_prices: bool = False
    """Whether it keeps both to `max_tokens` and to `provider.max_price`, so that a call has a worst case."""


def provider_table(base_urls: Mapping[Provider, str], public_url: str) -> Mapping[Provider, ProviderProfile]:
    """The dialect's providers. `base_urls` overrides their addresses; `public_url` is ours, told to OpenRouter.

    For OpenRouter and Ollama the address is the root above `/v1`.
    """
    return {
        provider: _profile(provider, base_urls.get(provider) or default, public_url)
        for provider, default in _DEFAULT_BASES.items()
    }


def bounded_providers(profiles: Mapping[Provider, ProviderProfile]) -> frozenset[Provider]:
    """Those whose calls can be kept from costing more than was held for them."""
    return frozenset(provider for provider, profile in profiles.items() if profile.holds_prices)


def _profile(provider: Provider, base_url: str, public_url: str) -> ProviderProfile:
    base_url = base_url.rstrip("/")
    if provider in _VERSIONED:
        base_url += "/v1"
    chat_url = f"{base_url}/chat/completions"
    if provider is not Provider.OPENROUTER:
        return ProviderProfile(chat_url=chat_url)
    return ProviderProfile(
        chat_url=chat_url,
        headers={"HTTP-Referer": public_url, "X-Title": "Brabo"},
        body=_OPENROUTER_BODY,
        takes_sort=True,
        states_charge=True,
        holds_prices=True,
    )
