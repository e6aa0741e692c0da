"""The one path of metering: what a call used becomes a row, priced once, recorded once."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from application.ports.llm_provider import ChatOutcome
from application.ports.token_estimator import TokenEstimator
from application.ports.usage_recorder import UsageRecorder
from domain.agents import area_of
from domain.settlement import RouterOutcome, Settlement, TurnEnd, TurnOutcome, TurnStart
from domain.step import Message, Tool
from domain.usage import ActorKind, TokenCounts, TokenUsage, decide_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTurn:
    """A turn that has ended, or was left, with what its row needs."""

    start: TurnStart
    outcome: TurnOutcome
    error_code: str | None
    router: RouterOutcome | None
    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    chat: ChatOutcome
    """Of a turn that made no call, an empty one."""
    ended_at: datetime
    latency_ms: int


@dataclass(frozen=True, slots=True)
class RecordUsage:
    """Settles a turn: its chat's row, if there is one, and its end."""

    estimator: TokenEstimator
    recorder: UsageRecorder

    async def end(self, turn: EndedTurn, handed_over: asyncio.Event) -> TokenUsage | None:
        """The row; None when the provider charged nothing. Tokens are counted here when the provider did not.

        `handed_over` is set once the recorder answers for it, whatever becomes of the caller.
        """
        usage = await self._row(turn) if turn.chat.may_be_charged else None
        end = TurnEnd(
            start=turn.start,
            outcome=turn.outcome,
            ended_at=turn.ended_at,
            router=turn.router,
            error_code=turn.error_code,
        )
        handed_over.set()
        await self.recorder.record(Settlement(turn_id=turn.start.turn_id, usage=usage, end=end))
        return usage

    async def _row(self, turn: EndedTurn) -> TokenUsage:
        start, outcome = turn.start, turn.chat
        reported = outcome.usage
        tokens = reported.tokens if reported else await self._estimate(turn)
        is_certain = reported is not None and outcome.is_complete
        return TokenUsage(
            id=start.turn_id,
            turn_id=start.turn_id,
            session_id=start.session_id,
            project_id=start.project_id,
            actor_kind=ActorKind.AGENT,
            actor_id=start.agent or start.model_name,
            area=area_of(start.agent),
            provider=start.provider,
            model_id=start.model_id,
            model_name=start.model_name,
            tokens=tokens,
            is_estimated=reported is None,
            awaits_truth=start.provider.keeps_records and not is_certain,
            cost=decide_cost(tokens, start.prices, reported.charged_usd if reported else None),
            latency_ms=turn.latency_ms,
            binding_origin=start.binding_origin,
            routing_preference=start.routing_preference,
            upstream_provider=outcome.upstream_provider,
            resolved_model_name=outcome.resolved_model,
            generation_id=outcome.generation_id,
            created_at=turn.ended_at,
            traceparent=start.traceparent,
        )

    async def _estimate(self, turn: EndedTurn) -> TokenCounts:
        return TokenCounts(
            input=await self.estimator.count(_prompt_texts(turn.messages, turn.tools)),
            output=await self.estimator.count(turn.chat.generated),
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
