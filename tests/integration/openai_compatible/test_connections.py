"""How a call meets its connection: the clocks, the pool, and that nothing is sent twice."""

import asyncio
import gc
import gzip
import socket
import threading
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from adapters.openai_compatible import body as body_module
from adapters.openai_compatible import frames
from adapters.openai_compatible.profiles import provider_table
from adapters.openai_compatible.provider import Clocks, OpenAICompatibleProvider
from adapters.transport.way_out import WayOut
from application.ports.llm_provider import ChatCall, ChatStream
from domain.failure import FailureCode
from domain.provider import Provider
from domain.secret import Secret
from tests.support.loop_gaps import watched_loop
from tests.support.raw_upstream import RawUpstream, Wire, chunked, head, whole

KEY = "sk-or-v1-0123456789abcdef"
SAID = b'data: {"choices":[{"delta":{"content":"Pong"}}]}\n\n'
STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
ANSWER = SAID + STOP + b"data: [DONE]\n\n"


class Caller:
    """Calls one upstream."""

    def __init__(self, url: str, way_out: WayOut, **clocks: float) -> None:
        self.provider = OpenAICompatibleProvider(
            provider_table({Provider.OPENROUTER: url}, "http://localhost:3000"),
            way_out,
            now=lambda: datetime.now(UTC),
            clocks=Clocks(**clocks),
        )

    def call(self, deadline_in_s: float = 20.0, **fields: Any) -> ChatStream:
        defaults: dict[str, Any] = {
            "provider": Provider.OPENROUTER,
            "model": "m",
            "messages": [],
            "tools": [],
            "api_key": Secret(KEY),
            "routing_preference": None,
            "deadline_s": asyncio.get_running_loop().time() + deadline_in_s,
        }
        return self.provider.chat(ChatCall(**(defaults | fields)))


@pytest.fixture
async def upstream() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


@pytest.fixture
async def way_out() -> AsyncIterator[WayOut]:
    async with WayOut() as way_out:
        yield way_out


async def read(stream: ChatStream) -> Sequence[str]:
    return [piece async for pieces in stream for piece in pieces]


def failed(stream: ChatStream) -> tuple[FailureCode | None, bool]:
    outcome = stream.outcome()
    return outcome.failure.code if outcome.failure else None, outcome.may_be_charged


async def silent(wire: Wire) -> None:
    await wire.gone()


async def half(wire: Wire) -> None:
    await wire.send(head() + chunked(SAID, is_ended=False))
    await wire.gone()


async def test_a_refused_connection_costs_nothing(way_out: WayOut) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    stream = Caller(f"http://127.0.0.1:{port}", way_out).call()
    assert await read(stream) == []
    assert failed(stream) == (FailureCode.CONNECTION, False)


@pytest.mark.parametrize("ending", ["clock", "deadline", "interruption", "cancellation"])
async def test_a_connection_that_is_not_accepted_ends_and_costs_nothing(way_out: WayOut, ending: str) -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        await asyncio.sleep(0.02)
        caller = Caller(
            f"http://127.0.0.1:{full.getsockname()[1]}", way_out, connect_s=0.2 if ending == "clock" else 9
        )
        stream = caller.call(deadline_in_s=0.2 if ending == "deadline" else 20)
        reading = asyncio.create_task(read(stream))
        await asyncio.sleep(0.1)
        if ending == "interruption":
            stream.interrupt(FailureCode.DRAINING)
        if ending == "cancellation":
            reading.cancel()
        async with asyncio.timeout(5):
            await asyncio.wait([reading])
        code = {"interruption": FailureCode.DRAINING, "cancellation": None}.get(ending, FailureCode.TIMEOUT)
        assert failed(stream) == (code, False)


