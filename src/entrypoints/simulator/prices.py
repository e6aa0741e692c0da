"""The simulator's own price table. It is not the api's catalogue, so that a bill can prove the ledger wrong."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Final


@dataclass(frozen=True, slots=True)
class Model:
    """A model on offer. Prices are exact USD per token; `dated` is the slug that replies carry."""

    id: str
    dated: str
    name: str
    provider: str
    prompt_usd: Decimal
    completion_usd: Decimal
    context_length: int
    max_completion_tokens: int
    decisions: bool = False
    cancellation: bool = True
    """Whether the provider stops, and stops charging, when the client leaves a stream."""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> Decimal:
        """What a call of this size is charged, in USD, exactly."""
        return prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd


def _per_million(usd: str) -> Decimal:
    return Decimal(usd).scaleb(-6)


def _chat(
    model_id: str,
    dated: str,
    name: str,
    provider: str,
    prompt_usd_per_million: str,
    completion_usd_per_million: str,
    context_length: int,
    max_completion_tokens: int,
    cancellation: bool = True,
) -> Model:
    return Model(
        id=model_id,
        dated=dated,
        name=name,
        provider=provider,
        prompt_usd=_per_million(prompt_usd_per_million),
        completion_usd=_per_million(completion_usd_per_million),
        context_length=context_length,
        max_completion_tokens=max_completion_tokens,
        cancellation=cancellation,
    )


_JEV: Final = Model(
    id="typesafe/jev-1.13",
    dated="typesafe/jev-1.13-20260917",
    name="TypeSafe: Jev 1.13",
    provider="TypeSafe",
    prompt_usd=_per_million("0.042"),
    completion_usd=Decimal(0),
    context_length=32_000,
    max_completion_tokens=28_800,
    decisions=True,
    cancellation=False,
)

MODELS: Final[dict[str, Model]] = {
    model.id: model
    for model in (
        _chat("openai/gpt-4.1-mini", "openai/gpt-4.1-mini-2025-04-14", "OpenAI: GPT-4.1 Mini", "OpenAI",
              "0.40", "1.60", 1_047_576, 32_768),
        _chat("openai/gpt-4o-mini", "openai/gpt-4o-mini-2024-07-18", "OpenAI: GPT-4o-mini", "Azure",
              "0.15", "0.60", 128_000, 16_384),
        _chat("openai/gpt-4o", "openai/gpt-4o-2024-11-20", "OpenAI: GPT-4o", "OpenAI",
              "2.50", "10", 128_000, 16_384),
        _chat("anthropic/claude-sonnet-4.5", "anthropic/claude-4.5-sonnet-20250929",
              "Anthropic: Claude Sonnet 4.5", "Anthropic", "3", "15", 1_000_000, 64_000),
        _chat("deepseek/deepseek-v3.2", "deepseek/deepseek-v3.2-20251201", "DeepSeek: DeepSeek V3.2",
              "DeepInfra", "0.26", "0.38", 163_840, 65_536),
        _chat("mistralai/mistral-small-3.2", "mistralai/mistral-small-3.2-24b-instruct-2506",
              "Mistral: Mistral Small 3.2", "Mistral", "0.075", "0.20", 128_000, 32_768, cancellation=False),
        _chat("google/gemini-2.5-flash", "google/gemini-2.5-flash", "Google: Gemini 2.5 Flash",
              "Google AI Studio", "0.30", "2.50", 1_048_576, 65_535, cancellation=False),
        _chat("minimax/minimax-m2:free", "minimax/minimax-m2:free", "MiniMax: MiniMax M2 (free)", "Minimax",
              "0", "0", 204_800, 131_072, cancellation=False),
        _JEV,
    )
}  # fmt: skip

ALIASES: Final[dict[str, str]] = {"~typesafe/jev-latest": _JEV.id}


def find_model(model_id: str) -> Model | None:
    """The model of that id, dated slug or alias, or None."""
    return _BY_ANY_NAME.get(model_id)


_BY_ANY_NAME: Final[dict[str, Model]] = {
    **{model.dated: model for model in MODELS.values()},
    **MODELS,
    **{alias: MODELS[model_id] for alias, model_id in ALIASES.items()},
}


def plain(amount: Decimal) -> str:
    """An exact amount without exponent and without trailing zeros: `0.0000039`."""
    return format(amount.normalize() if amount else Decimal(0), "f")
