"""Figures of an account, by their JSON text: a binary float would not be what was charged."""

from decimal import Decimal, InvalidOperation
from typing import Final

import msgspec

ABSENT: Final = msgspec.Raw(b"null")
"""For a figure that was not sent."""

_MAX_COUNT: Final = 2**31 - 1
_MAX_CHARGE_USD: Final = 1_000_000
_LONGEST_NUMBER: Final = 100
_MOST_DECIMALS: Final = 100


def charge(raw: msgspec.Raw) -> Decimal | None:
    """USD; None unless it is a JSON number from 0 to a million, with no more decimals than any price makes."""
    usd = _number(raw)
    if usd is None or not 0 <= usd <= _MAX_CHARGE_USD or int(usd.as_tuple().exponent) < -_MOST_DECIMALS:
        return None
    return usd.copy_abs()


def count(raw: msgspec.Raw) -> int | None:
    """Tokens; None for what cannot be a number of them."""
    number = _number(raw)
    if number is None or not 0 <= number <= _MAX_COUNT or number != int(number):
        return None
    return int(number)


def _number(raw: msgspec.Raw) -> Decimal | None:
    """A JSON number of a sane length; its syntax was checked when what holds it was read."""
    text = bytes(raw).decode("ascii", "replace").strip()
    if len(text) > _LONGEST_NUMBER or not text or text[0] not in "0123456789-":
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None
