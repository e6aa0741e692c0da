"""How a question meets its connection: the one deadline, what is sent and how often, what is said of a failure."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal

import pytest
import structlog

from adapters.in_memory.clock import ManualClock
from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.jev import JevToolRouter
from adapters.metrics.telemetry import PrometheusTelemetry
from adapters.transport.way_out import WayOut
from application.ports.token_estimator import TokenEstimator
from domain.routing import Choice, Fallback, FallbackReason, Verdict
from domain.secret import Secret
from domain.step import Step
from domain.usage import TokenCounts
from tests.support.raw_upstream import Act, RawUpstream, Wire, chunked, head, whole
from tests.support.steps import ATool, Said, a_step

KEY = Secret("sk-or-v1-0123456789abcdef")
ANSWER = (
    b'{"answers": {"ferramenta_do_passo": {"type": "choice", "choice": "ler"}},'
    b' "usage": {"input_tokens": 10, "output_tokens": 0, "cost": 0.00000042}}'
)
GOOD = whole(ANSWER, content_type="application/json")
TIMEOUT = Fallback(FallbackReason.TIMEOUT, "sem a resposta inteira em 300 ms")


class Asker:
    """A router with a clock that stands still and metrics of its own."""

    def __init__(
        self,
        url: str,
        way_out: WayOut,
        *,
        timeout_s: float = 0.3,
        estimator: TokenEstimator | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.telemetry = PrometheusTelemetry()
        self.router = JevToolRouter(
            f"{url}/api/alpha/decisions",
            way_out,
            estimator or WordTokenEstimator(),
            self.clock,
            timeout_s=timeout_s,
            on_decision=self.telemetry.router_decided,
            on_unseen_charge=self.telemetry.router_charge_unseen,
            on_circuits_open=self.telemetry.router_circuits_open,
        )

    async def ask(self, step: Step | None = None, key: Secret = KEY) -> Verdict:
        prepared = await self.router.prepare(step or a_step(), key)
        return Verdict(prepared) if isinstance(prepared, Fallback) else await prepared.ask()

    def counted(self, name: str, **labels: str) -> float | None:
        return self.telemetry.registry.get_sample_value(f"brabo_router_{name}", labels)


@pytest.fixture
async def upstream() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as running:
        yield running


@pytest.fixture
async def way_out() -> AsyncIterator[WayOut]:
    async with WayOut() as opened:
        yield opened


async def test_what_goes_out(upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    upstream.will(whole(ANSWER, Set_Cookie="a=b"), GOOD)
    asker = Asker(upstream.url, way_out)
    await asker.ask()
    await asker.ask(a_step(messages=[Said("user", "ação 😊")]))

    request = upstream.requests[1]
    assert request.line == "POST /api/alpha/decisions HTTP/1.1"
    assert request.headers == {
        "host": upstream.url.removeprefix("http://"),
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "accept": "application/json",
        "accept-encoding": "identity",
        "user-agent": "brabo-api",
        "authorization": "Bearer sk-or-v1-0123456789abcdef",
    }
    assert request.json()["state"]["pedido"] == "ação 😊"
    assert request.connection == 1


async def silent(wire: Wire) -> None:
    await wire.gone()


async def head_only(wire: Wire) -> None:
    await wire.send(head(content_type="application/json"))
    await wire.gone()


async def dripping(wire: Wire) -> None:
    await wire.send(head(content_type="application/json"))
    await wire.send(*(chunked(b" ", is_ended=False) for _ in range(1_000)), pause_s=0.02)


async def dripping_head(wire: Wire) -> None:
    await wire.send(*(b"%c" % byte for byte in b"HTTP/1.1 200 OK\r\nX-A: " + b"x" * 1_000), pause_s=0.02)


@pytest.mark.parametrize("act", [silent, head_only, dripping, dripping_head])
async def test_one_deadline_covers_the_whole_exchange(
    upstream: RawUpstream, way_out: WayOut, act: Act
) -> None:
    gone = asyncio.Event()

    async def watched(wire: Wire) -> bool:
        try:
            await act(wire)
        finally:
            gone.set()
        return False

    upstream.will(watched)
    asker = Asker(upstream.url, way_out)
    async with asyncio.timeout(2):
        verdict = await asker.ask()
        await gone.wait()  # it was left, and not only no longer waited for

    assert verdict.outcome == TIMEOUT
    assert 300 <= verdict.latency_ms < 1_000
    assert asker.counted("charges_unseen_total") == 1


async def test_a_server_that_does_not_take_the_connection_is_a_timeout(way_out: WayOut) -> None:
    """Its queue is full: the connection is neither made nor refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        await asyncio.sleep(0.05)
        asker = Asker(f"http://127.0.0.1:{port}", way_out)
        async with asyncio.timeout(2):
            verdict = await asker.ask()
        for filler in fillers:
            filler.close()

    assert verdict.outcome == TIMEOUT
    assert asker.counted("charges_unseen_total") == 0  # nothing was sent


