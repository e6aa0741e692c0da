"""The pages say what the code does."""

import re
from pathlib import Path

from entrypoints import settings
from entrypoints.cli import main

DOCS = Path(__file__).parents[3] / "docs"


def test_every_variable_is_explained_and_no_other() -> None:
    in_code = set(re.findall(r'"((?:[A-Z]+_)+[A-Z]+)"', Path(settings.__file__).read_text(encoding="utf-8")))
    in_code |= {f"{name}_PREVIOUS" for name in settings.SECRET_NAMES}
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    explained = {name for cell in cells for name in re.findall(r"`([A-Z_]+)`", cell)}

    assert explained == in_code


def test_every_command_has_its_chapter() -> None:
    chapters = re.findall(r"(?m)^## `brabo (\w+)`$", (DOCS / "commands.md").read_text(encoding="utf-8"))

    assert sorted(chapters) == sorted(main._COMMANDS)
