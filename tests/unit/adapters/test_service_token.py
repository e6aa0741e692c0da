"""Which service tokens are accepted."""

import hmac

import pytest

from adapters.security.service_token import ServiceTokens
from domain.secret import Secret

CURRENT, PREVIOUS = "current-service-token", "previous-service-token"


@pytest.mark.parametrize("shown", [CURRENT, PREVIOUS, CURRENT.encode(), PREVIOUS.encode()], ids=repr)
def test_current_and_previous_are_accepted(shown: str | bytes) -> None:
    assert ServiceTokens(Secret(CURRENT), Secret(PREVIOUS)).accepts(shown)


def test_without_a_previous_token_only_the_current_one_is() -> None:
    tokens = ServiceTokens(Secret(CURRENT), None)

    assert tokens.accepts(CURRENT)
    assert not tokens.accepts(PREVIOUS)


@pytest.mark.parametrize(
    "shown",
    [None, "", b"", " ", CURRENT[:-1], CURRENT + "x", f" {CURRENT}", CURRENT.upper(), f"Bearer {CURRENT}",
     CURRENT + "\x00", "çurrent-service-token", "çurrent".encode(), b"\xff\xfe", "\ud800", f"{CURRENT}, {PREVIOUS}"],
    ids=repr,
)  # fmt: skip
def test_anything_else_is_not(shown: str | bytes | None) -> None:
    assert not ServiceTokens(Secret(CURRENT), Secret(PREVIOUS)).accepts(shown)


def test_a_token_that_was_never_set_is_no_way_in() -> None:
    tokens = ServiceTokens(Secret(""), Secret(""))

    assert not tokens.accepts("")
    assert not tokens.accepts(b"")


def test_a_token_that_is_not_ascii_matches_no_header() -> None:
    assert not ServiceTokens(Secret("çurrent"), None).accepts("çurrent")


def test_every_token_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare_digest = hmac.compare_digest

    def compare_and_note(shown: bytes, token: bytes) -> bool:
        compared.append(token)
        return compare_digest(shown, token)

    monkeypatch.setattr(hmac, "compare_digest", compare_and_note)

    assert ServiceTokens(Secret(CURRENT), Secret(PREVIOUS)).accepts(CURRENT)
    assert compared == [CURRENT.encode(), PREVIOUS.encode()]


def test_no_token_is_shown() -> None:
    assert CURRENT not in repr(ServiceTokens(Secret(CURRENT), None))