async def test_a_cost_that_came_before_the_end_is_not_lost(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(ANSWER[:-1], is_ended=False))
        await wire.gone()

    upstream.will(act)
    asker = Asker(upstream.url, way_out)
    verdict = await asker.ask()

    assert verdict.outcome == TIMEOUT
    assert verdict.spend is not None
    assert verdict.spend.charged_usd == Decimal("0.00000042")
    assert asker.counted("charges_unseen_total") == 0


LATE_COST = b'{"padding": "' + b" " * 2**21 + b'", ' + ANSWER[1:]
NO_COST = b'{"answers": {"ferramenta_do_passo": {"type": "choice", "choice": "%s"}}, "usage": {}}'


@pytest.mark.parametrize(
    ("act", "unseen"),
    [
        (whole(LATE_COST), 1),
        (whole(ANSWER, Content_Encoding="gzip"), 1),
        (whole(b"<html>"), 1),
        (whole(b'{"error": {"code": 500}}'), 1),
        (whole(NO_COST % b"ler"), 0),
        (whole(NO_COST % b"outra"), 0),
        (whole(ANSWER), 0),
        (whole(b'{"answers": 7, ' + ANSWER[1:]), 0),
        (whole(b"", "400 Bad Request"), 0),
        (whole(b"", "500 Internal Server Error"), 0),
    ],
    ids=["a cost beyond 1 MiB", "encoded", "a page", "an error", "without a cost", "not offered and without a cost",
         "with a cost", "twice", "refused", "failed"],
)  # fmt: skip
async def test_what_may_have_cost_something_unseen_is_counted(
    upstream: RawUpstream, way_out: WayOut, act: Act, unseen: int
) -> None:
    upstream.will(act)
    asker = Asker(upstream.url, way_out, timeout_s=5)
    await asker.ask()

    assert asker.counted("charges_unseen_total") == unseen


async def endless_refusal(wire: Wire) -> None:
    await wire.send(head("502 Bad Gateway") + chunked(ANSWER, is_ended=False))
    await wire.gone()


async def vast_refusal(wire: Wire) -> None:
    await wire.send(head("500 Internal Server Error") + chunked(ANSWER, is_ended=False))
    for _ in range(2_000):
        await wire.send(chunked(b" " * 100_000, is_ended=False))


@pytest.mark.parametrize(
    "act",
    [whole(ANSWER, "400 Bad Request"), whole(ANSWER, "529 Overloaded"), endless_refusal, vast_refusal],
    ids=["400", "529", "endless", "vast"],
)
async def test_a_refusal_that_names_a_cost_is_spend(upstream: RawUpstream, way_out: WayOut, act: Act) -> None:
    upstream.will(act)
    asker = Asker(upstream.url, way_out, timeout_s=1)
    async with asyncio.timeout(3):
        verdict = await asker.ask()

    assert isinstance(verdict.outcome, Fallback)
    assert verdict.outcome.reason is FallbackReason.HTTP_ERROR
    assert verdict.spend is not None
    assert verdict.spend.charged_usd == Decimal("0.00000042")
    assert asker.counted("charges_unseen_total") == 0


class BrokenEstimator(TokenEstimator):
    async def count(self, texts: Sequence[str]) -> int:
        raise RuntimeError(texts[0])


