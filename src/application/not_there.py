"""What somebody asked for, who may know, and is not there."""


class NotThere(Exception):  # noqa: N818 - it names what happened
    """The text says what is not there, and what to do about it."""
