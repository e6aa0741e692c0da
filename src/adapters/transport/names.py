"""Names that other services give to things."""

import re
from typing import Final

_LONGEST: Final = 200
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


def storable_name(value: object) -> str | None:
    """A name fit to be stored: no NUL, no surrogate, 200 characters at most; None for what is no name."""
    if not isinstance(value, str):
        return None
    return _UNSTORABLE.sub("", value[: 2 * _LONGEST])[:_LONGEST] or None