async def test_a_count_that_fails_loses_neither_choice_nor_charge(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    upstream.will(whole(ANSWER.replace(b'"input_tokens": 10,', b"")))
    asker = Asker(upstream.url, way_out, estimator=BrokenEstimator())
    with structlog.testing.capture_logs() as logs:
        verdict = await asker.ask()

    assert verdict.outcome == Choice("ler")
    assert verdict.spend is not None
    assert verdict.spend.charged_usd == Decimal("0.00000042")
    assert verdict.spend.is_estimated
    assert verdict.spend.tokens == TokenCounts(-(-len(upstream.requests[0].body) // 3), 0)
    assert logs == [{"event": "token_count_failed", "log_level": "warning", "error": "RuntimeError"}]


class EndlessEstimator(TokenEstimator):
    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def count(self, texts: Sequence[str]) -> int:
        self.is_asked.set()
        await asyncio.Event().wait()
        return 0


async def test_the_end_while_tokens_are_counted_says_what_was_charged(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    upstream.will(whole(ANSWER.replace(b'"input_tokens": 10,', b"")))
    estimator = EndlessEstimator()
    asker = Asker(upstream.url, way_out, estimator=estimator)
    with structlog.testing.capture_logs() as logs:
        asking = asyncio.create_task(asker.ask())
        async with asyncio.timeout(5):
            await estimator.is_asked.wait()
        asking.cancel()
        await asyncio.wait([asking])

    assert asking.cancelled()
    assert asker.counted("charges_unseen_total") == 1
    assert [(line["event"], Decimal(line["charged_usd"])) for line in logs] == [
        ("decision_cut", Decimal("0.00000042"))
    ]


async def test_a_redirect_is_not_followed(upstream: RawUpstream, way_out: WayOut) -> None:
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"):
        upstream.will(whole(b"", status, Location=f"{upstream.url}/elsewhere"), GOOD)
        requests = len(upstream.requests)
        verdict = await Asker(upstream.url, way_out).ask()

        assert verdict.outcome == Fallback(FallbackReason.HTTP_ERROR, f"HTTP {status[:3]}")
        assert len(upstream.requests) == requests + 1
        upstream._acts.clear()


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "299 Odd"])
async def test_any_good_status_is_an_answer(upstream: RawUpstream, way_out: WayOut, status: str) -> None:
    upstream.will(whole(ANSWER, status))

    assert (await Asker(upstream.url, way_out).ask()).outcome == Choice("ler")


async def test_an_encoded_answer_is_not_undone(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(whole(ANSWER, Content_Encoding="gzip"), whole(ANSWER, Content_Encoding="identity"))
    asker = Asker(upstream.url, way_out)

    first, second = await asker.ask(), await asker.ask()

    assert isinstance(first.outcome, Fallback)
    assert first.outcome.reason is FallbackReason.INVALID_ANSWER
    assert second.outcome == Choice("ler")


async def test_a_404_that_never_ends_is_a_404(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head("404 Not Found") + chunked(b'{"error": {"message": "No allowed', is_ended=False))
        await wire.gone()

    upstream.will(act)
    asker = Asker(upstream.url, way_out)

    assert (await asker.ask()).outcome == Fallback(FallbackReason.HTTP_ERROR, "HTTP 404")
    assert asker.counted("charges_unseen_total") == 0


async def test_a_body_of_gigabytes_is_not_read(upstream: RawUpstream, way_out: WayOut) -> None:
    sent_bytes = 0

    async def act(wire: Wire) -> None:
        nonlocal sent_bytes
        await wire.send(head())
        for _ in range(2_000):
            await wire.send(chunked(b" " * 100_000, is_ended=False))
            sent_bytes += 100_000

    upstream.will(act)
    verdict = await Asker(upstream.url, way_out, timeout_s=5).ask()

    assert verdict.outcome == Fallback(FallbackReason.INVALID_ANSWER, "mais de 1 MiB")
    await asyncio.sleep(0.05)
    assert sent_bytes < 20_000_000


async def hang_up(_wire: Wire) -> None:
    return


async def reset(wire: Wire) -> None:
    wire.reset()


@pytest.mark.parametrize("act", [hang_up, reset])
async def test_a_request_that_was_written_is_not_sent_again(
    upstream: RawUpstream, way_out: WayOut, act: Act
) -> None:
    upstream.will(GOOD, act, GOOD)
    asker = Asker(upstream.url, way_out)
    await asker.ask()
    verdict = await asker.ask()

    assert verdict.outcome == Fallback(FallbackReason.NETWORK_ERROR, "conexão interrompida")
    assert [request.connection for request in upstream.requests] == [1, 1]
    assert asker.counted("charges_unseen_total") == 1


async def test_refused(way_out: WayOut) -> None:
    asker = Asker("http://127.0.0.1:9", way_out)
    verdict = await asker.ask()

    assert verdict.outcome == Fallback(FallbackReason.NETWORK_ERROR, "conexão recusada")
    assert asker.counted("charges_unseen_total") == 0


async def test_a_name_without_an_address(way_out: WayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError(-2, "Name or service not known")

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", fail)
    monkeypatch.setattr("aiohttp.connector.DefaultResolver.resolve", fail)
    verdict = await Asker("http://no-such-host.invalid", way_out, timeout_s=5).ask()

    assert verdict.outcome == Fallback(
        FallbackReason.NETWORK_ERROR, "o nome do servidor não tem endereço (DNS)"
    )


@pytest.mark.parametrize("host", ["a..b", "a" * 70 + ".invalid"])
async def test_a_host_that_can_be_no_name(way_out: WayOut, host: str) -> None:
    verdict = await Asker(f"http://{host}", way_out, timeout_s=5).ask()

    assert verdict.outcome == Fallback(
        FallbackReason.NETWORK_ERROR, "o nome do servidor não tem endereço (DNS)"
    )


async def test_a_server_that_speaks_no_tls(way_out: WayOut) -> None:
    async def answer_in_the_clear(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer_in_the_clear, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        verdict = await Asker(f"https://127.0.0.1:{port}", way_out, timeout_s=5).ask()

    assert verdict.outcome == Fallback(FallbackReason.NETWORK_ERROR, "a conexão segura falhou (TLS)")


async def test_a_kept_connection_found_closed_before_a_byte_was_written_is_replaced(way_out: WayOut) -> None:
    """The peer's end is a plain socket, closed between two steps of the loop: it is noticed after the connection was
    taken from the pool and before the request is written to it."""
    kept: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        received = b""
        while b'"responder_sem_ferramenta":' not in received:
            received += peer.recv(65536)
        peer.sendall(head() + chunked(ANSWER))
        kept.append(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asker = Asker(f"http://127.0.0.1:{listener.getsockname()[1]}", way_out, timeout_s=5)
        questions = [await asker.router.prepare(a_step(), KEY) for _ in range(2)]
        for question in questions:
            assert not isinstance(question, Fallback)
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            asking = asyncio.create_task(question.ask())
            verdict = await asking
            await asyncio.to_thread(thread.join)
            assert verdict.outcome == Choice("ler")
            await asyncio.sleep(0.02)
            kept[-1].close()
    assert len(kept) == 2


async def test_a_cancelled_question_closes_the_socket_at_once_and_may_have_cost_something(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    gone: list[float] = []

    async def act(wire: Wire) -> None:
        gone.append(await wire.gone())

    upstream.will(act)
    asker = Asker(upstream.url, way_out, timeout_s=5)
    asking = asyncio.create_task(asker.ask())
    await asyncio.sleep(0.1)
    left_s = asyncio.get_running_loop().time()
    asking.cancel()
    await asyncio.wait([asking])
    await asyncio.sleep(0.05)

    assert asking.cancelled()
    assert gone[0] - left_s < 0.05
    assert asker.counted("charges_unseen_total") == 1


DOWN = whole(b"", "503 Service Unavailable")
REFUSED = whole(b"", "429 Too Many Requests")
NONSENSE = whole(b"{}")
OPEN = "circuit_open"


async def test_five_failures_in_a_row_and_it_is_not_asked_for_thirty_seconds(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    upstream.will(DOWN, hang_up, DOWN, silent, DOWN, DOWN, GOOD, GOOD)
    asker = Asker(upstream.url, way_out)
    for _ in range(5):
        assert (await asker.ask()).latency_ms > 0
    assert asker.counted("circuits_open") == 1

    closed = await asker.ask()
    assert closed == Verdict(Fallback(FallbackReason.HTTP_ERROR, OPEN))
    assert (await asker.ask(key=Secret("sk-or-v1-other"))).outcome != closed.outcome
    assert len(upstream.requests) == 6

    asker.clock.advance(30)
    assert [(await asker.ask()).outcome for _ in range(2)] == [Choice("ler")] * 2
    assert asker.counted("circuits_open") == 0
    assert asker.counted("decisions_total", outcome=OPEN) == 1
    assert asker.counted("decisions_total", outcome="erro_http") == 4
    assert asker.counted("decisions_total", outcome="ok") == 2


@pytest.mark.parametrize("other", [REFUSED, NONSENSE, GOOD], ids=["4xx", "odd answer", "answer"])
async def test_any_other_outcome_starts_the_row_anew(
    upstream: RawUpstream, way_out: WayOut, other: Act
) -> None:
    upstream.will(*[DOWN] * 4, other, *[DOWN] * 4, GOOD)
    asker = Asker(upstream.url, way_out)
    for _ in range(9):
        await asker.ask()

    assert (await asker.ask()).outcome == Choice("ler")


async def test_refusals_open_nothing(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(*[REFUSED] * 10)
    asker = Asker(upstream.url, way_out)
    outcomes = [(await asker.ask()).outcome for _ in range(10)]

    assert outcomes == [Fallback(FallbackReason.HTTP_ERROR, "HTTP 429")] * 10


async def test_a_step_that_is_not_sent_uses_up_no_probe(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(*[DOWN] * 5, GOOD)
    asker = Asker(upstream.url, way_out)
    for _ in range(5):
        await asker.ask()
    asker.clock.advance(30)

    too_large = await asker.ask(a_step([ATool("ler", "x" * 70_000), ATool("rodar")]))
    assert isinstance(too_large.outcome, Fallback)
    assert too_large.outcome.reason is FallbackReason.STATE_TOO_LARGE
    assert (await asker.ask()).outcome == Choice("ler")


async def test_a_probe_that_is_left_blocks_nothing(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(*[DOWN] * 5, silent, GOOD)
    asker = Asker(upstream.url, way_out)
    for _ in range(5):
        await asker.ask()
    asker.clock.advance(30)
    probing = asyncio.create_task(asker.ask())
    await asyncio.sleep(0.05)
    probing.cancel()
    await asyncio.wait([probing])
    assert (await asker.ask()).outcome == Fallback(FallbackReason.HTTP_ERROR, OPEN)

    asker.clock.advance(30)
    assert (await asker.ask()).outcome == Choice("ler")


async def test_a_fallback_is_logged_in_one_line_without_contents(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    upstream.will(
        whole(b'{"error": {"message": "no sk-or-v1-0123456789abcdef, private words"}}', "401 No"), GOOD
    )
    asker = Asker(upstream.url, way_out)
    step = a_step(messages=[Said("user", "private words")])
    with structlog.testing.capture_logs() as logs:
        verdict = await asker.ask(step)
        await asker.ask(step)

    assert logs == [
        {
            "event": "tool_router_fell_back",
            "log_level": "info",
            "reason": "erro_http",
            "detail": "HTTP 401",
            "latency_ms": verdict.latency_ms,
        }
    ]


async def test_a_huge_step_does_not_hold_the_event_loop(upstream: RawUpstream, way_out: WayOut) -> None:
    gaps: list[float] = []

    async def probe() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before_s = loop.time()
            await asyncio.sleep(0.001)
            gaps.append(loop.time() - before_s)

    catalogue = [ATool(f"t{at}", "ação\x00" * 20_000) for at in range(300)]
    steps = [
        a_step(catalogue),
        a_step(catalogue[:250]),
        a_step([ATool("ler", "ação " * 12_000), ATool("rodar")], messages=[Said("system", "s" * 5_000_000)]),
    ]
    probing = asyncio.create_task(probe())
    await asyncio.sleep(0.01)
    outcomes = [(await Asker(upstream.url, way_out).ask(step)).outcome for step in steps]
    probing.cancel()

    assert [outcome.reason for outcome in outcomes if isinstance(outcome, Fallback)] == [
        FallbackReason.STATE_TOO_LARGE
    ] * 3
    assert max(gaps) < 0.1
