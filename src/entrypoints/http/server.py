"""Serving: uvicorn with our own drain, since its own closes the listener first (contract, section 2)."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Generator
from typing import Final

import structlog
import uvicorn
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from entrypoints.container import Container
from entrypoints.drain import Drain
from entrypoints.http.app import create_app
from entrypoints.http.presentations import Patience
from entrypoints.logs import configure_logs
from entrypoints.settings import Settings, SettingsError

_KEPT_CONNECTION_S: Final = 630
"""Engines keep idle connections and never repeat a POST: 10 minutes at least, and more than a proxy in front of us."""
_LAST_CONNECTIONS_S: Final = 1
_BACKLOG: Final = 2048
_CUT_OFF_S: Final = 0.5
"""What a request that is cut off may take to notice."""

_log: Final = structlog.get_logger("brabo.server")


class DrainingServer(uvicorn.Server):
    """A server that leaves as the contract has it; a second signal ends it at once."""

    def __init__(self, config: uvicorn.Config, drain: Drain, *, grace_s: float, drain_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._grace_s = grace_s
        self._drain_s = drain_s
        self._draining: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Take SIGTERM and SIGINT for the loop's lifetime."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def leave(self, number: signal.Signals) -> None:
        """Begin to leave; called again, leave at once."""
        if self._draining is not None:
            _log.warning("ending_at_once", signal=number.name)
            self.should_exit = self.force_exit = True
            for task in self.server_state.tasks:
                task.cancel()
            return
        # Someone at a terminal has no balancer that must notice first.
        grace_s = 0.0 if number is signal.SIGINT else self._grace_s
        _log.info("draining", signal=number.name, grace_s=grace_s, drain_s=self._drain_s)
        self._draining = asyncio.create_task(self._leave_in_order(grace_s))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; after a second signal, with the requests that came since then cut off too."""
        await super().shutdown(sockets)
        left = list(self.server_state.tasks)
        if self.force_exit and left:
            # Here, and not with the rest of the loop's tasks: a turn that is cut off begins its settlement only then,
            # which the end of the loop must find among its tasks to have it told of.
            for task in left:
                if not task.cancelling():
                    task.cancel()
            await asyncio.wait(left, timeout=_CUT_OFF_S)

    async def _leave_in_order(self, grace_s: float) -> None:
        await self._drain.run(grace_s=grace_s, drain_s=self._drain_s)
        self.should_exit = True


def closing_while_draining(app: ASGIApp, drain: Drain) -> ASGIApp:
    """Every answer that starts while draining says `Connection: close`: engines do not repeat a POST."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_closing(message: Message) -> None:
            if drain.has_begun and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_closing)

    return wrapped


def make_server(container: Container, patience: Patience | None = None) -> DrainingServer:
    """The server of these parts, not yet listening."""
    settings, drain = container.settings(), container.drain()
    config = uvicorn.Config(
        closing_while_draining(create_app(container, patience), drain),
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEPT_CONNECTION_S,
        timeout_graceful_shutdown=_LAST_CONNECTIONS_S,
    )
    return DrainingServer(config, drain, grace_s=settings.drain_grace_s, drain_s=settings.drain_s)


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