async def test_the_first_byte_has_a_clock_of_its_own(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(silent)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    stream = Caller(upstream.url, way_out, connect_s=0.1, first_byte_s=0.4).call()
    await read(stream)
    assert 0.35 < loop.time() - started_s < 2
    assert failed(stream) == (FailureCode.TIMEOUT, True)


async def test_the_readers_own_time_is_no_silence(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(SAID, is_ended=False))
        await asyncio.sleep(0.5)
        await wire.send(chunked(ANSWER))

    upstream.will(act)
    stream = Caller(upstream.url, way_out, idle_s=0.3).call()
    assert await anext(aiter(stream)) == ["Pong"]
    await asyncio.sleep(0.6)
    assert await read(stream) == ["Pong"]
    assert failed(stream) == (None, True)


async def test_every_frame_ends_the_silence(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head())
        await wire.send(*[chunked(SAID, is_ended=False)] * 5, pause_s=0.2)
        await wire.send(chunked(ANSWER))

    upstream.will(act)
    stream = Caller(upstream.url, way_out, idle_s=0.4).call()
    assert await read(stream) == ["Pong"] * 6
    assert failed(stream) == (None, True)


async def test_comments_do_not_end_the_silence(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(SAID, is_ended=False))
        await wire.send(*[chunked(b": OPENROUTER PROCESSING\n\n", is_ended=False)] * 8, pause_s=0.1)
        await wire.send(chunked(ANSWER))

    upstream.will(act)
    stream = Caller(upstream.url, way_out, idle_s=0.4).call()
    assert await read(stream) == ["Pong"]
    assert failed(stream) == (FailureCode.TIMEOUT, True)


async def test_the_wait_for_the_headers_is_silence_too(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await asyncio.sleep(0.4)
        await wire.send(head())
        await wire.send(*[chunked(b": OPENROUTER PROCESSING\n\n", is_ended=False)] * 8, pause_s=0.05)
        await wire.send(chunked(ANSWER))

    upstream.will(act)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    stream = Caller(upstream.url, way_out, first_byte_s=0.6, idle_s=0.6).call()
    assert await read(stream) == []
    assert 0.55 < loop.time() - started_s < 0.75
    assert failed(stream) == (FailureCode.TIMEOUT, True)


async def test_silences_on_both_sides_of_a_half_frame_add_up(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head())
        await wire.send(*(chunked(SAID[i : i + 1], is_ended=False) for i in range(len(SAID))), pause_s=0.05)

    upstream.will(act)
    stream = Caller(upstream.url, way_out, idle_s=0.4).call()
    assert await read(stream) == []
    assert failed(stream) == (FailureCode.TIMEOUT, True)


async def test_an_answer_read_to_its_end_gives_its_connection_back(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    async def late_end(wire: Wire) -> bool:
        await wire.send(head() + chunked(ANSWER, is_ended=False), pause_s=0.05)
        await wire.send(b"0\r\n\r\n")
        return True

    refusal = whole(b'{"error":{"code":429}}', "429 Too Many Requests", "application/json")
    upstream.will(whole(ANSWER), late_end, refusal, whole(ANSWER))
    caller = Caller(upstream.url, way_out)
    for _ in range(4):
        await read(caller.call())
        await asyncio.sleep(0.1)
    assert [request.connection for request in upstream.requests] == [1, 1, 1, 1]


async def test_what_follows_a_complete_answer_without_end_is_not_waited_for(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    async def babble(wire: Wire) -> None:
        await wire.send(head() + chunked(ANSWER, is_ended=False))
        while True:
            await wire.send(chunked(b": x\n\n" * 1000, is_ended=False))

    upstream.will(babble, whole(ANSWER))
    caller = Caller(upstream.url, way_out)
    async with asyncio.timeout(0.5):
        await read(caller.call())
    await asyncio.sleep(0.1)
    await read(caller.call())
    assert [request.connection for request in upstream.requests] == [1, 2]


@pytest.mark.parametrize("how", ["aclose", "cancel"])
@pytest.mark.parametrize("when", ["before the headers", "in the stream"])
async def test_leaving_closes_the_socket_at_once(
    upstream: RawUpstream, way_out: WayOut, how: str, when: str
) -> None:
    gone: list[float] = []

    async def act(wire: Wire) -> None:
        if when == "in the stream":
            await wire.send(head() + chunked(SAID, is_ended=False))
        gone.append(await wire.gone())

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    left_s = asyncio.get_running_loop().time()
    if how == "cancel":
        reading.cancel()
    else:
        await stream.aclose()
    await asyncio.wait([reading])
    await asyncio.sleep(0.05)
    assert len(gone) == 1
    assert gone[0] - left_s < 0.02
    assert failed(stream) == (None, True)


REFUSALS = {
    "a status": head("429 Too Many Requests", "application/json") + chunked(b'{"error"', is_ended=False),
    "an error frame": head() + chunked(b'data: {"error":{"code":429}}\n\n', is_ended=False),
    "a finish reason": head()
    + chunked(b'data: {"choices":[{"delta":{},"finish_reason":"error"}]}\n\n', is_ended=False),
}


@pytest.mark.parametrize("how", ["aclose", "cancel", "interrupt"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_refusal_that_has_no_end_costs_nothing_whoever_ends_it(
    upstream: RawUpstream, way_out: WayOut, refusal: str, how: str
) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(REFUSALS[refusal])
        await wire.gone()

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    assert not reading.done()
    if how == "interrupt":
        stream.interrupt(FailureCode.DRAINING)
    elif how == "cancel":
        reading.cancel()
    else:
        await stream.aclose()
    async with asyncio.timeout(5):
        await asyncio.wait([reading])
    refused = FailureCode.UPSTREAM if refusal == "a finish reason" else FailureCode.RATE_LIMIT
    assert failed(stream) == (refused if how == "interrupt" else None, False)


@pytest.mark.parametrize(
    "more",
    [SAID, b'data: {"usage":{"prompt_tokens":3,"completion_tokens":0}}\n\n'],
    ids=["content", "usage"],
)
async def test_an_error_beside_content_or_usage_may_be_charged(
    upstream: RawUpstream, way_out: WayOut, more: bytes
) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(more + b'data: {"error":{"code":429}}\n\n', is_ended=False))
        await wire.gone()

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    stream.interrupt(FailureCode.DRAINING)
    await reading
    assert failed(stream) == (FailureCode.RATE_LIMIT, True)


@pytest.mark.parametrize("silence", ["clock", "deadline"])
async def test_silence_after_the_finish_reason_closes_and_leaves_no_task_behind(
    upstream: RawUpstream, way_out: WayOut, silence: str
) -> None:
    gone: list[float] = []
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))

    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(SAID + STOP, is_ended=False))
        gone.append(await wire.gone())

    upstream.will(act)
    stream = Caller(upstream.url, way_out, after_finish_s=0.1 if silence == "clock" else 9).call(
        deadline_in_s=0.1 if silence == "deadline" else 20
    )
    assert await read(stream) == ["Pong"]
    ended_s = loop.time()
    assert failed(stream) == (None, True)
    await asyncio.sleep(0.05)
    gc.collect()
    assert complaints == []
    assert gone[0] - ended_s < 0.02


async def test_an_interruption_beside_the_last_bytes_leaves_no_task_behind(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    """The last bytes have woken the reader, and before it runs somebody interrupts."""
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: complaints.append(context))
    upstream.will(half)
    stream = Caller(upstream.url, way_out).call()
    assert await anext(aiter(stream)) == ["Pong"]
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.05)
    exchange = stream._exchange  # type: ignore[attr-defined]  # the moment cannot be had from outside
    exchange._response.content.feed_data(STOP + b"data: [DONE]\n\n")
    stream.interrupt(FailureCode.DRAINING)
    await reading
    assert failed(stream) == (None, True)
    await asyncio.sleep(0.05)
    gc.collect()
    assert complaints == []


async def test_a_request_that_was_read_and_not_answered_is_not_sent_again(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    async def hang_up(_wire: Wire) -> None:
        return

    upstream.will(whole(ANSWER), hang_up, whole(ANSWER))
    caller = Caller(upstream.url, way_out)
    await read(caller.call())
    stream = caller.call()
    await read(stream)
    assert failed(stream) == (FailureCode.CONNECTION, True)
    assert [request.connection for request in upstream.requests] == [1, 1]


async def test_a_new_connection_that_closes_at_once_is_not_tried_again(way_out: WayOut) -> None:
    accepted = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        stream = Caller(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", way_out).call()
        await read(stream)
    assert accepted == 1
    assert failed(stream)[0] is FailureCode.CONNECTION


async def test_a_kept_connection_found_closed_before_a_byte_was_written_is_replaced(way_out: WayOut) -> None:
    """The peer's end is a plain socket, closed between two steps of the loop: it is noticed after the connection was
    taken from the pool and before the request is written to it."""
    kept: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        received = b""
        while b'"enabled":false}]}' not in received:
            received += peer.recv(65536)
        peer.sendall(head() + chunked(ANSWER))
        kept.append(peer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = Caller(f"http://127.0.0.1:{listener.getsockname()[1]}", way_out)
        streams = [caller.call(), caller.call()]
        for stream in streams:
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            reading = asyncio.create_task(read(stream))
            assert await reading == ["Pong"]
            await asyncio.to_thread(thread.join)
            await asyncio.sleep(0.02)
            kept[-1].close()
    assert len(kept) == 2
    assert [failed(stream) for stream in streams] == [(None, True), (None, True)]


async def test_text_that_came_before_a_reset_stays(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(SAID, is_ended=False), pause_s=0.05)
        await wire.send(chunked(SAID, SAID, is_ended=False), pause_s=0.05)
        wire.reset()

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()
    assert await anext(aiter(stream)) == ["Pong"]
    await asyncio.sleep(0.3)
    assert await read(stream) == ["Pong", "Pong"]
    assert stream.outcome().text == "PongPongPong"
    assert failed(stream) == (FailureCode.CONNECTION, True)


async def test_broken_framing_in_the_middle_is_an_end_at_once(upstream: RawUpstream, way_out: WayOut) -> None:
    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(SAID, is_ended=False), pause_s=0.05)
        await wire.send(b"zzz\r\nxx", pause_s=0.05)
        await asyncio.sleep(5)

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()

    async with asyncio.timeout(2):
        assert await read(stream) == ["Pong"]
    assert failed(stream) == (FailureCode.CONNECTION, True)


async def test_what_goes_out_with_a_request(
    upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    upstream.will(whole(ANSWER, Set_Cookie="a=b"), whole(ANSWER))
    caller = Caller(upstream.url, way_out)
    await read(caller.call())
    await read(caller.call(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    request = upstream.requests[1]
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    assert request.headers == {
        "host": upstream.url.removeprefix("http://"),
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "user-agent": "brabo-api",
        "http-referer": "http://localhost:3000",
        "x-title": "Brabo",
        "authorization": f"Bearer {KEY}",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    }


async def test_a_call_without_a_key_sends_none(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(whole(ANSWER))
    await read(Caller(upstream.url, way_out).call(api_key=None))
    assert "authorization" not in upstream.requests[0].headers


async def test_a_key_that_fits_no_header_is_not_sent(upstream: RawUpstream, way_out: WayOut) -> None:
    for key in ("a\r\nX-Evil: 1", "chavé", "a\x00"):
        stream = Caller(upstream.url, way_out).call(api_key=Secret(key))
        await read(stream)
        assert failed(stream) == (FailureCode.AUTH, False)
    assert not upstream.requests


async def test_no_call_waits_for_another(upstream: RawUpstream, way_out: WayOut) -> None:
    arrived = asyncio.Event()

    async def act(wire: Wire) -> bool:
        if len(upstream.requests) == 150:
            arrived.set()
        await arrived.wait()
        return bool(await whole(ANSWER)(wire))

    upstream.will(*[act] * 150)
    caller = Caller(upstream.url, way_out)
    async with asyncio.timeout(20):
        await asyncio.gather(*(read(caller.call()) for _ in range(150)))


async def test_logs_hold_no_content_and_no_key(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(
        whole(b'data: {"choices": [{"delta": {"content": "my private words' + b"\n\n" + ANSWER), half
    )
    with structlog.testing.capture_logs() as logs:
        await read(Caller(upstream.url, way_out).call())
        stream = Caller(upstream.url, way_out).call()
        await anext(aiter(stream))
        await way_out.close()
        await read(stream)
    assert [entry["event"] for entry in logs] == ["provider_frame_dropped", "provider_connection_broken"]
    assert not any(secret in str(logs) for secret in ("private", "Pong", KEY))


async def test_an_event_without_end_is_not_kept(
    upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "LONGEST_EVENT_BYTES", 100_000)

    async def act(wire: Wire) -> None:
        await wire.send(head() + chunked(b"data: ", is_ended=False))
        while True:
            await wire.send(chunked(b"x" * 10_000, is_ended=False))

    upstream.will(act)
    stream = Caller(upstream.url, way_out).call()
    await read(stream)
    assert failed(stream) == (FailureCode.BAD_ANSWER, True)


async def test_the_way_out_can_be_closed_and_used_again(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(half, whole(ANSWER))
    caller = Caller(upstream.url, way_out)
    stream = caller.call()
    assert await anext(aiter(stream)) == ["Pong"]
    await way_out.close()
    await read(stream)
    assert failed(stream) == (FailureCode.CONNECTION, True)
    assert await read(caller.call()) == ["Pong"]


@pytest.mark.parametrize("piece", ["word ", "ação 😊 "], ids=["ASCII", "non-ASCII"])
async def test_twenty_megabytes_of_answer_do_not_hold_the_event_loop(
    upstream: RawUpstream, way_out: WayOut, piece: str
) -> None:
    piece *= 2000
    frame = b'data: {"choices":[{"delta":{"content":"' + piece.encode() + b'"}}]}\n\n'
    count = 20 * 2**20 // len(piece.encode())
    gaps: list[float] = []

    async def act(wire: Wire) -> bool:
        await wire.send(head(), *[chunked(frame, is_ended=False)] * count, chunked(STOP))
        return True

    async def probe() -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - before)

    upstream.will(act)
    probing = asyncio.create_task(probe())
    stream = Caller(upstream.url, way_out).call()
    received = sum([len(text) async for texts in stream for text in texts])
    probing.cancel()
    assert received == len(piece) * count
    assert failed(stream) == (None, True)
    assert max(gaps) < 0.1


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is parsed from now on."""
    sizes: list[int] = []
    read_frame = frames.read_frame

    def counting(data: bytes) -> frames.Frame | None:
        sizes.append(len(data))
        return read_frame(data)

    monkeypatch.setattr(frames, "read_frame", counting)
    return sizes


UNREADABLE = {
    "one event of 200,000 lines": b"data: {x\n" * 200_000 + b"\n",
    "100,000 frames": b"data: {x\n\n" * 100_000,
}


@pytest.mark.parametrize("unreadable", UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_given_up(
    upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    parsed = counted(monkeypatch)
    upstream.will(whole(UNREADABLE[unreadable] + ANSWER))
    stream = Caller(upstream.url, way_out).call()
    with structlog.testing.capture_logs() as logs:
        async with watched_loop() as gaps:
            assert await read(stream) == []
    print(f"\n{unreadable}: largest gap {gaps.largest_ms:.1f} ms, {len(parsed)} parsed")
    assert failed(stream) == (FailureCode.BAD_ANSWER, True)
    assert [entry["event"] for entry in logs] == ["provider_frame_dropped"]
    assert len(parsed) < 10_010
    assert gaps.largest_ms < 100


@pytest.mark.parametrize("line_end", [b"\n", b"\n\n"], ids=["one event", "events"])
async def test_many_frames_at_once_do_not_hold_the_event_loop(
    upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch, line_end: bytes
) -> None:
    parsed = counted(monkeypatch)
    many, unreadable = 60_000, 5_000
    frame = SAID.rstrip() + line_end
    upstream.will(whole(frame * many + (b"data: {x" + line_end) * unreadable + ANSWER))
    stream = Caller(upstream.url, way_out).call()
    async with watched_loop() as gaps:
        assert await read(stream) == ["Pong"] * (many + 1)
    print(f"\n{many} frames: largest gap {gaps.largest_ms:.1f} ms")
    assert failed(stream) == (None, True)
    assert len(parsed) <= many + unreadable + 4
    assert gaps.largest_ms < 100


LARGE = {
    "of unknown shape": b'{"id":7,"x":[' + b",".join([b"[]"] * 3_000_000) + b"]}",
    "of many choices": b'{"choices":[' + b",".join([b"{}"] * 3_000_000) + b"]}",
    "of a rich error": b'{"error":{"x":[' + b",".join([b"1"] * 6_000_000) + b"]}}",
}


@pytest.mark.parametrize("large", LARGE)
async def test_a_large_frame_of_many_values_is_not_built(
    upstream: RawUpstream, way_out: WayOut, large: str
) -> None:
    upstream.will(whole(b"data: " + LARGE[large] + b"\n\n" + ANSWER))
    stream = Caller(upstream.url, way_out).call()
    async with watched_loop() as gaps:
        assert await read(stream) == ["Pong"]
    print(f"\n{large}: largest gap {gaps.largest_ms:.1f} ms")
    assert failed(stream) == (None, True)
    assert gaps.largest_ms < 100


ODD_USAGE = b'"usage":{"prompt_tokens":"12","completion_tokens":7,"cost":0.25,"prompt_tokens_details":3}'
WORDS = b"prose, " * 200_000
ODD = {
    "a count that is text": (WORDS, WORDS.decode()),
    "half a surrogate pair": (WORDS + rb"\ud83d", WORDS.decode() + "\ufffd"),
    "no UTF-8": (WORDS + b"\xff", WORDS.decode() + "\ufffd"),
    "a line end in a text": (WORDS + b"\t", WORDS.decode() + "\t"),
}


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "document"])
@pytest.mark.parametrize("odd", ODD)
async def test_a_large_frame_of_odd_types_is_read_all_the_same(
    upstream: RawUpstream, way_out: WayOut, odd: str, is_stream: bool
) -> None:
    sent, text = ODD[odd]
    document = (
        b'{"id":7,"choices":[{"index":0,"message":{"content":"' + sent + b'"},"finish_reason":"stop"}],'
        + ODD_USAGE + b"}"
    )  # fmt: skip
    upstream.will(whole(b"data: " + document + b"\n\ndata: [DONE]\n\n" if is_stream else document))
    stream = Caller(upstream.url, way_out).call()
    assert "".join(await read(stream)) == text
    usage = stream.outcome().usage
    assert failed(stream) == (None, True)
    assert usage is not None
    assert (usage.tokens.output, str(usage.charged_usd)) == (7, "0.25")


HOSTILE = {
    "keys": b'{"id":7,"error":{' + b",".join(b'"k%d":1' % at for at in range(300_000)) + b"}}",
    "no text": b'{"id":7,"x":"' + b"\xff" * 30_000_000 + b'"}',
    "depth": b'{"x":' * 400_000,
}


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_a_large_frame_that_takes_long_does_not_hold_the_event_loop(
    upstream: RawUpstream, way_out: WayOut, hostile: str
) -> None:
    """By the process's time, for a thread that keeps the interpreter takes none of the loop's."""
    gaps_s: list[float] = []

    async def probe() -> None:
        while True:
            before_s = time.process_time()
            await asyncio.sleep(0.005)
            gaps_s.append(time.process_time() - before_s)

    upstream.will(whole(b"data: " + HOSTILE[hostile] + b"\n\n" + ANSWER))
    async with watched_loop():
        probing = asyncio.create_task(probe())
        await read(Caller(upstream.url, way_out).call())
        probing.cancel()
    print(f"\n{hostile}: largest gap {max(gaps_s) * 1000:.1f} ms")
    assert max(gaps_s) < 0.1


@pytest.mark.parametrize("how", ["interrupt", "aclose", "cancel"])
async def test_leaving_ends_the_taking_in_of_many_frames(
    upstream: RawUpstream, way_out: WayOut, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    upstream.will(whole(SAID.replace(b"\n\n", b"\n") * 100_000 + STOP))
    stream = Caller(upstream.url, way_out).call()
    reading = asyncio.create_task(read(stream))
    leaving: list[asyncio.Task[None]] = []

    async def leave() -> None:
        if how == "interrupt":
            stream.interrupt(FailureCode.DRAINING)
        elif how == "aclose":
            await stream.aclose()
        else:
            reading.cancel()

    taken = 0
    read_frame = frames.read_frame

    def taking(data: bytes) -> frames.Frame | None:
        nonlocal taken
        taken += 1
        if taken == 1000:
            leaving.append(asyncio.create_task(leave()))
        return read_frame(data)

    monkeypatch.setattr(frames, "read_frame", taking)
    async with asyncio.timeout(10):
        await asyncio.wait([reading])
    assert reading.cancelled() == (how == "cancel")
    assert taken < 50_000
    assert failed(stream) == (FailureCode.DRAINING if how == "interrupt" else None, True)


@pytest.mark.parametrize("content", [ANSWER, bytes(20 * 2**20)], ids=["an answer", "a bomb"])
async def test_an_encoding_that_was_not_asked_for_is_not_decoded(
    upstream: RawUpstream, way_out: WayOut, content: bytes
) -> None:
    upstream.will(whole(gzip.compress(content), Content_Encoding="gzip"))
    stream = Caller(upstream.url, way_out).call()
    async with watched_loop() as gaps:
        assert await read(stream) == []
    print(f"\nlargest gap {gaps.largest_ms:.1f} ms")
    assert failed(stream) == (FailureCode.BAD_ANSWER, True)
    assert gaps.largest_ms < 100


async def test_an_error_in_an_encoding_that_was_not_asked_for_is_read_by_its_status(
    upstream: RawUpstream, way_out: WayOut
) -> None:
    body = gzip.compress(b'{"error":{"message":"slow down"}}')
    upstream.will(whole(body, "429 Too Many Requests", "application/json", Content_Encoding="gzip"))
    stream = Caller(upstream.url, way_out).call()
    await read(stream)
    assert failed(stream) == (FailureCode.RATE_LIMIT, False)


async def test_no_encoding_at_all_can_be_said(upstream: RawUpstream, way_out: WayOut) -> None:
    upstream.will(whole(ANSWER, Content_Encoding="Identity"))
    assert await read(Caller(upstream.url, way_out).call()) == ["Pong"]
