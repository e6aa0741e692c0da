"""The figures of the last measurements, in bench/results.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results.json")


def keep(figures: Mapping[str, Any], path: Path = RESULTS) -> None:
    """Put these in the place of those of the same names; the others stay."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(f"{json.dumps({**kept, **rounded(figures)}, indent=2)}\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Three decimals: more is noise."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    return round(value, 3) if isinstance(value, float) else value
