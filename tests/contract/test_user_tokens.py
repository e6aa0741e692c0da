"""What every adapter of the port UserTokens does."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from uuid import UUID

import pytest

from adapters.in_memory.user_tokens import InMemoryUserTokens
from adapters.security.user_token import Ed25519UserTokens
from adapters.system.clock import SystemClock
from application.ports.user_tokens import TokenRefused, UserTokens
from application.ports.users import User
from domain.secret import Secret

ANA = User(UUID("6f1c1d4e-2b1a-4f0e-9a55-0a6f2f5c7b10"), "Ana+ção@Example.com")

MakeTokens = Callable[[str], UserTokens]


@cache
def signed_tokens(secret: str) -> Ed25519UserTokens:
    return Ed25519UserTokens(Secret(secret), None, now=SystemClock().now)


@pytest.fixture(params=["in_memory", "ed25519"])
def make_tokens(request: pytest.FixtureRequest) -> MakeTokens:
    """Makes an adapter with a secret."""
    return (
        (lambda _: InMemoryUserTokens(SystemClock().now)) if request.param == "in_memory" else signed_tokens
    )


@pytest.fixture
def tokens(make_tokens: MakeTokens) -> UserTokens:
    return make_tokens("a-secret-of-this-test")


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


def test_what_was_issued_names_its_user(tokens: UserTokens) -> None:
    bia = User(UUID(int=7), "bia@example.com")

    assert tokens.verify(tokens.issue(ANA, soon())) == ANA
    assert tokens.verify(tokens.issue(bia, soon())) == bia


@pytest.mark.parametrize("age_s", [60, 3_600, 86_400])
def test_what_has_expired_is_refused_and_says_so(tokens: UserTokens, age_s: int) -> None:
    token = tokens.issue(ANA, datetime.now(UTC) - timedelta(seconds=age_s))

    with pytest.raises(TokenRefused, match="expired"):
        tokens.verify(token)


def test_a_token_of_another_secret_is_refused(make_tokens: MakeTokens, tokens: UserTokens) -> None:
    with pytest.raises(TokenRefused, match="not one of"):
        tokens.verify(make_tokens("another-secret").issue(ANA, soon()))


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.8, 1])
def test_an_altered_token_is_refused(tokens: UserTokens, part: float) -> None:
    altered = list(tokens.issue(ANA, soon()))
    place = round(part * (len(altered) - 1))
    altered[place] = "A" if altered[place] != "A" else "w"

    with pytest.raises(TokenRefused):
        tokens.verify("".join(altered))


@pytest.mark.parametrize(
    "shown",
    ["", ".", "..", "...", "a.b.c", "ção", "A" * 100_000, "\0", "e30.e30.", "bnVsbA.e30.AA", "W10.e30.AA"],
)
def test_anything_else_is_refused(tokens: UserTokens, shown: str) -> None:
    with pytest.raises(TokenRefused, match="not one of"):
        tokens.verify(shown)


def test_a_refusal_shows_nothing_of_the_token(tokens: UserTokens) -> None:
    token = tokens.issue(ANA, datetime.now(UTC) - timedelta(days=1))

    with pytest.raises(TokenRefused) as refused:
        tokens.verify(token)

    assert ANA.email not in str(refused.value)
    assert token[:20] not in str(refused.value)
