"""What the database holds that can keep turns from working."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from application.ports.credential_vault import SealedKey


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An envelope, whose it is, and for what. The provider is as stored: it can be one this program does not know."""

    owner_email: str
    provider: str
    sealed: SealedKey


@dataclass(frozen=True, slots=True)
class StoredBinding:
    """A binding as stored."""

    scope: str
    scope_id: str
    provider: str
    model: str
    is_available: bool


class Diagnosis(Protocol):
    """Reads what is stored, changing nothing. Each method raises DatabaseFailed."""

    def keys(self) -> Sequence[StoredKey]:
        """All envelopes, by owner and provider."""
        ...

    def bindings(self) -> Sequence[StoredBinding]:
        """All bindings, by scope and what they are of."""
        ...
