"""The owners' routes, family by family, and what is answered when one refuses. They translate; the use cases decide."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from litestar import Response, Router, get

from application.not_there import NotThere
from application.ports.database import DatabaseFailed
from application.ports.user_tokens import TokenRefused
from application.ports.users import UnknownUser
from application.require_role import NotAllowed
from entrypoints.container import Container
from entrypoints.http.budgets import budget_routes
from entrypoints.http.cors import open_to_origin
from entrypoints.http.openapi import JwksOperation
from entrypoints.http.owners_requests import AnyRequest
from entrypoints.http.problems import RETRY_AFTER_S, Problem, problem_response
from entrypoints.http.tool_router_switch import tool_router_routes
from entrypoints.http.tracing import continued_trace, log_ids
from entrypoints.http.wire import BadBody

_MAX_BODY_BYTES: Final = 64 * 1024

_log: Final = structlog.get_logger("brabo.http")


def owners_router(container: Container) -> Router:
    """The owners' routes over these parts."""
    tokens = container.user_tokens()

    @get(
        "/.well-known/jwks.json",
        operation_class=JwksOperation,
        summary="The keys of users' tokens",
        tags=["owners"],
    )
    async def jwks() -> dict[str, Sequence[dict[str, str]]]:
        """The public keys that verify users' tokens, as a JWK set (RFC 7517)."""
        return {"keys": tokens.jwks()}

    origin = container.settings().web_origin
    return Router(
        "/",
        route_handlers=[*tool_router_routes(container), *budget_routes(container), jwks],
        middleware=[] if origin is None else [partial(open_to_origin, origin=origin)],
        request_max_body_size=_MAX_BODY_BYTES,
        exception_handlers={
            TokenRefused: _refused_token,
            UnknownUser: _unknown_user,
            NotAllowed: _not_allowed,
            NotThere: _not_there,
            BadBody: _bad_body,
            DatabaseFailed: _database_failed,
        },
    )


def _refused_token(request: AnyRequest, error: TokenRefused) -> Response[Problem]:
    _log_refusal(request, 401, str(error))
    return problem_response(
        401,
        f"A user's token is needed, and there is none that can be used: {error}. Sign in again.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _unknown_user(request: AnyRequest, _: UnknownUser) -> Response[Problem]:
    return _refused_token(request, TokenRefused("its user is not there any more"))


def _not_allowed(request: AnyRequest, error: NotAllowed) -> Response[Problem]:
    _log_refusal(request, 403, str(error))
    return problem_response(403, str(error))


def _not_there(_: AnyRequest, error: NotThere) -> Response[Problem]:
    return problem_response(404, str(error))


def _bad_body(_: AnyRequest, error: BadBody) -> Response[Problem]:
    return problem_response(400, str(error))


def _database_failed(request: AnyRequest, error: DatabaseFailed) -> Response[Problem]:
    _log_refusal(request, 503, str(error))
    return problem_response(503, str(error), headers={"Retry-After": str(RETRY_AFTER_S)})


def _log_refusal(request: AnyRequest, status: int, reason: str) -> None:
    peer = request.client.host if request.client else None
    ids = log_ids(continued_trace(request.scope))
    _log.warning("owner_refused", status=status, reason=reason, path=request.scope["path"], peer=peer, **ids)
