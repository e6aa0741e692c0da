"""What can go wrong with the database while a command works with it."""


class DatabaseFailed(Exception):  # noqa: N818 - it names what happened
    """The database is out of reach, or refused a statement. The text says which and why, and holds no secret."""
