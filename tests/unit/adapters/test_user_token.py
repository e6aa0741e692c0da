"""Tokens that others made, keys that change, and what only a forger would send."""

import base64
import json
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from adapters.security.user_token import Ed25519UserTokens, _private_key_of
from adapters.system.clock import SystemClock
from application.ports.user_tokens import TokenRefused
from application.ports.users import User
from domain.secret import Secret
from tests.support.recordings import RECORDINGS

VECTORS = "spec/vectors/access_tokens.json"
NEEDS_RECORDINGS = pytest.mark.skipif(RECORDINGS.folder is None, reason="the folder `shared` is not here")

SECRET, OTHER = "a-secret-of-this-test", "another-secret"
ANA = User(UUID("6f1c1d4e-2b1a-4f0e-9a55-0a6f2f5c7b10"), "ana@example.com")


@cache
def tokens(current: str, previous: str | None = None) -> Ed25519UserTokens:
    return Ed25519UserTokens(
        Secret(current), None if previous is None else Secret(previous), now=SystemClock().now
    )


@cache
def private_key(secret: str) -> Ed25519PrivateKey:
    return _private_key_of(Secret(secret))


def claims(**over: Any) -> dict[str, Any]:
    expires_at = int((datetime.now(UTC) + timedelta(minutes=1)).timestamp())
    sound = {"iss": "brabo-api", "aud": "brabo", "sub": str(ANA.id), "email": ANA.email, "exp": expires_at}
    return {name: value for name, value in {**sound, **over}.items() if value is not ...}


def signed(payload: dict[str, Any], secret: str = SECRET, **header: Any) -> str:
    headers = {"kid": tokens(secret).jwks()[0]["kid"], **header}
    # Not as a JWT, whose encoder refuses what a forger would not.
    return jwt.PyJWS().encode(json.dumps(payload).encode(), private_key(secret), "EdDSA", headers)


def is_accepted(by: Ed25519UserTokens, token: str) -> bool:
    try:
        by.verify(token)
    except TokenRefused:
        return False
    return True


@NEEDS_RECORDINGS
def test_judges_every_recorded_token_as_recorded() -> None:
    for case in json.loads(RECORDINGS.read_bytes(VECTORS))["cases"]:
        name, secret, token = case["name"], case["secret"], case["token"]
        if case["expect"].startswith("accepted when"):
            assert is_accepted(tokens(OTHER, secret), token), name
            assert not is_accepted(tokens(OTHER), token), name
            assert not is_accepted(tokens(OTHER, SECRET), token), name
        else:
            assert is_accepted(tokens(secret), token) is (case["expect"] == "accepted"), name
        if "kid" in case:
            (key,) = tokens(secret).jwks()
            assert (key["kid"], key["x"]) == (case["kid"], case["public_x"]), name


@NEEDS_RECORDINGS
def test_reads_what_a_recorded_token_says() -> None:
    accepted = [
        case
        for case in json.loads(RECORDINGS.read_bytes(VECTORS))["cases"]
        if case["expect"].startswith("accepted")
    ]
    assert len(accepted) == 2
    for case in accepted:
        said = case["claims"]
        assert tokens(case["secret"]).verify(case["token"]) == User(UUID(said["sub"]), said["email"])


def test_what_we_issue_is_what_the_contract_describes() -> None:
    expires_at = datetime.now(UTC) + timedelta(minutes=15)
    token = tokens(SECRET).issue(ANA, expires_at)
    (key,) = tokens(SECRET).jwks()
    public_key = jwt.PyJWK(key).key

    read = jwt.decode(token, public_key, algorithms=["EdDSA"], audience="brabo", issuer="brabo-api")

    header = jwt.get_unverified_header(token)
    assert (header["alg"], header["kid"]) == ("EdDSA", key["kid"])
    assert set(read) == {"iss", "aud", "sub", "email", "iat", "exp"}
    assert (read["sub"], read["email"], read["exp"]) == (str(ANA.id), ANA.email, int(expires_at.timestamp()))


def test_while_secrets_change_both_keys_are_published_and_the_new_one_signs() -> None:
    keys = tokens(SECRET, OTHER).jwks()

    assert [key["kid"] for key in keys] == [tokens(one).jwks()[0]["kid"] for one in (SECRET, OTHER)]
    assert all(set(key) == {"kty", "crv", "x", "kid", "alg", "use"} for key in keys)
    token = tokens(SECRET, OTHER).issue(ANA, datetime.now(UTC) + timedelta(minutes=1))
    assert jwt.get_unverified_header(token)["kid"] == keys[0]["kid"]
    assert is_accepted(tokens(SECRET), token)
    assert is_accepted(tokens(SECRET, OTHER), signed(claims(), OTHER))
    assert not is_accepted(tokens(SECRET), signed(claims(), OTHER))


@pytest.mark.parametrize(
    "over",
    [
        {"iss": "outro"}, {"iss": ...}, {"iss": 7}, {"aud": "outra"}, {"aud": ...}, {"aud": None},
        {"sub": ...}, {"sub": "ana"}, {"sub": 7}, {"sub": None}, {"email": ...}, {"email": None}, {"email": 7},
        {"email": {}}, {"exp": ...}, {"exp": None}, {"exp": "soon"}, {"exp": 0}, {"nbf": 4102444800},
        {"iat": 4102444800}, {"iat": "x"},
    ],
    ids=repr,
)  # fmt: skip
def test_every_claim_counts(over: dict[str, Any]) -> None:
    assert is_accepted(tokens(SECRET), signed(claims()))
    assert not is_accepted(tokens(SECRET), signed(claims(**over)))


@pytest.mark.parametrize(("claim", "seconds", "is_good"), [
    ("iat", 10, True), ("nbf", 10, True), ("exp", -10, True), ("exp", -60, False), ("nbf", 60, False),
])  # fmt: skip
def test_clocks_may_differ_a_little(claim: str, seconds: int, is_good: bool) -> None:
    now_s = int(datetime.now(UTC).timestamp())
    assert is_accepted(tokens(SECRET), signed(claims(**{claim: now_s + seconds}))) is is_good


def test_the_key_is_ours_and_the_algorithm_never_the_tokens() -> None:
    """A key of the token's own choice, a key id of another key, none at all, and other algorithms."""
    own = Ed25519PrivateKey.generate()
    public = {"kty": "OKP", "crv": "Ed25519", "x": _base64url(own.public_key().public_bytes_raw())}
    kid = tokens(SECRET).jwks()[0]["kid"]
    forged = [
        jwt.encode(claims(), own, algorithm="EdDSA", headers={"kid": kid, "jwk": public}),
        signed(claims(), kid=tokens(OTHER).jwks()[0]["kid"]),
        signed(claims(), kid="unknown"),
        jwt.encode(claims(), private_key(SECRET), algorithm="EdDSA"),
        jwt.encode(claims(), "", algorithm="none", headers={"kid": kid}),
        jwt.encode(claims(), SECRET.encode() * 2, algorithm="HS256", headers={"kid": kid}),
        f"{_segment({'alg': 'EdDSA', 'kid': [kid]})}.{_segment(claims())}.AA",
    ]

    assert [is_accepted(tokens(SECRET, OTHER), token) for token in forged] == [False] * len(forged)


def test_no_secret_is_shown() -> None:
    assert SECRET not in repr(tokens(SECRET))


def _segment(part: dict[str, Any]) -> str:
    return _base64url(json.dumps(part).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
