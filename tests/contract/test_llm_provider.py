"""What every LLMProvider promises: the scripted twin, and the dialect over a loopback server of bytes."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol

import pytest

from adapters.in_memory.llm_provider import ScriptedProvider, ScriptedReply
from adapters.openai_compatible.profiles import provider_table
from adapters.openai_compatible.provider import Clocks, OpenAICompatibleProvider
from adapters.transport.way_out import WayOut
from application.ports.llm_provider import ChatCall, ChatStream, LLMProvider
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.secret import Secret
from domain.step import CalledTool
from domain.usage import ReportedUsage, TokenCounts
from tests.support.raw_upstream import Act, RawUpstream, Wire, chunked, head

USAGE = ReportedUsage(TokenCounts(12, 5, cached_input=4, reasoning=2), Decimal("0.000123"))
CALL = CalledTool("c1", "read_file", {"path": "ação.ts"})


class Harness(Protocol):
    @property
    def provider(self) -> LLMProvider: ...
    def will_reply(self, reply: ScriptedReply) -> None: ...
    def sent(self) -> int: ...
    async def left(self) -> int: ...


class TwinHarness:
    def __init__(self) -> None:
        self.provider = ScriptedProvider()

    def will_reply(self, reply: ScriptedReply) -> None:
        self.provider.will_reply(reply)

    def sent(self) -> int:
        return len(self.provider.calls)

    async def left(self) -> int:
        return self.provider.closed


class WireHarness:
    """Plays a scripted reply on the wire."""

    def __init__(self, upstream: RawUpstream, way_out: WayOut) -> None:
        self._upstream = upstream
        self._gone = 0
        self.provider: LLMProvider = OpenAICompatibleProvider(
            provider_table({Provider.OPENROUTER: upstream.url}, "http://localhost"),
            way_out,
            now=lambda: datetime.now(UTC),
            clocks=Clocks(after_finish_s=0.2),
        )

    def will_reply(self, reply: ScriptedReply) -> None:
        self._upstream.will(self._play(reply))

    def sent(self) -> int:
        return len(self._upstream.requests)

    async def left(self) -> int:
        await asyncio.sleep(0.05)
        return self._gone

    def _play(self, reply: ScriptedReply) -> Act:
        async def act(wire: Wire) -> bool:
            try:
                return await say(wire)
            except ConnectionError:
                self._gone += 1
                return False

        async def say(wire: Wire) -> bool:
            if reply.failure is not None and reply.failure.status is not None and not reply.pieces:
                body = json.dumps({"error": {"code": reply.failure.status, "message": "no"}}).encode()
                await wire.send(head(f"{reply.failure.status} No", "application/json") + chunked(body))
                return True
            await wire.send(head())
            if reply.reasoning:
                await wire.send(_frame({"reasoning": reply.reasoning}, reply))
            for piece in reply.pieces:
                await asyncio.sleep(reply.pause_s)
                await wire.send(_frame({"content": piece}, reply))
            if reply.hangs:
                await wire.gone()
                self._gone += 1
                return False
            if reply.failure is not None:
                if reply.failure.code is FailureCode.CONNECTION:
                    return False
                error = {"code": reply.failure.status, "message": "no"}
                await wire.send(chunked(b"data: " + json.dumps({"error": error}).encode() + b"\n\n"))
                return True
            calls = [
                {
                    "index": i,
                    "id": call.id,
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for i, call in enumerate(reply.tool_calls)
            ]
            reason = "length" if reply.is_truncated else "stop"
            await wire.send(_frame({"tool_calls": calls}, reply), _frame({}, reply, reason))
            await wire.send(chunked(b"data: [DONE]\n\n"))
            return True

        return act


def _frame(delta: dict[str, Any], reply: ScriptedReply, finish_reason: str | None = None) -> bytes:
    frame: dict[str, Any] = {
        "id": reply.generation_id,
        "model": reply.resolved_model,
        "provider": reply.upstream_provider,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
    }
    if finish_reason is not None and reply.usage is not None:
        tokens = reply.usage.tokens
        frame["usage"] = {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "cost": float(reply.usage.charged_usd or 0),
            "prompt_tokens_details": {"cached_tokens": tokens.cached_input},
            "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
        }
    return chunked(b"data: " + json.dumps(frame).encode() + b"\n\n", is_ended=False)


@pytest.fixture(params=["in_memory", "openai_compatible"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    if request.param == "in_memory":
        yield TwinHarness()
        return
    async with RawUpstream() as upstream, WayOut() as way_out:
        yield WireHarness(upstream, way_out)


def a_call(deadline_in_s: float = 30.0) -> ChatCall:
    return ChatCall(
        provider=Provider.OPENROUTER,
        model="openai/gpt-4o-mini",
        messages=[],
        tools=[],
        api_key=Secret("sk-or-v1-abcdef"),
        routing_preference=None,
        deadline_s=asyncio.get_running_loop().time() + deadline_in_s,
    )


async def read(stream: ChatStream) -> Sequence[str]:
    return [piece async for pieces in stream for piece in pieces]


async def test_gives_the_pieces_as_they_are_and_then_the_whole_outcome(harness: Harness) -> None:
    harness.will_reply(
        ScriptedReply(
            pieces=("Olá", " ", "mundo 😊"),
            reasoning="hm",
            tool_calls=(CALL,),
            usage=USAGE,
            upstream_provider="Azure",
            resolved_model="openai/gpt-4o-mini-2026",
            generation_id="gen-1",
        )
    )
    stream = harness.provider.chat(a_call())
    assert await read(stream) == ["Olá", " ", "mundo 😊"]
    outcome = stream.outcome()
    assert outcome.text == "Olá mundo 😊"
    assert list(outcome.tool_calls) == [CALL]
    assert outcome.usage == USAGE
    assert outcome.failure is None
    assert not outcome.is_truncated
    assert outcome.may_be_charged
    assert (outcome.upstream_provider, outcome.resolved_model, outcome.generation_id) == (
        "Azure",
        "openai/gpt-4o-mini-2026",
        "gen-1",
    )
    assert {"Olá", " ", "mundo 😊", "hm", "read_file"} <= set(outcome.generated)


async def test_sends_nothing_before_the_first_piece_is_asked_for(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",)))
    stream = harness.provider.chat(a_call())
    await asyncio.sleep(0.02)
    assert harness.sent() == 0
    assert not stream.outcome().may_be_charged
    await read(stream)
    assert harness.sent() == 1


async def test_passes_a_piece_on_before_the_next_one_comes(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a", "b"), hangs=True))
    stream = harness.provider.chat(a_call())
    async with asyncio.timeout(5):
        assert await anext(aiter(stream)) == ["a"]
    await stream.aclose()


async def test_an_answer_may_be_empty(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(usage=USAGE))
    stream = harness.provider.chat(a_call())
    assert await read(stream) == []
    assert stream.outcome().failure is None
    assert stream.outcome().usage == USAGE


async def test_says_when_the_answer_was_cut_short(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), is_truncated=True))
    stream = harness.provider.chat(a_call())
    await read(stream)
    assert stream.outcome().is_truncated


async def test_a_refused_call_fails_and_costs_nothing(harness: Harness) -> None:
    harness.will_reply(
        ScriptedReply(failure=TurnFailure(FailureCode.RATE_LIMIT, provider=Provider.OPENROUTER, status=429))
    )
    stream = harness.provider.chat(a_call())
    assert await read(stream) == []
    outcome = stream.outcome()
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.provider, outcome.failure.status) == (
        FailureCode.RATE_LIMIT,
        Provider.OPENROUTER,
        429,
    )
    assert not outcome.may_be_charged


async def test_a_failure_after_some_text_keeps_the_text_and_drops_the_calls(harness: Harness) -> None:
    harness.will_reply(
        ScriptedReply(
            pieces=("half",),
            tool_calls=(CALL,),
            failure=TurnFailure(FailureCode.UPSTREAM, provider=Provider.OPENROUTER, status=502),
        )
    )
    stream = harness.provider.chat(a_call())
    assert await read(stream) == ["half"]
    outcome = stream.outcome()
    assert outcome.text == "half"
    assert list(outcome.tool_calls) == []
    assert outcome.failure is not None
    assert outcome.failure.code is FailureCode.UPSTREAM
    assert outcome.may_be_charged


async def test_a_cut_connection_keeps_the_text_and_may_be_charged(harness: Harness) -> None:
    failure = TurnFailure(FailureCode.CONNECTION, provider=Provider.OPENROUTER)
    harness.will_reply(ScriptedReply(pieces=("half",), tool_calls=(CALL,), failure=failure))
    harness.will_reply(ScriptedReply(failure=failure))
    for pieces in (["half"], []):
        stream = harness.provider.chat(a_call())
        assert await read(stream) == pieces
        assert stream.outcome().failure == failure
        assert stream.outcome().may_be_charged
        assert list(stream.outcome().tool_calls) == []
    assert harness.sent() == 2


async def test_the_deadline_ends_a_silent_call(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), hangs=True))
    stream = harness.provider.chat(a_call(deadline_in_s=0.2))
    async with asyncio.timeout(5):
        assert await read(stream) == ["a"]
    assert stream.outcome().failure == TurnFailure(FailureCode.TIMEOUT, provider=Provider.OPENROUTER)
    assert stream.outcome().may_be_charged


@pytest.mark.parametrize("code", [FailureCode.DRAINING, FailureCode.TIMEOUT])
async def test_an_interruption_ends_the_pending_read(harness: Harness, code: FailureCode) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), usage=USAGE, hangs=True))
    stream = harness.provider.chat(a_call())
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    stream.interrupt(code)
    async with asyncio.timeout(5):
        assert await reading == ["a"]
    outcome = stream.outcome()
    assert outcome.failure == TurnFailure(code, provider=Provider.OPENROUTER)
    assert outcome.text == "a"
    assert outcome.may_be_charged


async def test_an_interruption_between_reads_ends_the_next_one(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), hangs=True))
    stream = harness.provider.chat(a_call())
    assert await anext(aiter(stream)) == ["a"]
    stream.interrupt(FailureCode.DRAINING)
    stream.interrupt(FailureCode.TIMEOUT)
    async with asyncio.timeout(5):
        assert await read(stream) == []
    assert stream.outcome().failure == TurnFailure(FailureCode.DRAINING, provider=Provider.OPENROUTER)


async def test_an_interruption_before_the_start_sends_nothing(harness: Harness) -> None:
    stream = harness.provider.chat(a_call())
    stream.interrupt(FailureCode.DRAINING)
    assert await read(stream) == []
    assert harness.sent() == 0
    assert stream.outcome().failure == TurnFailure(FailureCode.DRAINING, provider=Provider.OPENROUTER)
    assert not stream.outcome().may_be_charged


async def test_an_interruption_after_the_end_changes_nothing(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), tool_calls=(CALL,)))
    stream = harness.provider.chat(a_call())
    await read(stream)
    stream.interrupt(FailureCode.DRAINING)
    assert await read(stream) == []
    assert stream.outcome().failure is None
    assert list(stream.outcome().tool_calls) == [CALL]


async def test_leaving_closes_the_call_and_leaves_no_failure(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a", "b"), tool_calls=(CALL,), hangs=True))
    stream = harness.provider.chat(a_call())
    assert await anext(aiter(stream)) == ["a"]
    await stream.aclose()
    await stream.aclose()
    assert await harness.left() == 1
    assert await read(stream) == []
    outcome = stream.outcome()
    assert (outcome.text, outcome.failure, list(outcome.tool_calls)) == ("a", None, [])
    assert outcome.may_be_charged


async def test_leaving_from_outside_ends_a_pending_read(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), hangs=True))
    stream = harness.provider.chat(a_call())
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    await stream.aclose()
    async with asyncio.timeout(5):
        assert await reading == ["a"]
    assert stream.outcome().failure is None
    assert await harness.left() == 1


async def test_cancelling_the_reader_closes_the_call(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("a",), hangs=True))
    stream = harness.provider.chat(a_call())
    reading = asyncio.create_task(read(stream))
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await harness.left() == 1
    assert stream.outcome().text == "a"
    assert stream.outcome().failure is None
    assert stream.outcome().may_be_charged


async def test_leaving_before_the_start_is_nothing(harness: Harness) -> None:
    stream = harness.provider.chat(a_call())
    await stream.aclose()
    assert await read(stream) == []
    assert harness.sent() == 0
    assert not stream.outcome().may_be_charged


async def test_a_deadline_that_passes_in_the_readers_own_time_is_met_at_the_next_read(
    harness: Harness,
) -> None:
    harness.will_reply(ScriptedReply(pieces=("a", "b"), pause_s=0.01))
    stream = harness.provider.chat(a_call(deadline_in_s=0.3))
    assert await anext(aiter(stream)) == ["a"]
    await asyncio.sleep(0.5)
    await read(stream)
    assert stream.outcome().failure == TurnFailure(FailureCode.TIMEOUT, provider=Provider.OPENROUTER)


async def test_two_calls_at_once_do_not_mix(harness: Harness) -> None:
    for text in ("first", "second"):
        harness.will_reply(ScriptedReply(pieces=tuple(text), pause_s=0.01))
    streams = [harness.provider.chat(a_call()) for _ in range(2)]
    await asyncio.gather(*map(read, streams))
    assert {stream.outcome().text for stream in streams} == {"first", "second"}


async def test_contents_and_keys_are_in_no_repr(harness: Harness) -> None:
    harness.will_reply(ScriptedReply(pieces=("secret text",), tool_calls=(CALL,)))
    stream = harness.provider.chat(a_call())
    await read(stream)
    for shown in (repr(stream), repr(stream.outcome()), repr(a_call()), repr(harness.provider)):
        assert "secret text" not in shown
        assert "sk-or" not in shown
        assert "ação" not in shown
