"""Counting tokens when the provider does not."""

from collections.abc import Sequence
from typing import Protocol


class TokenEstimator(Protocol):
    """Counts as the o200k vocabulary does; an estimate for other models."""

    async def count(self, texts: Sequence[str]) -> int:
        """Tokens of all the texts together, ≥ 0. Over 256 KB of UTF-8 in all: bytes ÷ 3, rounded up.

        Takes any text, special-token look-alikes and lone surrogates included, and does not hold the event loop.
        """
        ...
