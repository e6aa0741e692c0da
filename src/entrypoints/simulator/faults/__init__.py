"""The table of named faults, and the notation that chooses from it: `name;param=value, other-name`."""

from typing import Any, Final

from entrypoints.simulator.faults.decisions import decisions_faults
from entrypoints.simulator.faults.errors import error_faults
from entrypoints.simulator.faults.fault import Arrival, Chosen, Fault, Kind, Scalar
from entrypoints.simulator.faults.refusals import refusals
from entrypoints.simulator.faults.stream import stream_faults
from entrypoints.simulator.faults.transport import transport_faults
from entrypoints.simulator.faults.usage import usage_faults

__all__ = ["FAULTS", "Arrival", "Chosen", "Fault", "Kind", "UnknownFaultError", "parse_faults"]

_ALL: Final = (
    *transport_faults(),
    *refusals(),
    *stream_faults(),
    *error_faults(),
    *usage_faults(),
    *decisions_faults(),
)
FAULTS: Final[dict[str, Fault]] = {fault.name: fault for fault in _ALL}
assert len(FAULTS) == len(_ALL), "two faults share a name"


class UnknownFaultError(ValueError):
    """A fault, parameter or value that is not in the table; the message says which and what there is."""


def parse_faults(notation: str) -> tuple[Chosen, ...]:
    """Reads `name;param=value, other-name`. `none` or nothing is no fault. UnknownFaultError."""
    names = [part.strip() for part in notation.split(",")]
    return tuple(_parse_one(part) for part in names if part and part != "none")


def _parse_one(notation: str) -> Chosen:
    name, *settings = [part.strip() for part in notation.split(";")]
    fault = FAULTS.get(name)
    if fault is None:
        raise UnknownFaultError(f"no fault is called {name!r}; GET /_faults lists them")
    parameters: dict[str, Any] = dict(fault.parameters)
    for setting in filter(None, settings):
        key, equals, text = setting.partition("=")
        if not equals or key not in parameters:
            known = ", ".join(parameters) or "none"
            raise UnknownFaultError(f"fault {name} has no parameter {key!r}; it has: {known}")
        parameters[key] = _typed(name, key, text, fault.parameters[key])
    return Chosen(fault, parameters)


def _typed(name: str, key: str, text: str, default: Scalar) -> Scalar:
    """The text as a value of the default's type. A numeric code stays a number, a word a string."""
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes")
    if isinstance(default, str):
        return text
    try:
        return type(default)(text)
    except ValueError:
        if key == "code":  # error codes come as words too
            return text
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise UnknownFaultError(f"fault {name}: {key} must be {kind}, not {text!r}") from None
