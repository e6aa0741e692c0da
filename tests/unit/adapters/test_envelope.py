"""Envelopes that others made, and the rotation of the master key."""

import base64
import hashlib
import json
import os
from functools import cache

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from adapters.security.envelope import EnvelopeVault
from application.ports.credential_vault import CannotOpenCredential, SealedKey
from domain.secret import Secret
from tests.support.recordings import RECORDINGS

VECTORS = "spec/vectors/credential_envelopes.json"

MASTER = "frase longa com acentuação é ok"
API_KEY = "sk-or-v1-ção-ünïcode-🔑"


@cache
def master_vault(current: str, previous: str | None = None) -> EnvelopeVault:
    return EnvelopeVault(Secret(current), None if previous is None else Secret(previous))


def sealed_by_hand(master_key: str, plaintext: bytes) -> SealedKey:
    """An envelope made by the contract's words, with none of our code and another interface of the cipher."""
    master = hashlib.scrypt(master_key.encode(), salt=b"brabo-credentials-salt", n=2**14, r=8, p=1, dklen=32)
    dek = os.urandom(32)

    def encrypt(key: bytes, content: bytes) -> list[str]:
        iv = os.urandom(12)
        cipher = Cipher(algorithms.AES(key), modes.GCM(iv)).encryptor()
        ciphertext = cipher.update(content) + cipher.finalize()
        return [base64.b64encode(part).decode() for part in (ciphertext, iv, cipher.tag)]

    return SealedKey(*encrypt(master, dek), *encrypt(dek, plaintext))


@pytest.mark.skipif(RECORDINGS.folder is None, reason="the folder `shared` is not here")
def test_opens_every_recorded_envelope_and_no_tampered_one() -> None:
    vectors = json.loads(RECORDINGS.read_bytes(VECTORS))
    for vector in vectors["valid"]:
        opened = master_vault(vector["master_key"]).open(SealedKey(**vector["row"]))
        assert opened.reveal() == vector["plaintext"]
    for vector in vectors["tampered"]:
        with pytest.raises(CannotOpenCredential):
            master_vault(vector["master_key"]).open(SealedKey(**vector["row"]))
    assert vectors["valid"]
    assert vectors["tampered"]


@pytest.mark.parametrize("plaintext", ["x", API_KEY])
def test_opens_an_envelope_made_by_hand(plaintext: str) -> None:
    assert master_vault(MASTER).open(sealed_by_hand(MASTER, plaintext.encode())).reveal() == plaintext


def test_what_we_seal_is_what_the_contract_describes() -> None:
    sealed = master_vault(MASTER).seal(Secret(API_KEY))
    master = hashlib.scrypt(MASTER.encode(), salt=b"brabo-credentials-salt", n=2**14, r=8, p=1, dklen=32)

    def decrypt(key: bytes, ciphertext: str, iv: str, tag: str) -> bytes:
        gcm = modes.GCM(base64.b64decode(iv), base64.b64decode(tag))
        cipher = Cipher(algorithms.AES(key), gcm).decryptor()
        return cipher.update(base64.b64decode(ciphertext)) + cipher.finalize()

    dek = decrypt(master, sealed.wrapped_dek, sealed.dek_iv, sealed.dek_auth_tag)
    assert (
        decrypt(dek, sealed.encrypted_api_key, sealed.api_key_iv, sealed.api_key_auth_tag).decode() == API_KEY
    )


def test_the_previous_master_key_opens_and_never_seals() -> None:
    old, rotated, new = (
        master_vault("old-master-key"),
        master_vault(MASTER, "old-master-key"),
        master_vault(MASTER),
    )

    assert rotated.open(old.seal(Secret(API_KEY))).reveal() == API_KEY
    assert new.open(rotated.seal(Secret(API_KEY))).reveal() == API_KEY
    with pytest.raises(CannotOpenCredential, match="CREDENTIALS_MASTER_KEY_PREVIOUS"):
        new.open(old.seal(Secret(API_KEY)))


def test_a_malformed_part_is_named_and_not_quoted() -> None:
    sealed = master_vault(MASTER).seal(Secret(API_KEY))
    wrong = SealedKey(sealed.wrapped_dek, "AAAA", *(["?" * 4] * 4))

    with pytest.raises(CannotOpenCredential, match=r"^dek_auth_tag is not base64") as raised:
        master_vault(MASTER).open(wrong)
    assert "?" not in str(raised.value)


def test_a_plaintext_that_is_no_text_is_refused_and_not_carried_along() -> None:
    with pytest.raises(CannotOpenCredential) as raised:
        master_vault(MASTER).open(sealed_by_hand(MASTER, b"\xff\xfe-not-utf-8"))

    assert raised.value.__context__ is None


def test_opening_derives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vault = master_vault(MASTER)
    monkeypatch.delattr(hashlib, "scrypt")

    assert vault.open(vault.seal(Secret(API_KEY))).reveal() == API_KEY
