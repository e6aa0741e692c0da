"""The routes of a workspace's tool router."""

from typing import Final
from uuid import UUID

import msgspec
from litestar import Response, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from application.ports.workspaces import Workspace
from entrypoints.container import Container
from entrypoints.http.openapi import ReadToolRouterOperation, SwitchToolRouterOperation
from entrypoints.http.owners_requests import AnyRequest, caller_of, decoded, id_of

_LIKE: Final = '{"enabled": true} or {"enabled": false}'


class WireWorkspace(msgspec.Struct, frozen=True, rename="camel"):
    """A workspace and its router."""

    id: UUID
    name: str
    slug: str
    tool_router_enabled: bool


class _SwitchBody(msgspec.Struct, frozen=True):
    enabled: bool


def tool_router_routes(container: Container) -> list[HTTPRouteHandler]:
    """The routes over these parts."""
    tokens = container.user_tokens()
    read_tool_router = container.read_tool_router()
    switch_tool_router = container.switch_tool_router()

    @get(
        "/workspaces/{workspace_id:str}/tool-router",
        operation_class=ReadToolRouterOperation,
        summary="Read the tool router's switch",
        tags=["owners"],
    )
    async def read(request: AnyRequest, workspace_id: FromPath[str]) -> Response[WireWorkspace]:
        """Whether the workspace's tool router is on."""
        return _answer(await read_tool_router(caller_of(request, tokens), id_of(workspace_id)))

    @put(
        "/workspaces/{workspace_id:str}/tool-router",
        operation_class=SwitchToolRouterOperation,
        summary="Switch the tool router",
        tags=["owners"],
    )
    async def switch(request: AnyRequest, workspace_id: FromPath[str]) -> Response[WireWorkspace]:
        """Switch the workspace's tool router on or off, from the next step on."""
        user_id = caller_of(request, tokens)
        wanted = decoded(await request.body(), _SwitchBody, like=_LIKE)
        return _answer(await switch_tool_router(user_id, id_of(workspace_id), enabled=wanted.enabled))

    return [read, switch]


def _answer(workspace: Workspace) -> Response[WireWorkspace]:
    body = WireWorkspace(workspace.id, workspace.name, workspace.slug, workspace.is_tool_router_enabled)
    return Response(body, headers={"Cache-Control": "no-store"})
