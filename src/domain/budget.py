"""Budgets: what a gate refuses, and which thresholds a spend crosses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from domain.step import Message, Tool, json_bytes, utf8_bytes
from domain.usage import Prices

THRESHOLDS_PERCENT: Final = (70, 90, 100)
"""Each is announced once per arming."""

LIMIT_MICROS_MAX: Final = 10**15
"""A thousand million USD: no budget is meant to have more, and every reader of JSON has its digits."""


class BudgetScope(StrEnum):
    """What a budget covers."""

    PROJECT = "project"
    SESSION = "session"
    AREA = "area"


class BudgetPolicy(StrEnum):
    """Values of the enum `budget_policy`: `block` refuses from 100 % on, `allow` never does."""

    BLOCK = "block"
    ALLOW = "allow"


STRICT_OUTPUT_TOKENS_MIN: Final = 16
"""Some providers take no lower cap (OpenRouter's own note on `max_tokens`)."""

_FRAME_TOKENS: Final = 16
"""What a message may have around its texts: its role, and markers of the model's own."""
_WRAPPING_BYTES: Final = 128
"""What a call, a result or a tool may have around it on its way: names of fields, and for a call without a result, or
the other way round, a message with ids that are made up and a word for what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A limit and what was spent of it, in micro-USD. A limit of 0 is no limit."""

    id: UUID
    """Of the budget, or of the area."""
    scope: BudgetScope
    limit_micros: int
    spent_micros: int
    policy: BudgetPolicy = BudgetPolicy.BLOCK
    is_strict: bool = False
    """Before each turn its worst case is held."""
    held_micros: int = 0
    """For turns under way, and for those whose cost is not known for certain yet."""

    @property
    def is_spent(self) -> bool:
        """Whether this budget refuses the next turn, whatever that costs."""
        return self.policy is BudgetPolicy.BLOCK and 0 < self.limit_micros <= self.spent_micros

    @property
    def holds(self) -> bool:
        """Whether the next turn needs a hold in it."""
        return self.is_strict and can_be_strict(self.limit_micros, self.policy)

    @property
    def left_micros(self) -> int:
        """What a hold could still have."""
        return max(0, self.limit_micros - self.spent_micros - self.held_micros)

    def has_room_for(self, micros: int) -> bool:
        """Whether so much may be held: never beyond the limit, and nothing at all once that is passed."""
        return self.spent_micros + self.held_micros + micros <= self.limit_micros


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The most that a turn on a strict budget can cost."""

    output_tokens: int
    """The cap that goes to the provider."""
    chat_micros: int
    router_micros: int
    """0: the router will not be asked."""

    @property
    def micros(self) -> int:
        """What is held."""
        return self.chat_micros + self.router_micros


def can_be_strict(limit_micros: int, policy: BudgetPolicy) -> bool:
    """Whether there is anything to hold in such a budget: a limit, and a gate that refuses."""
    return policy is BudgetPolicy.BLOCK and limit_micros > 0


def most_prompt_tokens(messages: Sequence[Message], tools: Sequence[Tool]) -> int:
    """No fewer than the tokens of this prompt, whatever the model's vocabulary: no token is shorter than a byte.

    The UTF-8 bytes of the messages and tools, 16 a message, and what goes around calls, results and tools.
    """
    most = _FRAME_TOKENS * len(messages)
    for message in messages:
        most += utf8_bytes(message.content)
        if message.role == "tool":
            # Its name twice: where its call is missing, one is made under that name.
            most += (
                _WRAPPING_BYTES + utf8_bytes(message.tool_call_id or "") + 2 * utf8_bytes(message.name or "")
            )
        for call in message.tool_calls:
            # Its id twice: where its result is missing, one is made with that id.
            most += _WRAPPING_BYTES + 2 * utf8_bytes(call.id or "")
            most += utf8_bytes(call.name) + json_bytes(call.arguments)
    for tool in tools:
        most += (
            _WRAPPING_BYTES
            + utf8_bytes(tool.name)
            + utf8_bytes(tool.description)
            + json_bytes(tool.parameters)
        )
    return most


def worst_case(*, prompt_tokens: int, output_tokens: int, prices: Prices, router_micros: int) -> WorstCase:
    """The worst case of a turn whose prompt has at most so many tokens, its output capped: each rounded up."""
    return WorstCase(
        output_tokens,
        _rounded_up(prompt_tokens, prices.input_per_million_micros)
        + _rounded_up(output_tokens, prices.output_per_million_micros),
        router_micros,
    )


def _rounded_up(tokens: int, per_million_micros: int) -> int:
    return -(-tokens * per_million_micros // 1_000_000)


def refusing_budget(budgets: Iterable[Budget]) -> Budget | None:
    """The first budget that refuses, in the order given; None when the turn may go on."""
    return next((budget for budget in budgets if budget.is_spent), None)


def crossed_thresholds(
    *, spent_micros: int, limit_micros: int, last_notified_percent: int
) -> tuple[int, ...]:
    """The thresholds that `spent_micros` has reached and that were not announced yet, ascending."""
    if limit_micros <= 0:
        return ()
    return tuple(
        percent
        for percent in THRESHOLDS_PERCENT
        if percent > last_notified_percent and spent_micros * 100 >= limit_micros * percent
    )


def notified_after(
    limit_micros: int, *, limit_before_micros: int, spent_micros: int, last_notified_percent: int
) -> int:
    """The highest threshold that counts as announced once a budget has a new limit.

    A raised limit arms again what is no longer crossed. A lowered one announces nothing: the next spend does.
    """
    is_raised = limit_before_micros > 0 and (limit_micros == 0 or limit_micros > limit_before_micros)
    if not is_raised:
        return last_notified_percent
    crossed = crossed_thresholds(
        spent_micros=spent_micros, limit_micros=limit_micros, last_notified_percent=0
    )
    return min(last_notified_percent, max(crossed, default=0))
