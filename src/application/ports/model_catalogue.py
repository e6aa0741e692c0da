"""What a provider says it offers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from domain.provider import Provider
from domain.usage import Prices


class CatalogueUnavailable(Exception):  # noqa: N818 - it names what happened
    """The provider did not give its list. The text says what it did instead, and its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedModel:
    """One entry of the list."""

    display_name: str
    prices: Prices | None
    """None where the provider publishes none, or none that tokens × price could give."""
    context_window: int | None
    max_output_tokens: int | None
    """The most that one answer of it has; None: the provider does not say."""
    supports_tool_calling: bool | None
    """None: the provider does not say."""


class ModelCatalogue(Protocol):
    """Asks providers for their lists, without a key."""

    def offered(self, provider: Provider) -> Mapping[str, OfferedModel] | None:
        """The models by name; None where only holders of a key may see them. Raises CatalogueUnavailable after 5 s."""
        ...
