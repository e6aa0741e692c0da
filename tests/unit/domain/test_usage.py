from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.usage import Prices, TokenCounts, catalogue_cost_micros, decide_cost, implicit_cost, to_micros

PRICES = Prices(400_000, 1_600_000)


@pytest.mark.parametrize(
    ("usd", "micros"),
    [
        ("0", 0),
        ("0.0000004", 0),
        ("0.0000005", 1),
        ("0.0000015", 2),
        ("3.9e-6", 4),
        ("0.0008425", 843),
        ("0.0008424999", 842),
        ("1", 1_000_000),
        ("9999999.9999995", 10_000_000_000_000),
        ("0.00000049999999999999999999999999999999999999", 0),
        ("1000000.0000005000000000000000000000000000000001", 1_000_000_000_001),
        ("1e-99999", 0),
        ("1e9", 10**15),
    ],
)
def test_usd_becomes_micros_rounded_half_up(usd: str, micros: int) -> None:
    assert to_micros(Decimal(usd)) == micros


def test_the_catalogue_rounds_input_and_output_apart() -> None:
    # 1 token of 0.4 micro-USD and 1 of 1.6: rounded apart 0 + 2, rounded together 2
    assert catalogue_cost_micros(TokenCounts(1, 1), PRICES) == 2
    # 2 × 0.25 and 2 × 0.25: half up apart is 1 + 1, together it would be 1
    assert catalogue_cost_micros(TokenCounts(2, 2), Prices(250_000, 250_000)) == 2


def test_what_the_provider_says_it_charged_wins_and_the_catalogue_stands_beside_it() -> None:
    cost = decide_cost(TokenCounts(100, 10), PRICES, Decimal("0.0000821"))

    assert cost.micros == 82
    assert cost.is_implicit
    assert cost.prices.input_per_million_micros == cost.prices.output_per_million_micros == 745_455
    assert cost.catalogue_micros == 56
    assert cost.charged_usd == Decimal("0.0000821")


def test_unknown_is_the_catalogue_and_free_is_free() -> None:
    unknown = decide_cost(TokenCounts(100, 10), PRICES, None)
    free = decide_cost(TokenCounts(100, 10), PRICES, Decimal(0))

    assert (unknown.micros, unknown.is_implicit, unknown.catalogue_micros) == (56, False, None)
    assert (free.micros, free.is_implicit, free.catalogue_micros) == (0, True, 56)
    assert (unknown.charged_usd, free.charged_usd) == (None, Decimal(0))


def test_a_cost_without_tokens_stands_at_price_zero() -> None:
    cost = decide_cost(TokenCounts(0, 0), PRICES, Decimal("0.25"))

    assert (cost.micros, cost.prices) == (250_000, Prices(0, 0))


@pytest.mark.parametrize(
    ("charged", "is_kept"), [("4.2E-7", True), ("1E-100", True), ("1E-101", False), ("1E+3", True)]
)
def test_the_exact_cost_is_kept_unless_it_has_more_decimals_than_prices_have(
    charged: str, is_kept: bool
) -> None:
    cost = implicit_cost(TokenCounts(10, 0), Decimal(charged))

    assert str(cost.charged_usd) == (charged if is_kept else "None")


def half_up(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


@given(
    tokens_in=st.integers(0, 500_000),
    tokens_out=st.integers(1, 500_000),
    charged=st.decimals(0, 10_000, allow_nan=False, places=10),
)
def test_an_implicit_price_gives_its_cost_back(tokens_in: int, tokens_out: int, charged: Decimal) -> None:
    cost = decide_cost(TokenCounts(tokens_in, tokens_out), PRICES, charged)

    price = cost.prices.input_per_million_micros
    assert half_up((tokens_in + tokens_out) * price, 1_000_000) == cost.micros


@given(tokens=st.integers(1_000_001, 2**31 - 1), charged=st.decimals(0, 10_000, allow_nan=False, places=10))
def test_over_a_million_tokens_it_comes_near_as_promised(tokens: int, charged: Decimal) -> None:
    cost = decide_cost(TokenCounts(tokens, 0), PRICES, charged)

    again = half_up(tokens * cost.prices.input_per_million_micros, 1_000_000)
    assert abs(again - cost.micros) <= -(-tokens // 2_000_000)
