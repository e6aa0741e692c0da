"""What strict budgets hold for a turn before anything of it is sent."""

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from application.ports.holds import HoldRequest
from domain.binding import BoundModel
from domain.budget import STRICT_OUTPUT_TOKENS_MIN, Budget, WorstCase, most_prompt_tokens, worst_case
from domain.failure import FailureCode, StrictObstacle, TurnFailure
from domain.provider import Provider
from domain.routing import WORST_CASE_MICROS
from domain.settlement import TurnStart
from domain.step import Message, Tool
from domain.usage import Prices

_AT_ONCE_BYTES: Final = 128 * 1024
"""Of a request whose bytes are counted in the event loop: some 0.5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictTurn:
    """A turn with the strict budgets that it runs on."""

    bound: BoundModel
    budgets: Sequence[Budget]
    """All of the turn's, strict or not."""
    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    """The whole catalogue: the router only narrows it."""
    body_bytes: int
    """Of the request as received."""
    may_be_routed: bool


@dataclass(frozen=True, slots=True)
class PlannedHold:
    """What is to be held, and what the provider is told so that it cannot cost more."""

    budget_ids: Sequence[UUID]
    worst: WorstCase
    prices: Prices
    """The dearest that may answer."""

    def request(self, start: TurnStart) -> HoldRequest:
        """The request for this turn, which is about to begin."""
        return HoldRequest(
            start=start,
            budget_ids=self.budget_ids,
            chat_micros=self.worst.chat_micros,
            router_micros=self.worst.router_micros,
        )

    def refused_by(self, budget: Budget) -> TurnFailure:
        """Why the turn ends when this budget has no room."""
        return TurnFailure(
            FailureCode.BUDGET_EXHAUSTED,
            budget=budget.scope,
            needed_micros=self.worst.micros,
            left_micros=budget.left_micros,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictBudgets:
    """Plans holds."""

    output_tokens: int
    """The most that an answer on a strict budget has, less where the model makes less: 16 at least."""
    bounded: Container[Provider]
    """The providers that can be told both a cap of the answer and the dearest price."""

    async def plan(self, turn: StrictTurn) -> PlannedHold | TurnFailure | None:
        """The hold to place before the first call; None where no budget is strict.

        A failure: a strict budget cannot hold for such a call at all, or had no room when it was read. Does not hold
        the event loop.
        """
        strict = [budget for budget in turn.budgets if budget.holds]
        if not strict:
            return None
        bound = turn.bound
        output_tokens = self.output_tokens
        if bound.max_output_tokens is not None:
            output_tokens = min(output_tokens, bound.max_output_tokens)
        obstacle: StrictObstacle | None = None
        if bound.provider not in self.bounded:
            obstacle = StrictObstacle.UNBOUNDED_PROVIDER
        elif not bound.is_priced:
            obstacle = StrictObstacle.UNPRICED_MODEL
        elif output_tokens < STRICT_OUTPUT_TOKENS_MIN:
            obstacle = StrictObstacle.SHORT_MODEL
        if obstacle is not None:
            return TurnFailure(
                FailureCode.BUDGET_EXHAUSTED,
                provider=bound.provider,
                budget=strict[0].scope,
                left_micros=strict[0].left_micros,
                obstacle=obstacle,
            )
        worst = worst_case(
            prompt_tokens=await _prompt_tokens(turn),
            output_tokens=output_tokens,
            prices=bound.prices,
            router_micros=WORST_CASE_MICROS if turn.may_be_routed else 0,
        )
        planned = PlannedHold([budget.id for budget in strict], worst, bound.prices)
        short = next((budget for budget in strict if not budget.has_room_for(worst.micros)), None)
        return planned if short is None else planned.refused_by(short)


async def _prompt_tokens(turn: StrictTurn) -> int:
    if turn.body_bytes <= _AT_ONCE_BYTES:
        return most_prompt_tokens(turn.messages, turn.tools)
    return await asyncio.to_thread(most_prompt_tokens, turn.messages, turn.tools)
