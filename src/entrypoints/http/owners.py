"""The owners' routes. They translate; the use cases decide."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec
import structlog
from litestar import Request, Response, Router, get, put
from litestar.params import FromPath

from application.ports.database import DatabaseFailed
from application.ports.user_tokens import TokenRefused
from application.ports.users import UnknownUser
from application.ports.workspaces import Workspace
from application.require_role import NotAllowed
from entrypoints.container import Container
from entrypoints.http.cors import open_to_origin
from entrypoints.http.openapi import JwksOperation, ReadToolRouterOperation, SwitchToolRouterOperation
from entrypoints.http.problems import Problem, problem_response
from entrypoints.http.tracing import continued_trace, log_ids

_MAX_BODY_BYTES: Final = 64 * 1024
_RETRY_AFTER_S: Final = 2
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_BEARER: Final = re.compile(r"bearer +(\S+)", re.IGNORECASE)

_AnyRequest = Request[Any, Any, Any]

_log: Final = structlog.get_logger("brabo.http")


class WireWorkspace(msgspec.Struct, frozen=True, rename="camel"):
    """A workspace and its router."""

    id: UUID
    name: str
    slug: str
    tool_router_enabled: bool


class _SwitchBody(msgspec.Struct, frozen=True):
    enabled: bool


class _BadBody(Exception):  # noqa: N818 - it names what happened
    """The body does not decode. The text says why, and holds nothing of it."""


def owners_router(container: Container) -> Router:
    """The owners' routes over these parts."""
    tokens = container.user_tokens()
    read_tool_router = container.read_tool_router()
    switch_tool_router = container.switch_tool_router()

    def caller_of(request: _AnyRequest) -> UUID:
        """Who calls, by the token alone; whether they are still there, the use case asks."""
        header = request.headers.get("authorization")
        if header is None:
            raise TokenRefused("it is missing")
        shown = _BEARER.fullmatch(header)
        if shown is None:
            raise TokenRefused("the header `Authorization` does not read `Bearer <token>`")
        return tokens.verify(shown[1]).id

    @get(
        "/workspaces/{workspace_id:str}/tool-router",
        operation_class=ReadToolRouterOperation,
        summary="Read the tool router's switch",
        tags=["owners"],
    )
    async def read(request: _AnyRequest, workspace_id: FromPath[str]) -> Response[WireWorkspace]:
        """Whether the workspace's tool router is on."""
        workspace = await read_tool_router(caller_of(request), _id_of(workspace_id))
        return _answer(workspace)

    @put(
        "/workspaces/{workspace_id:str}/tool-router",
        operation_class=SwitchToolRouterOperation,
        summary="Switch the tool router",
        tags=["owners"],
    )
    async def switch(request: _AnyRequest, workspace_id: FromPath[str]) -> Response[WireWorkspace]:
        """Switch the workspace's tool router on or off, from the next step on."""
        user_id = caller_of(request)
        wanted = _switch_of(await request.body())
        workspace = await switch_tool_router(user_id, _id_of(workspace_id), enabled=wanted.enabled)
        return _answer(workspace)

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
        route_handlers=[read, switch, jwks],
        middleware=[] if origin is None else [partial(open_to_origin, origin=origin)],
        request_max_body_size=_MAX_BODY_BYTES,
        exception_handlers={
            TokenRefused: _refused_token,
            UnknownUser: _unknown_user,
            NotAllowed: _not_allowed,
            _BadBody: _bad_body,
            DatabaseFailed: _database_failed,
        },
    )


def _id_of(text: str) -> UUID:
    """The workspace's id. Text that is no UUID is as unknown as an id that nobody has, and is answered alike."""
    return UUID(text) if _UUID.fullmatch(text) else uuid4()


def _switch_of(body: bytes) -> _SwitchBody:
    try:
        return msgspec.json.decode(body, type=_SwitchBody)
    except msgspec.DecodeError as error:
        reason = str(error)
    except RecursionError:
        reason = "it nests too deep"
    raise _BadBody(f'The body must be {{"enabled": true}} or {{"enabled": false}}: {reason}.')


def _answer(workspace: Workspace) -> Response[WireWorkspace]:
    body = WireWorkspace(workspace.id, workspace.name, workspace.slug, workspace.is_tool_router_enabled)
    return Response(body, headers={"Cache-Control": "no-store"})


def _refused_token(request: _AnyRequest, error: TokenRefused) -> Response[Problem]:
    _log_refusal(request, 401, str(error))
    return problem_response(
        401,
        f"A user's token is needed, and there is none that can be used: {error}. Sign in again.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _unknown_user(request: _AnyRequest, _: UnknownUser) -> Response[Problem]:
    return _refused_token(request, TokenRefused("its user is not there any more"))


def _not_allowed(request: _AnyRequest, error: NotAllowed) -> Response[Problem]:
    _log_refusal(request, 403, str(error))
    return problem_response(403, str(error))


def _bad_body(_: _AnyRequest, error: _BadBody) -> Response[Problem]:
    return problem_response(400, str(error))


def _database_failed(request: _AnyRequest, error: DatabaseFailed) -> Response[Problem]:
    _log_refusal(request, 503, str(error))
    return problem_response(503, str(error), headers={"Retry-After": str(_RETRY_AFTER_S)})


def _log_refusal(request: _AnyRequest, status: int, reason: str) -> None:
    peer = request.client.host if request.client else None
    ids = log_ids(continued_trace(request.scope))
    _log.warning("owner_refused", status=status, reason=reason, path=request.scope["path"], peer=peer, **ids)
