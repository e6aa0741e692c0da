"""Characters that come in halves."""


def whole_characters(text: str) -> str:
    """The text with its surrogate pairs joined, and U+FFFD for a half that has no other."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Pieces:
    """Pieces of one text, some of which end in the first half of a surrogate pair: it waits for the next piece."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, piece: str) -> str:
        """What can be passed on now, possibly nothing."""
        if piece.isascii() and not self._half:
            return piece
        piece = self._half + piece
        self._half = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            piece, self._half = piece[:-1], piece[-1]
        return whole_characters(piece)

    def end(self) -> str:
        """What was still waiting."""
        half, self._half = self._half, ""
        return whole_characters(half)
