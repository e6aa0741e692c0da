"""Answers for what is not a turn: RFC 9457, `application/problem+json`."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, Receive, Scope, Send

MEDIA_TYPE: Final = b"application/problem+json"
RETRY_AFTER_S: Final = 2
"""What every 503 asks for."""


class Problem(msgspec.Struct, frozen=True):
    """The body of an answer that is no turn."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"


def problem_body(status: int, detail: str) -> bytes:
    """The JSON of a problem."""
    return msgspec.json.encode(Problem(HTTPStatus(status).phrase, status, detail))


def problem(status: int, detail: str, *, retry_after_s: int | None = None) -> ASGIApp:
    """An answer with this status. `detail` says what happened and what to do, and holds no secret."""
    body = problem_body(status, detail)
    headers = [
        (b"content-type", MEDIA_TYPE),
        (b"content-length", str(len(body)).encode()),
    ]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return answer


def problem_response(
    status: int, detail: str, *, headers: Mapping[str, str] | None = None
) -> Response[Problem]:
    """The same as `problem`, from a handler of the framework's."""
    body = Problem(HTTPStatus(status).phrase, status, detail)
    return Response(body, status_code=status, media_type=MEDIA_TYPE.decode(), headers=dict(headers or {}))


def internal_problem() -> Response[Problem]:
    """A fault of ours, before the head is out: where it is stands in the log."""
    return problem_response(500, "The api failed; its log says where.")


def framework_problem(_request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    """What a guard or the framework itself refuses: no such route, no such method."""
    return problem_response(error.status_code, error.detail)
