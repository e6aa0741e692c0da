"""The estimate that needs no vocabulary: by the size of the text."""

from collections.abc import Sequence
from typing import Final

COUNTED_UP_TO_BYTES: Final = 256 * 1024
"""Texts of more UTF-8 bytes than this are estimated by their size (contract, section 6)."""

_BYTES_PER_TOKEN: Final = 3
_SLICE_CHARACTERS: Final = 1024 * 1024


def utf8_bytes(texts: Sequence[str]) -> int:
    """UTF-8 bytes of all the texts; a lone surrogate takes three, as any character of its range would."""
    return sum(len(text) if text.isascii() else _encoded_bytes(text) for text in texts)


def tokens_by_size(size_bytes: int) -> int:
    """Bytes ÷ 3, rounded up."""
    return -(-size_bytes // _BYTES_PER_TOKEN)


def _encoded_bytes(text: str) -> int:
    # In slices: encoding 20 million characters in one call keeps every other thread waiting for 0.2 s.
    starts = range(0, len(text), _SLICE_CHARACTERS)
    return sum(len(text[at : at + _SLICE_CHARACTERS].encode("utf-8", "surrogatepass")) for at in starts)
