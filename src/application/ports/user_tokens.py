"""The tokens that users show."""

from datetime import datetime
from typing import Protocol

from application.ports.users import User


class TokenRefused(Exception):  # noqa: N818 - it names what happened
    """The token is none of ours, or no longer one. The text says which, and holds nothing of the token."""


class UserTokens(Protocol):
    """Signs tokens and checks them. What a user may do is not in them."""

    def issue(self, user: User, expires_at: datetime) -> str:
        """A token for this user, valid from now until that moment; its seconds are whole, and rounded down."""
        ...

    def verify(self, token: str) -> User:
        """The user as the token has it, who need not be there any more. Raises TokenRefused."""
        ...
