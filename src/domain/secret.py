"""A value that must not be seen."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Secret:
    """A key, token or password. `reveal()` is the only way to its text; repr and str hide it."""

    _text: str = field(repr=False)

    def reveal(self) -> str:
        """The text itself, for the one call that needs it."""
        return self._text

    def __str__(self) -> str:
        return "Secret(…)"

    def __repr__(self) -> str:
        return "Secret(…)"

    def __bool__(self) -> bool:
        return bool(self._text)
