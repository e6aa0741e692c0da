"""What every adapter of the port CredentialVault does."""

import base64
import traceback
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache

import pytest

from adapters.in_memory.credential_vault import InMemoryVault
from adapters.security.envelope import EnvelopeVault
from application.ports.credential_vault import CannotOpenCredential, CredentialVault, SealedKey
from domain.secret import Secret

API_KEY = "sk-or-v1-ção-🔑-0123456789abcdef"
PARTS = [part.name for part in fields(SealedKey)]
MALFORMED = [
    "",
    "?",
    "AAA",
    "AA=A",
    "AAAA\n",
    "çççç",
    "\ud800AAA",
    "A" * 10_000,
    "AAAA" * 4,
    base64.b64encode(bytes(31)).decode(),
]

MakeVault = Callable[[str], CredentialVault]


@cache
def envelope_vault(master_key: str) -> EnvelopeVault:
    return EnvelopeVault(Secret(master_key))


@pytest.fixture(params=["in_memory", "envelope"])
def make_vault(request: pytest.FixtureRequest) -> MakeVault:
    """Makes a vault with a master key."""
    return (lambda _: InMemoryVault()) if request.param == "in_memory" else envelope_vault


@pytest.fixture
def vault(make_vault: MakeVault) -> CredentialVault:
    return make_vault("a-master-key-of-this-test")


@pytest.mark.parametrize("api_key", ["x", API_KEY, "k" * 10_000])
def test_what_was_sealed_opens(vault: CredentialVault, api_key: str) -> None:
    assert vault.open(vault.seal(Secret(api_key))).reveal() == api_key


def test_two_envelopes_of_one_key_have_no_part_in_common(vault: CredentialVault) -> None:
    one, other = vault.seal(Secret(API_KEY)), vault.seal(Secret(API_KEY))

    assert all(getattr(one, part) != getattr(other, part) for part in PARTS)
    assert vault.open(one).reveal() == vault.open(other).reveal() == API_KEY


def test_every_part_is_base64_of_its_length(vault: CredentialVault) -> None:
    sealed = vault.seal(Secret(API_KEY))

    lengths = {part: len(base64.b64decode(getattr(sealed, part), validate=True)) for part in PARTS}
    encrypted = lengths.pop("encrypted_api_key")
    assert lengths == {
        "wrapped_dek": 32,
        "dek_iv": 12,
        "dek_auth_tag": 16,
        "api_key_iv": 12,
        "api_key_auth_tag": 16,
    }
    assert encrypted > 0


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("bit", [0, 7, 40, -1])
def test_one_bit_altered_does_not_open(vault: CredentialVault, part: str, bit: int) -> None:
    sealed = vault.seal(Secret(API_KEY))
    altered = bytearray(base64.b64decode(getattr(sealed, part)))
    altered[bit // 8] ^= 1 << bit % 8

    with pytest.raises(CannotOpenCredential):
        vault.open(replace(sealed, **{part: base64.b64encode(altered).decode()}))
    assert vault.open(sealed).reveal() == API_KEY


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_part_does_not_open(vault: CredentialVault, part: str, malformed: str) -> None:
    with pytest.raises(CannotOpenCredential):
        vault.open(replace(vault.seal(Secret(API_KEY)), **{part: malformed}))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_another_envelope_does_not_open(vault: CredentialVault, part: str) -> None:
    sealed, other = vault.seal(Secret(API_KEY)), vault.seal(Secret(API_KEY))

    with pytest.raises(CannotOpenCredential):
        vault.open(replace(sealed, **{part: getattr(other, part)}))


def test_another_master_key_does_not_open(make_vault: MakeVault, vault: CredentialVault) -> None:
    with pytest.raises(CannotOpenCredential):
        vault.open(make_vault("another-master-key").seal(Secret(API_KEY)))


def test_neither_key_nor_error_shows_a_secret(vault: CredentialVault) -> None:
    sealed = vault.seal(Secret(API_KEY))
    shown = [repr(vault.open(sealed)), str(vault.open(sealed)), repr(sealed), repr(vault)]
    with pytest.raises(CannotOpenCredential) as raised:
        vault.open(replace(sealed, api_key_auth_tag=base64.b64encode(bytes(16)).decode()))
    shown += traceback.format_exception(raised.value)

    assert raised.value.__cause__ is raised.value.__context__ is None
    for secret in [API_KEY, "a-master-key-of-this-test", *(getattr(sealed, part) for part in PARTS)]:
        assert not any(secret in text for text in shown)
