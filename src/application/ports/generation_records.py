"""What the provider has on record of a call."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from domain.provider import Provider
from domain.secret import Secret
from domain.usage import TokenCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRecord:
    """A call as its provider billed it."""

    charged_usd: Decimal
    tokens: TokenCounts | None
    """None: it does not say."""
    resolved_model: str | None = None
    upstream_provider: str | None = None


class RecordsUnavailable(Exception):  # noqa: N818 - it names what happened
    """The provider did not answer, or with an error that says nothing about the call: ask again later.

    `retry_after_s` is the provider's wish, if it has one.
    """

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class GenerationRecords(Protocol):
    """Asks providers for their records."""

    async def find(self, provider: Provider, generation_id: str, key: Secret) -> GenerationRecord | None:
        """The record; None when this key's account has none of that id, or not yet: they lag by up to half a minute.

        For providers that keep records. Raises RecordsUnavailable.
        """
        ...
