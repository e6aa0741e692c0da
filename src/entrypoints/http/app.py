"""The HTTP application: routes, guard, errors, health."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import structlog
from litestar import Litestar, Request, Response, get, post
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.params import FromPath
from litestar.types import ASGIApp

from entrypoints.background import (
    ask_for_the_truth,
    release_stray_holds,
    settle_for_the_dead,
    tell_of_audits,
)
from entrypoints.container import Container
from entrypoints.http.openapi import SECURITY, TurnOperation, TurnStreamOperation
from entrypoints.http.owners import owners_router
from entrypoints.http.presentations import Patience
from entrypoints.http.problems import Problem, framework_problem, internal_problem
from entrypoints.http.turns import TurnRoutes
from entrypoints.version import VERSION

_SETTLING_S: Final = 2.5
"""What settlements and decisions that turns have left behind may take at the end: the last of the 28 s for leaving."""

_log: Final = structlog.get_logger("brabo.http")


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None, None]:
    """Run it beside what happens inside, and end it then."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def create_app(container: Container, patience: Patience | None = None) -> Litestar:
    """The application over these parts; it opens them when it starts and closes them when it ends."""
    settings = container.settings()
    drain = container.drain()
    turns = TurnRoutes(
        pipeline=container.turn_pipeline(),
        accepts_token=container.service_tokens().accepts,
        drain=drain,
        patience=patience or Patience(),
        turn_ceiling_s=settings.turn_ceiling_s,
        stream_ceiling_s=settings.stream_ceiling_s,
    )

    @post(
        "/internal/sessions/{session_id:str}/llm-turn",
        status_code=200,
        operation_class=TurnOperation,
        summary="Run a turn",
        tags=["engines"],
    )
    async def llm_turn(session_id: FromPath[str]) -> ASGIApp:
        """One step of an agent's loop, answered as JSON."""
        return turns.json(session_id)

    @post(
        "/internal/sessions/{session_id:str}/llm-turn-stream",
        status_code=200,
        operation_class=TurnStreamOperation,
        summary="Run a turn, streamed",
        tags=["engines"],
    )
    async def llm_turn_stream(session_id: FromPath[str]) -> ASGIApp:
        """One step of an agent's loop, answered as server-sent events."""
        return turns.stream(session_id)

    @get("/healthz", summary="Alive", tags=["operators"])
    async def healthz() -> dict[str, str]:
        """Whether the process serves at all."""
        return {"status": "alive"}

    @get("/readyz", summary="Ready for turns", tags=["operators"])
    async def readyz() -> Response[dict[str, str]]:
        """Whether a turn sent now would be taken: 503 with a reason while draining, or without a current database."""
        if drain.has_begun:
            return Response({"status": "not ready", "reason": "draining"}, status_code=503)
        database = await container.database_readiness()
        if not database.is_ready:
            return Response({"status": "not ready", "reason": database.reason}, status_code=503)
        recorder = container.usage_recorder()
        if recorder.unkept:
            reason = f"{recorder.unkept} settlements are neither in the database nor on disk"
            return Response({"status": "not ready", "reason": reason}, status_code=503)
        return Response({"status": "ready"})

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None, None]:
        # Loading holds the interpreter's lock for half a second: before there is a turn that would notice.
        container.estimator().load()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(container.read_pool())
            await stack.enter_async_context(container.write_pool())
            await stack.enter_async_context(container.holds_pool())
            await stack.enter_async_context(container.owners_pool())
            await stack.enter_async_context(container.way_out())
            container.journal().open()
            stack.callback(container.journal().close)
            stack.push_async_callback(container.usage_recorder().close)
            await stack.enter_async_context(_running(container.turn_starts().run()))
            stack.push_async_callback(container.generation_records().close)
            await stack.enter_async_context(_running(settle_for_the_dead(container)))
            await stack.enter_async_context(_running(release_stray_holds(container)))
            await stack.enter_async_context(_running(tell_of_audits(container)))
            if settings.reconciles:
                await stack.enter_async_context(_running(ask_for_the_truth(container)))
            yield
            await asyncio.wait({asyncio.ensure_future(turns.pipeline.settled())}, timeout=_SETTLING_S)

    def unexpected(_: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
        container.telemetry().internal_failure(None, error)
        return internal_problem()

    return Litestar(
        route_handlers=[llm_turn, llm_turn_stream, healthz, readyz, owners_router(container)],
        lifespan=[lifespan],
        exception_handlers={HTTPException: framework_problem, Exception: unexpected},
        openapi_config=OpenAPIConfig(
            title="brabo-api",
            version=VERSION,
            description="The metered turn: one HTTP call for every step of an agent's loop.",
            path="/schema",
            components=SECURITY,
            render_plugins=[JsonRenderPlugin(path="/openapi.json")],
        ),
        logging_config=None,
        request_max_body_size=None,
    )
