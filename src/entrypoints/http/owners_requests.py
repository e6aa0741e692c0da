"""What the owners' routes read of a request: who calls, ids, bodies."""

import re
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID, uuid4

import msgspec
from litestar import Request

from application.ports.user_tokens import TokenRefused, UserTokens
from entrypoints.http.ids import uuid_in
from entrypoints.http.wire import BadBody

AnyRequest: TypeAlias = Request[Any, Any, Any]
_Body = TypeVar("_Body")

_BEARER: Final = re.compile(r"bearer +(\S+)", re.IGNORECASE)


def caller_of(request: AnyRequest, tokens: UserTokens) -> UUID:
    """Who calls, by the token alone; whether they are still there, the use case asks. Raises TokenRefused."""
    header = request.headers.get("authorization")
    if header is None:
        raise TokenRefused("it is missing")
    shown = _BEARER.fullmatch(header)
    if shown is None:
        raise TokenRefused("the header `Authorization` does not read `Bearer <token>`")
    return tokens.verify(shown[1]).id


def id_of(text: str) -> UUID:
    """An id in a path. Text that is no UUID is as unknown as an id that nobody has, and is answered alike."""
    return uuid_in(text) or uuid4()


def decoded(body: bytes, to: type[_Body], *, like: str) -> _Body:
    """The body. Raises BadBody, which says what it must be `like`, and why it is not."""
    try:
        body.decode()  # fields that are not read are not looked at
        return msgspec.json.decode(body, type=to)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except msgspec.DecodeError as error:
        reason = str(error)
    except RecursionError:
        reason = "it nests too deep"
    raise BadBody(f"The body must be {like}: {reason}.")
