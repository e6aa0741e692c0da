"""What keeps a connection from coming about, in words that say what to do."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Trouble:
    """A reason and what to do about it: words of ours alone, with nothing in them of address, name or password."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.remedy}"


_KINDS: Final = (
    (
        ("SSL", "TLS", "certificate", "no encryption"),
        Trouble(
            "no connection over TLS as DATABASE_URL and the server want it",
            "see sslmode and sslrootcert there, and the certificate and pg_hba.conf of the server",
        ),
    ),
    (
        ("password authentication failed", "no password supplied"),
        Trouble(
            "the database refused the password",
            "correct user and password in DATABASE_URL, where their special characters are percent-encoded",
        ),
    ),
    (
        ("pg_hba.conf",),
        Trouble(
            "the database lets this user in from elsewhere only", "add a line to the server's pg_hba.conf"
        ),
    ),
    (
        ("FATAL:  role",),
        Trouble("the database has no such user", "create it, or correct the user in DATABASE_URL"),
    ),
    (
        ("FATAL:  database",),
        Trouble("the server has no such database", "create it, or correct its name in DATABASE_URL"),
    ),
    (
        ("Connection refused", "No such file or directory"),
        Trouble("connection refused", "start the server, or correct host and port in DATABASE_URL"),
    ),
    (
        ("failed to resolve host", "could not translate host name"),
        Trouble("the host has no address", "correct it in DATABASE_URL, or see what the name server says"),
    ),
    (
        ("timeout expired", "timed out", "No route to host", "Network is unreachable"),
        Trouble("the server does not answer", "see host and port in DATABASE_URL, and what lies in between"),
    ),
    (
        ("too many clients", "too many connections", "remaining connection slots"),
        Trouble(
            "the server has no connection left", "end programs that hold some, or raise its max_connections"
        ),
    ),
    (
        ("the database system is",),
        Trouble("the server is starting or stopping", "wait, and see its log if it stays so"),
    ),
)
"""By what stands in the error, first match first: until a connection is there, libpq gives no SQLSTATE."""


def trouble_in(error: BaseException) -> Trouble | None:
    """What an error of a connection that did not come about means; None for one that is not known."""
    text = str(error)
    for marks, trouble in _KINDS:
        if any(mark in text for mark in marks):
            return trouble
    return None
