"""Recorded answers of OpenRouter, read where they lie."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from adapters.openai_compatible.profiles import provider_table
from adapters.openai_compatible.provider import OpenAICompatibleProvider
from adapters.transport.way_out import WayOut
from application.ports.llm_provider import ChatCall
from domain.failure import FailureCode
from domain.provider import Provider
from domain.usage import ReportedUsage, TokenCounts
from tests.support.raw_upstream import RawUpstream, whole
from tests.support.recordings import RECORDINGS

FOLDER = "fixtures/openrouter"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    status: str = "200 OK"
    text: str = ""
    calls: Sequence[tuple[str, str, Any]] = ()
    usage: ReportedUsage | None = None
    code: FailureCode | None = None
    detail: str = ""
    names: tuple[str | None, str | None, str | None] = (None, None, None)
    is_truncated: bool = False
    may_be_charged: bool = True


def _usage(
    sent: int, made: int, cost: str | None, *, cached: int | None = 0, reasoning: int | None = 0
) -> ReportedUsage:
    return ReportedUsage(
        TokenCounts(sent, made, cached, reasoning), Decimal(cost) if cost is not None else None
    )


def _refused(status: str, code: FailureCode, detail: str) -> Recorded:
    return Recorded(status=status, code=code, detail=detail, may_be_charged=False)


RECORDED = {
    "chat_200_tool_call_mistral.json": Recorded(
        calls=[("3sniiMddS", "divide", {"numerator": 123, "denominator": 456, "on_inf": "infinity"})],
        usage=_usage(134, 43, None, cached=None, reasoning=None),
        names=("Mistral", "mistralai/mistral-small", "gen-1762047030-dJUcJW4ildNGqK4UV6iJ"),
    ),
    "chat_200_usage_cost_provider.json": Recorded(
        text="Hello! How can I assist you today? 😊",
        usage=_usage(23, 12, "0.0000095", cached=8),
        names=("DeepInfra", "deepseek/deepseek-v3.2-20251201", "chatcmpl-REDACTED_1"),
    ),
    "chat_400_invalid_model.json": _refused(
        "400 Bad Request",
        FailureCode.MODEL_NOT_FOUND,
        "openai/gpt-nonexistent-routed-model is not a valid model ID",
    ),
    "chat_402_can_only_afford.json": _refused(
        "402 Payment Required",
        FailureCode.INSUFFICIENT_CREDIT,
        "This request requires more credits, or fewer max_tokens. You requested up to 50000 tokens, but can only"
        " afford 6666.",
    ),
    "chat_429_provider_returned_error.json": _refused(
        "429 Too Many Requests",
        FailureCode.RATE_LIMIT,
        "Provider returned error — google/gemini-2.0-flash-exp:free is temporarily rate-limited upstream. Please retry"
        " shortly, or add your own key to accumulate your rate limits: https://openrouter.ai/settings/integrations",
    ),
    "chat_429_shared_pool.json": _refused(
        "429 Too Many Requests",
        FailureCode.RATE_LIMIT,
        "Provider returned error — qwen/qwen3.8-27b:free is temporarily rate-limited upstream. Please retry shortly, or"
        " add your own key to accumulate your rate limits: https://openrouter.ai/settings/integrations",
    ),
    "chat_stream_midstream_error_minimax.sse": Recorded(
        usage=_usage(43, 10, "0", reasoning=11),
        code=FailureCode.CONTEXT_LENGTH,
        detail="Token limit reached",
        is_truncated=True,
        names=("Minimax", "minimax/minimax-m2:free", "gen-1762179802-UN8pkJI4AGZvryk0kFnb"),
    ),
    "chat_stream_minimal_usage_cost.sse": Recorded(
        text="Pong",
        usage=_usage(14, 3, "0.0000039"),
        names=("Azure", "openai/gpt-4o-mini", "chatcmpl-REDACTED_1"),
    ),
    "chat_stream_parallel_tools_gpt4o.sse": Recorded(
        calls=[
            ("call_REDACTED_1", "lookup_harbor_label", {}),
            ("call_REDACTED_2", "lookup_orchard_label", {}),
        ],
        usage=_usage(157, 45, "0.0008425"),
        names=("OpenAI", "openai/gpt-4o", "chatcmpl-REDACTED_1"),
    ),
    "chat_stream_reasoning_claude.sse": Recorded(
        text="2 + 2 = 4",
        usage=_usage(43, 36, "0.000669", reasoning=13),
        names=("Google", "anthropic/claude-sonnet-4.5", "gen-1765226419-AGrwjunAftQIAgweibL8"),
    ),
    "chat_stream_zero_arg_tool_gpt41mini.sse": Recorded(
        calls=[("call_REDACTED_1", "ping", {})],
        usage=_usage(66, 2, "0.0000296"),
        names=("OpenAI", "openai/gpt-4.1-mini", "chatcmpl-REDACTED_1"),
    ),
}


@pytest.mark.skipif(RECORDINGS.folder is None, reason="the shared recordings are not here")
@pytest.mark.parametrize("name", RECORDED)
async def test_reads_the_recording(name: str) -> None:
    recorded = RECORDED[name]
    content_type = "application/json" if name.endswith("json") else "text/event-stream"
    async with RawUpstream() as upstream, WayOut() as way_out:
        upstream.will(whole(RECORDINGS.read_bytes(f"{FOLDER}/{name}"), recorded.status, content_type))
        provider = OpenAICompatibleProvider(
            provider_table({Provider.OPENROUTER: upstream.url}, "http://localhost"),
            way_out,
            now=lambda: datetime.now(UTC),
        )
        stream = provider.chat(
            ChatCall(
                provider=Provider.OPENROUTER,
                model="m",
                messages=[],
                tools=[],
                api_key=None,
                routing_preference=None,
                deadline_s=asyncio.get_running_loop().time() + 20,
            )
        )
        text = "".join([piece async for pieces in stream for piece in pieces])
    outcome = stream.outcome()
    assert text == outcome.text == recorded.text
    assert [(call.id, call.name, call.arguments) for call in outcome.tool_calls] == list(recorded.calls)
    assert outcome.usage == recorded.usage
    assert (outcome.upstream_provider, outcome.resolved_model, outcome.generation_id) == recorded.names
    assert (outcome.failure and outcome.failure.code) == recorded.code
    assert (outcome.failure.detail if outcome.failure else "") == recorded.detail
    assert outcome.is_truncated == recorded.is_truncated
    assert outcome.may_be_charged == recorded.may_be_charged


@pytest.mark.skipif(RECORDINGS.folder is None, reason="the shared recordings are not here")
def test_no_recording_is_left_out() -> None:
    assert {Path(path).name for path in RECORDINGS.named("chat_*")} == set(RECORDED)
