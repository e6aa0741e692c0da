"""The owners' API keys, sealed."""

from dataclasses import dataclass, field
from typing import Protocol

from domain.secret import Secret


@dataclass(frozen=True, slots=True)
class SealedKey:
    """The six base64 parts of an envelope, as `user_credentials` holds them (contract, section 9)."""

    wrapped_dek: str = field(repr=False)
    dek_iv: str = field(repr=False)
    dek_auth_tag: str = field(repr=False)
    encrypted_api_key: str = field(repr=False)
    api_key_iv: str = field(repr=False)
    api_key_auth_tag: str = field(repr=False)


class CannotOpenCredential(Exception):  # noqa: N818 - it names what happened, as the use case reads it
    """The envelope is damaged, or was sealed with a master key that is not configured."""


class CredentialVault(Protocol):
    """Seals and opens API keys. What it opens is used once and never stored."""

    def open(self, sealed: SealedKey) -> Secret:
        """The API key. Raises CannotOpenCredential; never gives a wrong plaintext."""
        ...

    def seal(self, api_key: Secret) -> SealedKey:
        """A fresh envelope under the current master key; two of one key differ."""
        ...
