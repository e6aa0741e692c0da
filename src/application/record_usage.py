"""The one path of metering: what a call used becomes a row, priced once, recorded once."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from application.ports.llm_provider import ChatOutcome
from application.ports.token_estimator import TokenEstimator
from application.ports.usage_recorder import UsageRecorder
from domain.agents import area_of
from domain.binding import BoundModel
from domain.step import Message, Tool
from domain.usage import ActorKind, TokenCounts, TokenUsage, decide_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSpend:
    """A chat call that has ended, or was left, with what its row needs."""

    turn_id: UUID
    session_id: UUID
    project_id: UUID
    agent: str | None
    bound: BoundModel
    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    outcome: ChatOutcome
    ended_at: datetime
    latency_ms: int
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class RecordUsage:
    """Turns a spend into its row and hands it to the recorder."""

    estimator: TokenEstimator
    recorder: UsageRecorder

    async def chat(self, spend: ChatSpend, handed_over: asyncio.Event) -> TokenUsage | None:
        """The row; None when the provider charged nothing. Tokens are counted here when the provider did not.

        `handed_over` is set once the recorder answers for the row, whatever becomes of the caller.
        """
        outcome, bound = spend.outcome, spend.bound
        if not outcome.may_be_charged:
            return None
        reported = outcome.usage
        tokens = reported.tokens if reported else await self._estimate(spend)
        usage = TokenUsage(
            id=spend.turn_id,
            session_id=spend.session_id,
            project_id=spend.project_id,
            actor_kind=ActorKind.AGENT,
            actor_id=spend.agent or bound.name,
            area=area_of(spend.agent),
            provider=bound.provider,
            model_id=bound.model_id,
            model_name=bound.name,
            tokens=tokens,
            is_estimated=reported is None,
            cost=decide_cost(tokens, bound.prices, reported.charged_usd if reported else None),
            latency_ms=spend.latency_ms,
            binding_origin=bound.scope,
            routing_preference=bound.routing_preference,
            upstream_provider=outcome.upstream_provider,
            resolved_model_name=outcome.resolved_model,
            generation_id=outcome.generation_id,
            created_at=spend.ended_at,
            traceparent=spend.traceparent,
        )
        handed_over.set()
        await self.recorder.record(usage)
        return usage

    async def _estimate(self, spend: ChatSpend) -> TokenCounts:
        return TokenCounts(
            input=await self.estimator.count(_prompt_texts(spend.messages, spend.tools)),
            output=await self.estimator.count(spend.outcome.generated),
        )


def _prompt_texts(messages: Sequence[Message], tools: Sequence[Tool]) -> list[str]:
    """Everything a prompt holds that a model reads."""
    texts = [message.content for message in messages]
    for message in messages:
        texts += [text for call in message.tool_calls for text in (call.name, _compact(call.arguments))]
    for tool in tools:
        texts += [tool.name, tool.description, _compact(tool.parameters)]
    return texts


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
