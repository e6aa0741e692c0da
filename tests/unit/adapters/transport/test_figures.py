"""Figures by their JSON text."""

from decimal import Decimal

import msgspec
import pytest

from adapters.transport.figures import charge, count


@pytest.mark.parametrize(
    ("text", "usd"),
    [
        ("0", Decimal(0)), ("0.000051912", Decimal("0.000051912")), ("5.1e-7", Decimal("5.1e-7")),
        ("-0.0", Decimal(0)), ("1000000", Decimal(1_000_000)), ("1e-100", Decimal("1e-100")),
        ("1000000.01", None), ("-1", None), ("1e-101", None), ("1e-20000", None), ("0e-999999999", None),
        ("1e400", None), ("1" * 101, None), ("null", None), ('"0.1"', None), ("true", None), ("[1]", None),
    ],
)  # fmt: skip
def test_a_charge_is_a_number_that_a_price_can_make(text: str, usd: Decimal | None) -> None:
    assert charge(msgspec.Raw(text.encode())) == usd


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("12", 12),
        ("12.0", 12),
        ("1.2e1", 12),
        ("0", 0),
        ("-1", None),
        ("1.5", None),
        ("2147483648", None),
        ("null", None),
    ],
)
def test_a_count_is_a_whole_number(text: str, tokens: int | None) -> None:
    assert count(msgspec.Raw(text.encode())) == tokens
