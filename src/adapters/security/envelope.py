"""Envelopes: a data key encrypts the API key, and the master key wraps the data key (contract, section 9)."""

import base64
import binascii
import hashlib
import os
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from application.ports.credential_vault import CannotOpenCredential, CredentialVault, SealedKey
from domain.secret import Secret

_SALT: Final = b"brabo-credentials-salt"
_KEY_BYTES: Final = 32
_IV_BYTES: Final = 12
_TAG_BYTES: Final = 16


class EnvelopeVault(CredentialVault):
    """Seals under the current master key; opens what it or the previous one sealed.

    Making one takes 50 ms a key, and 16 MB meanwhile: scrypt is meant to be slow.
    """

    def __init__(self, current: Secret, previous: Secret | None = None) -> None:
        self._current = AESGCM(_derived(current))
        self._masters = [self._current] if previous is None else [self._current, AESGCM(_derived(previous))]

    def open(self, sealed: SealedKey) -> Secret:
        """See `CredentialVault`. The error names the part that is malformed, and quotes nothing of it."""
        wrapped_dek = _decoded("wrapped_dek", sealed.wrapped_dek, _KEY_BYTES)
        wrapped_dek += _decoded("dek_auth_tag", sealed.dek_auth_tag, _TAG_BYTES)
        dek_iv = _decoded("dek_iv", sealed.dek_iv, _IV_BYTES)
        encrypted = _decoded("encrypted_api_key", sealed.encrypted_api_key)
        encrypted += _decoded("api_key_auth_tag", sealed.api_key_auth_tag, _TAG_BYTES)
        api_key_iv = _decoded("api_key_iv", sealed.api_key_iv, _IV_BYTES)

        deks = (_decrypted(master, dek_iv, wrapped_dek) for master in self._masters)
        dek = next((dek for dek in deks if dek is not None), None)
        if dek is None:
            raise CannotOpenCredential(
                "No configured master key unwraps it: the row was altered, or sealed under another"
                " CREDENTIALS_MASTER_KEY. Set that one as CREDENTIALS_MASTER_KEY_PREVIOUS, or store the key again."
            )
        plaintext = _decrypted(AESGCM(dek), api_key_iv, encrypted)
        api_key = None if plaintext is None else _text(plaintext)
        if api_key is None:
            raise CannotOpenCredential("The encrypted key was altered: store the key again.")
        return Secret(api_key)

    def seal(self, api_key: Secret) -> SealedKey:
        """See `CredentialVault`."""
        dek, dek_iv, api_key_iv = os.urandom(_KEY_BYTES), os.urandom(_IV_BYTES), os.urandom(_IV_BYTES)
        wrapped_dek = self._current.encrypt(dek_iv, dek, None)
        encrypted = AESGCM(dek).encrypt(api_key_iv, api_key.reveal().encode(), None)
        return SealedKey(
            wrapped_dek=_encoded(wrapped_dek[:-_TAG_BYTES]),
            dek_iv=_encoded(dek_iv),
            dek_auth_tag=_encoded(wrapped_dek[-_TAG_BYTES:]),
            encrypted_api_key=_encoded(encrypted[:-_TAG_BYTES]),
            api_key_iv=_encoded(api_key_iv),
            api_key_auth_tag=_encoded(encrypted[-_TAG_BYTES:]),
        )


def _derived(master_key: Secret) -> bytes:
    return hashlib.scrypt(master_key.reveal().encode(), salt=_SALT, n=16384, r=8, p=1, dklen=_KEY_BYTES)


# What fails below is answered with None, and raised by the caller outside of any `except`: an exception that was being
# handled stays reachable from the new one, and UnicodeDecodeError carries the whole plaintext.


def _decrypted(key: AESGCM, iv: bytes, ciphertext_and_tag: bytes) -> bytes | None:
    try:
        return key.decrypt(iv, ciphertext_and_tag, None)
    except InvalidTag:
        return None


def _text(plaintext: bytes) -> str | None:
    try:
        return plaintext.decode()
    except UnicodeDecodeError:
        return None


def _decoded(part: str, text: str, length: int | None = None) -> bytes:
    decoded = _from_base64(text)
    if decoded is None:
        raise CannotOpenCredential(f"{part} is not base64: store the key again.")
    if length is not None and len(decoded) != length:
        raise CannotOpenCredential(f"{part} has {len(decoded)} bytes, not {length}: store the key again.")
    return decoded


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: the text is not ASCII
        return None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
