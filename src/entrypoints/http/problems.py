"""Answers for what is not a turn: RFC 9457, `application/problem+json`."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive, Scope, Send

_MEDIA_TYPE: Final = "application/problem+json"


class Problem(msgspec.Struct, frozen=True):
    """The body of an answer that is no turn."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


def problem(status: int, detail: str, *, retry_after_s: int | None = None) -> ASGIApp:
    """An answer with this status. `detail` says what happened and what to do, and holds no secret."""
    body = msgspec.json.encode(Problem(HTTPStatus(status).phrase, status, detail))
    headers = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


def internal_problem() -> Response[Problem]:
    """A fault of ours, before the head is out: where it is stands in the log."""
    detail = "The api failed; its log says where."
    return Response(Problem("Internal Server Error", 500, detail), status_code=500, media_type=_MEDIA_TYPE)


def framework_problem(_request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """What a guard or the framework itself refuses: no such route, no such method."""
    body = Problem(HTTPStatus(error.status_code).phrase, error.status_code, error.detail)
    return Response(body, status_code=error.status_code, media_type=_MEDIA_TYPE)
