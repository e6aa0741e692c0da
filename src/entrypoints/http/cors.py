"""CORS for the web app's origin, for routes: the framework's own is for all of them, and engines are no browsers."""

from typing import Final

from litestar.types import ASGIApp, Message, Receive, Scope, Send

_METHODS: Final = b"GET, POST, PUT, PATCH, DELETE"
_HEADERS: Final = b"Authorization, Content-Type, traceparent"
_MAX_AGE_S: Final = b"600"


def open_to_origin(app: ASGIApp, origin: str) -> ASGIApp:
    """A middleware for the routes that scripts of this origin may call."""
    allowed = [(b"access-control-allow-origin", origin.encode())]
    varies = (b"vary", b"Origin")
    preflight = [
        *allowed,
        varies,
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", _HEADERS),
        (b"access-control-max-age", _MAX_AGE_S),
    ]

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        is_let_in = headers.get(b"origin") == origin.encode()
        if is_let_in and scope.get("method") == "OPTIONS" and b"access-control-request-method" in headers:
            await send({"type": "http.response.start", "status": 204, "headers": preflight})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], varies, *(allowed if is_let_in else [])]
            await send(message)

        await app(scope, receive, send_marked)

    return wrapped
