"""What broke a connection."""

import errno
from enum import Enum, auto

import aiohttp

from adapters.transport.way_out import ConnectionBrokenError


class Break(Enum):
    """Kinds that call for different remedies."""

    NAME = auto()
    """The server's name has no address."""
    REFUSED = auto()
    TLS = auto()
    CUT = auto()
    """Reset or closed before the end of the answer."""
    NOT_HTTP = auto()
    OTHER = auto()


def break_of(broken: ConnectionBrokenError) -> Break:
    """The kind, from what the client said."""
    match broken.__cause__:
        case aiohttp.ClientConnectorDNSError() | UnicodeError():
            return Break.NAME
        case aiohttp.ClientSSLError():
            return Break.TLS
        case aiohttp.ClientConnectorError(errno=errno.ECONNREFUSED):
            return Break.REFUSED
        case aiohttp.ClientConnectorError(errno=number) if number != errno.ECONNRESET:
            return Break.OTHER
        case aiohttp.ClientOSError() | aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return Break.CUT
        case aiohttp.ClientResponseError():
            return Break.NOT_HTTP
        case _:
            return Break.OTHER
