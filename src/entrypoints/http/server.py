"""Serving: uvicorn with our own drain, since its own closes the listener first (contract, section 2)."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import structlog
import uvicorn
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from entrypoints.container import Container
from entrypoints.drain import Drain
from entrypoints.http.app import create_app
from entrypoints.http.presentations import Patience
from entrypoints.http.problems import RETRY_AFTER_S, problem
from entrypoints.http.protocol import BoundedProtocol
from entrypoints.logs import configure_logs
from entrypoints.settings import Settings, SettingsError
from entrypoints.signals import leave_alone, when_told_to_leave

_KEPT_CONNECTION_S: Final = 630
"""Engines keep idle connections and never repeat a POST: 10 minutes at least, and more than a proxy in front of us."""
_LAST_CONNECTIONS_S: Final = 1
_BACKLOG: Final = 2048
_AT_ONCE_S: Final = 0.5
"""What turns have for an answer and a row after a second signal."""
_CUT_OFF_S: Final = 0.25
"""What a request that is cut off may take to notice, and its settlement to be taken."""
_LEFT_S: Final = 1.0
"""What may be left then has to end."""

_CUT_OFF: Final = (
    "This process had to end at once, and cut the request off: what it spent is in the ledger or the log."
)

_log: Final = structlog.get_logger("brabo.server")


class DrainingServer(uvicorn.Server):
    """A server that leaves as the contract has it; a second signal ends it at once, and no further one disturbs that.

    `settled` waits for the settlements that turns have left behind.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        settled: Callable[[], Awaitable[None]],
        *,
        grace_s: float,
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._settled = settled
        self._grace_s = grace_s
        self._drain_s = drain_s
        self._leaving: asyncio.Task[None] | None = None
        self._is_hurried = False
        self._forced = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to leave; nothing of it is left in the event loop then."""
        with self.capture_signals():
            await self._serve(sockets)
            await self._cut_off_requests()
            await _end_what_is_left()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take the signals that ask to leave for as long as it serves. Whoever has left is left alone."""
        loop = asyncio.get_running_loop()
        # Not by the loop, which would put back the default, death, while the process is still cleaning up.
        when_told_to_leave(lambda number: loop.call_soon_threadsafe(self.leave, number))
        try:
            yield
        finally:
            leave_alone()

    def leave(self, number: signal.Signals) -> None:
        """Begin to leave; called again, leave at once."""
        if self._leaving is None:
            # Someone at a terminal has no balancer that must notice first.
            grace_s = 0.0 if number is signal.SIGINT else self._grace_s
            _log.info("draining", signal=number.name, grace_s=grace_s, drain_s=self._drain_s)
            self._leaving = asyncio.create_task(self._leave_in_order(grace_s))
        elif not self._is_hurried:
            self._is_hurried = True
            _log.warning("ending_at_once", signal=number.name)
            self._leaving.cancel()
            self._leaving = asyncio.create_task(self._leave_at_once())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close in order; after a second signal, begin to and no more."""
        closing = asyncio.ensure_future(super().shutdown(sockets))
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait({closing, forced}, return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()
        if closing.done():
            closing.result()

    async def _leave_in_order(self, grace_s: float) -> None:
        await self._drain.run(grace_s=grace_s, drain_s=self._drain_s)
        self.should_exit = True

    async def _leave_at_once(self) -> None:
        await self._drain.end(_AT_ONCE_S)
        self.should_exit = self.force_exit = True
        self._forced.set()

    async def _cut_off_requests(self) -> None:
        left = list(self.server_state.tasks)
        for task in left:
            if not task.cancelling():
                task.cancel()
        # Settlements begin as their turns are cut off: a row is better than a line in the log.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CUT_OFF_S):
                await asyncio.gather(*left, return_exceptions=True)
                await self._settled()


async def _end_what_is_left() -> None:
    """Cancel every task until there is none.

    The end of the event loop looks once, and leaves what begins as others end: the settlement of a turn would neither
    become a row nor be told of.
    """
    ours = asyncio.current_task()
    cancelled: set[asyncio.Task[object]] = set()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEFT_S):
            while left := asyncio.all_tasks() - {ours}:
                for task in left - cancelled:
                    task.cancel()
                cancelled |= left
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)


def answering_to_the_end(app: ASGIApp, drain: Drain) -> ASGIApp:
    """Every answer that starts while draining says `Connection: close`: engines do not repeat a POST.

    A request that the end of the process cuts off is answered too, unless its head is out.
    """

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        has_head = False

        async def send_closing(message: Message) -> None:
            nonlocal has_head
            if drain.has_begun and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            has_head = True
            await send(message)

        try:
            await app(scope, receive, send_closing)
        except asyncio.CancelledError:
            if has_head or scope["type"] != ScopeType.HTTP:
                raise
            await problem(503, _CUT_OFF, retry_after_s=RETRY_AFTER_S)(scope, receive, send_closing)
            raise

    return wrapped


def make_server(container: Container, patience: Patience | None = None) -> DrainingServer:
    """The server of these parts, not yet listening."""
    settings, drain = container.settings(), container.drain()
    config = uvicorn.Config(
        answering_to_the_end(create_app(container, patience), drain),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEPT_CONNECTION_S,
        timeout_graceful_shutdown=_LAST_CONNECTIONS_S,
    )
    settled = container.turn_pipeline().settled
    return DrainingServer(config, drain, settled, grace_s=settings.drain_grace_s, drain_s=settings.drain_s)


def listen(settings: Settings) -> socket.socket:
    """The listening socket of these settings. Raises SettingsError when their address is not to be had."""
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"BRABO_HOST {settings.host} with BRABO_PORT {settings.port} is no address to listen on: {error.strerror}."
        ) from None


def serve(container: Container, listener: socket.socket) -> int:
    """Serve on the socket until told to leave; the process's exit status.

    Raises SettingsError when the metrics address is not to be had.
    """
    configure_logs()
    settings = container.settings()
    server = make_server(container)
    # What was made until now stays for ever: the collector need not look at it again and again, nor often.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    with contextlib.ExitStack() as stack:
        if settings.metrics_address is not None:
            try:
                stack.enter_context(container.telemetry().serve(*settings.metrics_address))
            except OSError as error:
                raise SettingsError(
                    f"BRABO_METRICS_ADDR is no address to listen on: {error.strerror}."
                ) from None
        server.run([listener])
    # Collecting what the whole process holds takes half a second of the few that are left before a kill.
    gc.freeze()
    return 0 if server.started else 1
