"""Tokens that are remembered instead of signed."""

import secrets
from collections.abc import Callable
from datetime import datetime

from application.ports.user_tokens import TokenRefused, UserTokens
from application.ports.users import User


class InMemoryUserTokens(UserTokens):
    """Verifies exactly the tokens that it issued itself."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._issued: dict[str, tuple[User, datetime]] = {}

    def issue(self, user: User, expires_at: datetime) -> str:
        token = secrets.token_urlsafe()
        self._issued[token] = user, expires_at.replace(microsecond=0)
        return token

    def verify(self, token: str) -> User:
        if token not in self._issued:
            raise TokenRefused("it is not one of this api's")
        user, expires_at = self._issued[token]
        if expires_at <= self._now():
            raise TokenRefused("it has expired")
        return user
