"""Ids in paths and bodies."""

import re
from typing import Final
from uuid import UUID

# Python's own reader takes braces, prefixes and missing hyphens too.
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def uuid_in(text: str) -> UUID | None:
    """The id, in the form of RFC 9562; None for any other text."""
    return UUID(text) if _UUID.fullmatch(text) else None
