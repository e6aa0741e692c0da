"""The token that engines show."""

import hmac

from domain.secret import Secret


class ServiceTokens:
    """The current service token and, while both ends rotate, the previous one: accepted, never sent."""

    def __init__(self, current: Secret, previous: Secret | None = None) -> None:
        self._accepted = [token.reveal().encode() for token in (current, previous) if token is not None]

    def accepts(self, value: str | bytes | None) -> bool:
        """Whether a header's value is one of the tokens. Missing, empty or not ASCII: no.

        How long it takes tells nothing of what is in the tokens, nor which of them it was.
        """
        if not value or not value.isascii():
            return False
        shown = value.encode("ascii") if isinstance(value, str) else value
        matches = [hmac.compare_digest(shown, token) for token in self._accepted]  # all of them, found or not
        return any(matches)
