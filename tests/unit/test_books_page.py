"""The page of the books lists the invariants that the audit checks."""

import re
from pathlib import Path

from adapters.postgres.invariants import INVARIANTS

PAGE = Path(__file__).parents[2] / "docs" / "books.md"


def test_each_invariant_stands_on_the_page_with_its_meaning() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert rows == [(invariant.name, invariant.meaning) for invariant in INVARIANTS]
