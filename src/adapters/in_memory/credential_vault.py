"""A vault that remembers instead of encrypting."""

import base64
import os

from application.ports.credential_vault import CannotOpenCredential, CredentialVault, SealedKey
from domain.secret import Secret


class InMemoryVault(CredentialVault):
    """Opens exactly the envelopes that it sealed itself: any other was altered, or is of another master key."""

    def __init__(self) -> None:
        self._sealed: dict[SealedKey, Secret] = {}

    def open(self, sealed: SealedKey) -> Secret:
        """See `CredentialVault`."""
        if sealed not in self._sealed:
            raise CannotOpenCredential("This vault sealed no such envelope.")
        return self._sealed[sealed]

    def seal(self, api_key: Secret) -> SealedKey:
        """See `CredentialVault`."""
        sealed = SealedKey(
            *(base64.b64encode(os.urandom(size)).decode() for size in (32, 12, 16, 24, 12, 16))
        )
        self._sealed[sealed] = api_key
        return sealed
