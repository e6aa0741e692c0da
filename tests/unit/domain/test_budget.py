from typing import Any
from uuid import uuid4

import pytest

from domain.agents import area_of
from domain.budget import (
    Budget,
    BudgetPolicy,
    BudgetScope,
    crossed_thresholds,
    notified_after,
    refusing_budget,
)


def budget(**fields: Any) -> Budget:
    return Budget(**{"id": uuid4(), "scope": BudgetScope.PROJECT, **fields})


@pytest.mark.parametrize(
    ("limit", "spent", "policy", "is_spent"),
    [
        (100, 99, BudgetPolicy.BLOCK, False),
        (100, 100, BudgetPolicy.BLOCK, True),
        (100, 101, BudgetPolicy.BLOCK, True),
        (100, 1_000, BudgetPolicy.ALLOW, False),
        (0, 1_000, BudgetPolicy.BLOCK, False),
    ],
)
def test_block_refuses_from_the_whole_of_a_limit_on(
    limit: int, spent: int, policy: BudgetPolicy, is_spent: bool
) -> None:
    assert budget(limit_micros=limit, spent_micros=spent, policy=policy).is_spent is is_spent


def test_any_one_budget_refuses() -> None:
    free = budget(limit_micros=100, spent_micros=0)
    spent = budget(scope=BudgetScope.AREA, limit_micros=10, spent_micros=10)

    assert refusing_budget([free, spent]) is spent
    assert refusing_budget([free]) is None
    assert refusing_budget([]) is None


@pytest.mark.parametrize(
    ("spent", "limit", "last", "crossed"),
    [
        (69, 100, 0, ()),
        (70, 100, 0, (70,)),
        (89, 100, 70, ()),
        (90, 100, 70, (90,)),
        (100, 100, 0, (70, 90, 100)),
        (500, 100, 100, ()),
        (2, 3, 0, ()),
        (500, 0, 0, ()),
    ],
)
def test_each_threshold_is_crossed_once(spent: int, limit: int, last: int, crossed: tuple[int, ...]) -> None:
    assert crossed_thresholds(spent_micros=spent, limit_micros=limit, last_notified_percent=last) == crossed


@pytest.mark.parametrize(
    ("agent", "area"),
    [
        ("dev-lead", "dev"),
        ("dev-api", "dev"),
        ("dev-", "dev"),
        ("dev", None),
        ("qa", "qa"),
        ("qa-automacao", "qa"),
        ("qa-performance-seguranca", "qa"),
        ("qa-outra", None),
        ("infra", "infra"),
        ("infra-workflows", "infra"),
        ("infra-x", None),
        ("criativo", None),
        ("", None),
        (None, None),
    ],
)
def test_the_area_comes_from_the_slug(agent: str | None, area: str | None) -> None:
    assert area_of(agent) == area


@pytest.mark.parametrize(
    ("before", "after", "spent", "last", "then"),
    [
        (100, 200, 95, 90, 0),
        (100, 105, 95, 90, 90),
        (100, 130, 95, 90, 70),
        (100, 0, 95, 90, 0),
        (100, 101, 95, 0, 0),
        (100, 100, 10, 90, 90),
        (100, 50, 95, 70, 70),
        (0, 50, 95, 70, 70),
        (0, 0, 95, 70, 70),
    ],
)
def test_only_a_raised_limit_arms_thresholds_again(
    before: int, after: int, spent: int, last: int, then: int
) -> None:
    assert (
        notified_after(after, limit_before_micros=before, spent_micros=spent, last_notified_percent=last)
        == then
    )
