"""Users' tokens: JWTs signed with Ed25519 keys that follow from a secret (contract, section 8)."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from application.ports.user_tokens import TokenRefused, UserTokens
from application.ports.users import User
from domain.secret import Secret

_ISSUER: Final = "brabo-api"
_AUDIENCE: Final = "brabo"
_ALGORITHM: Final = "EdDSA"
_SALT: Final = b"brabo-auth-jwt-seed"
_SEED_BYTES: Final = 32
_LEEWAY_S: Final = 30
"""By so much may the clock of another host that issues tokens differ from ours."""
_REQUIRED_CLAIMS: Final = ["iss", "aud", "sub", "email", "exp"]


class Ed25519UserTokens(UserTokens):
    """Signs with the key of the current secret; verifies with that and the previous one's.

    Making one takes 50 ms a key, and 16 MB meanwhile: scrypt is meant to be slow.
    """

    def __init__(self, current: Secret, previous: Secret | None, *, now: Callable[[], datetime]) -> None:
        self._now = now
        self._private_key = _private_key_of(current)
        keys = [self._private_key] if previous is None else [self._private_key, _private_key_of(previous)]
        self._public_keys = {_thumbprint(key.public_key()): key.public_key() for key in keys}
        self._kid = _thumbprint(self._private_key.public_key())

    def issue(self, user: User, expires_at: datetime) -> str:
        """See `UserTokens`."""
        claims = {
            "email": user.email,
            "sub": str(user.id),
            "iss": _ISSUER,
            "aud": _AUDIENCE,
            "iat": int(self._now().timestamp()),
            "exp": int(expires_at.timestamp()),
        }
        return jwt.encode(claims, self._private_key, algorithm=_ALGORITHM, headers={"kid": self._kid})

    def verify(self, token: str) -> User:
        """See `UserTokens`. The key is the one that the token's `kid` names, the algorithm is never the token's."""
        try:
            public_key = self._public_keys[jwt.get_unverified_header(token)["kid"]]
            claims = jwt.decode(
                token,
                public_key,
                algorithms=[_ALGORITHM],
                issuer=_ISSUER,
                audience=_AUDIENCE,
                leeway=_LEEWAY_S,
                options={"require": _REQUIRED_CLAIMS},
            )
            email = claims["email"]
            if not isinstance(email, str):
                raise TokenRefused("its claim `email` is no text")
            return User(UUID(claims["sub"]), email)
        except jwt.ExpiredSignatureError:
            raise TokenRefused("it has expired") from None
        except (jwt.InvalidTokenError, KeyError, ValueError):  # ValueError: `sub` is no UUID
            raise TokenRefused("it is not one of this api's") from None

    def jwks(self) -> Sequence[dict[str, str]]:
        """The public keys as JWKs (RFC 8037), the one that signs first."""
        return [
            {**_jwk(key), "kid": kid, "alg": _ALGORITHM, "use": "sig"}
            for kid, key in self._public_keys.items()
        ]


def _private_key_of(secret: Secret) -> Ed25519PrivateKey:
    seed = hashlib.scrypt(secret.reveal().encode(), salt=_SALT, n=16384, r=8, p=1, dklen=_SEED_BYTES)
    return Ed25519PrivateKey.from_private_bytes(seed)


def _jwk(key: Ed25519PublicKey) -> dict[str, str]:
    """The members that make the key what it is, in the order of their names."""
    return {"crv": "Ed25519", "kty": "OKP", "x": _base64url(key.public_bytes_raw())}


def _thumbprint(key: Ed25519PublicKey) -> str:
    """RFC 7638: the hash of the JWK's own members, without blanks and in order."""
    return _base64url(hashlib.sha256(json.dumps(_jwk(key), separators=(",", ":")).encode()).digest())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
