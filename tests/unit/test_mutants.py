"""The named breaks still have something to break."""

from pathlib import Path

import pytest

from scripts.mutants import MUTANTS, Mutant

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_text_to_break_stands_in_its_file_once(mutant: Mutant) -> None:
    assert (SOURCE / mutant.file).read_text(encoding="utf-8").count(mutant.text) == 1
