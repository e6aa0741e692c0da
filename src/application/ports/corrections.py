"""What a row turned out to have cost."""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol
from uuid import UUID


class Verdict(StrEnum):
    """What became of a figure."""

    CORRECTED = "corrected"
    """It differed from what was booked, and the difference is booked now."""
    EQUAL = "equal"
    """It is what was booked."""
    KNOWN = "known"
    """It was booked before, or is worth less than what is booked."""


@dataclass(frozen=True, slots=True)
class Booked:
    """A figure that was looked at; `delta_micros` is what the counters moved by, up or down."""

    verdict: Verdict
    delta_micros: int


class Corrections(Protocol):
    """Books corrections: the row is never rewritten. Each method may raise DatabaseFailed."""

    async def book_truth(self, usage_id: UUID, charged_usd: Decimal) -> Booked | None:
        """Book what the provider says that a row cost, and free what is still held for it. None: there is no such row,
        nor a parked one.

        The correction, the counters and the thresholds are one transaction. A second booking changes nothing.
        """
        ...

    async def write_off(self, usage_id: UUID, turn_id: UUID, reason: str) -> None:
        """Close the question what a row cost, which nobody will ever know, and free by name what is held for it."""
        ...
