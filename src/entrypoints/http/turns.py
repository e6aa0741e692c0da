"""The engines' two routes. They translate; `application.turn` decides."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
from litestar.types import ASGIApp, Receive, Scope, Send

from application.ports.turn_context import ContextUnavailable
from application.turn import BooksBehind, Turn, TurnPipeline, TurnRequest, UnknownSession
from entrypoints.drain import Drain, Place
from entrypoints.http.body import BodyTooLarge, ClientGone, TooLate, read_body
from entrypoints.http.ids import uuid_in
from entrypoints.http.presentations import Patience, present_json, present_stream
from entrypoints.http.problems import RETRY_AFTER_S, problem
from entrypoints.http.tracing import continued_trace, log_ids
from entrypoints.http.wire import BadBody, decode_turn, refuse_too_deep

_TOKEN_HEADER: Final = b"x-brabo-service-token"
_WRONG_TOKEN: Final = "The header X-Brabo-Service-Token is missing or wrong."
_LEAVING: Final = "This process is shutting down: send the turn again, to another one."

Presentation = Callable[[Turn, asyncio.Future[None], Patience, Receive, Send], Awaitable[None]]

_log: Final = structlog.get_logger("brabo.http")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRoutes:
    """Answers a turn's request, from its body to its last byte."""

    pipeline: TurnPipeline
    accepts_token: Callable[[bytes | None], bool]
    """Whether an engine's token is one of ours."""
    drain: Drain
    patience: Patience
    turn_ceiling_s: float
    stream_ceiling_s: float

    def json(self, session_id: str) -> ASGIApp:
        """`llm-turn`."""
        return self._route(session_id, self.turn_ceiling_s, present_json)

    def stream(self, session_id: str) -> ASGIApp:
        """`llm-turn-stream`."""
        return self._route(session_id, self.stream_ceiling_s, present_stream)

    def _route(self, session_id: str, ceiling_s: float, present: Presentation) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            started_s = self.pipeline.clock.monotonic()
            traceparent = continued_trace(scope)
            # Not a guard of the framework's: it makes a copy of the connection for each.
            if not self.accepts_token(dict(scope["headers"]).get(_TOKEN_HEADER)):
                peer = scope["client"][0] if scope["client"] else None
                _log.warning("service_token_refused", path=scope["path"], peer=peer, **log_ids(traceparent))
                await problem(403, _WRONG_TOKEN)(scope, receive, send)
                return
            with structlog.contextvars.bound_contextvars(**log_ids(traceparent)), self.drain.place() as place:
                try:
                    turn = await self._admit(session_id, started_s, ceiling_s, traceparent, place, receive)
                except ClientGone:
                    return
                except _Refused as refused:
                    _log.warning(
                        "turn_refused", status=refused.status, reason=refused.detail, path=scope["path"]
                    )
                    retry_after_s = RETRY_AFTER_S if refused.status == 503 else None
                    await problem(refused.status, refused.detail, retry_after_s=retry_after_s)(
                        scope, receive, send
                    )
                    return
                place.hold(turn)
                try:
                    await present(turn, place.ended, self.patience, receive, send)
                finally:
                    turn.close()

        return answer

    async def _admit(
        self,
        session_id: str,
        started_s: float,
        ceiling_s: float,
        traceparent: str | None,
        place: Place,
        receive: Receive,
    ) -> Turn:
        """Everything that can still be refused with a status."""
        try:
            received = await read_body(receive, place.ended)
            body = decode_turn(received)
            await refuse_too_deep(received)
            body_bytes = len(received)
            del received
        except TooLate:
            raise _Refused(503, _LEAVING) from None
        except BodyTooLarge:
            raise _Refused(413, "The body is over 32 MiB: send fewer or shorter messages.") from None
        except BadBody as error:
            raise _Refused(400, str(error)) from None
        if not place.is_taken:
            raise _Refused(503, _LEAVING)
        session, project = uuid_in(session_id), uuid_in(body.project_id)
        if session is None or project is None:
            raise _Refused(404, "There is no such session in that project: both ids are UUIDs.")
        request = TurnRequest(
            session_id=session,
            project_id=project,
            agent=body.agent_id or None,
            messages=body.messages,
            tools=body.tools or (),
            wants_whole_catalogue=body.catalogo_completo is True,
            started_s=started_s,
            ceiling_s=ceiling_s,
            body_bytes=body_bytes,
            traceparent=traceparent,
        )
        try:
            return await self.pipeline.admit(request)
        except UnknownSession:
            raise _Refused(404, "There is no such session in that project.") from None
        except ContextUnavailable as error:
            raise _Refused(503, f"The turn's context cannot be read: {error}") from None
        except BooksBehind as error:
            raise _Refused(503, f"The turn cannot be entered in the books: {error}") from None


class _Refused(Exception):  # noqa: N818 - it names what happened
    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
