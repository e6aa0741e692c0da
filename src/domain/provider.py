"""The model providers the database knows."""

from enum import StrEnum


class Provider(StrEnum):
    """Values of the enum `llm_provider`."""

    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    OPENROUTER = "openrouter"
    NVIDIA_NIM = "nvidia-nim"
    TOGETHER = "together"
    DEEPINFRA = "deepinfra"
    BITDEER = "bitdeer"
    VULTR = "vultr"

    @property
    def needs_credential(self) -> bool:
        """Whether a turn needs the owner's key; a local Ollama takes none."""
        return self is not Provider.OLLAMA

    @property
    def keeps_records(self) -> bool:
        """Whether it can be asked later what a call of it cost."""
        return self is Provider.OPENROUTER


class RoutingPreference(StrEnum):
    """What OpenRouter sorts upstream providers by; frozen in the usage row."""

    PRICE = "price"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
