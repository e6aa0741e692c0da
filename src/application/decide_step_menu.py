"""Which tools the model of a step is given: the router is asked, and it only narrows (contract, section 5)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from application.ports.clock import Clock
from application.ports.router_switch import RouterSwitches, SwitchUnreadable
from application.ports.tool_router import Question, ToolRouter
from application.ports.usage_recorder import UsageRecorder
from domain.agents import area_of
from domain.menu import narrowed_menu
from domain.provider import Provider
from domain.routing import Fallback, FallbackReason, RouterSpend, Routing, Verdict
from domain.secret import Secret
from domain.settlement import RouterOutcome, Settlement, TurnStart
from domain.step import Message, Step, Tool, is_read_at_once
from domain.usage import ActorKind, TokenUsage, implicit_cost, to_micros

_NEVER_ROUTED: Final = frozenset({"anamnese", "context-manager"})
_FEWEST_TOOLS: Final = 2
_NOT_WAITED_FOR: Final = Fallback(FallbackReason.TIMEOUT, "o turno terminou antes da resposta")


@dataclass(frozen=True, slots=True, kw_only=True)
class MenuRequest:
    """A step whose menu may be narrowed, in a turn that has begun."""

    start: TurnStart
    api_key: Secret | None
    messages: Sequence[Message] = field(repr=False)
    catalogue: Sequence[Tool] = field(repr=False)
    wants_whole_catalogue: bool


def may_be_routed(
    *,
    provider: Provider,
    api_key: Secret | None,
    agent: str | None,
    catalogue: Sequence[Tool],
    wants_whole_catalogue: bool,
) -> bool:
    """Whether the router is asked if the workspace has it on: all that can be known without the database."""
    return (
        provider is Provider.OPENROUTER
        and api_key is not None
        and len(catalogue) >= _FEWEST_TOOLS
        and agent is not None
        and agent not in _NEVER_ROUTED
        and not wants_whole_catalogue
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideStepMenu:
    """Asks the router, where it is to be asked, and records what that costs."""

    router: ToolRouter
    switches: RouterSwitches
    recorder: UsageRecorder
    clock: Clock
    on_internal_failure: Callable[[UUID | None, BaseException], None]
    """Told of a fault of ours: it costs the step its narrowing, and no more."""
    on_switch_unreadable: Callable[[UUID], None]
    """Told of a workspace whose switch could not be read: its step has its whole catalogue, and nobody was asked."""

    async def prepare(self, request: MenuRequest) -> "Decision | None":
        """The decision, with nothing sent yet; None where the router has no part in this step."""
        start, api_key = request.start, request.api_key
        if not may_be_routed(
            provider=start.provider,
            api_key=api_key,
            agent=start.agent,
            catalogue=request.catalogue,
            wants_whole_catalogue=request.wants_whole_catalogue,
        ):
            return None
        assert api_key is not None
        assert start.agent is not None
        try:
            if not await self.switches.is_on(start.workspace_id):
                return None
        except SwitchUnreadable:
            self.on_switch_unreadable(start.workspace_id)
            return None
        except Exception as error:  # noqa: BLE001 - whatever fails here, the step has its whole catalogue
            self.on_internal_failure(None, error)
            return None
        previous_tool = None
        question: Question | Fallback
        try:
            step = await _read_step(start.agent, request.messages, request.catalogue)
            previous_tool = step.previous_tool
            question = await self.router.prepare(step, api_key)
        except Exception as error:  # noqa: BLE001 - as above
            question = self.fault_of_ours(error)
        return Decision(self, request, start.agent, previous_tool, question)

    async def ask(self, question: Question) -> Verdict:
        """The router's verdict; a fault of ours is a fallback."""
        try:
            return await question.ask()
        except Exception as error:  # noqa: BLE001 - as above
            return Verdict(self.fault_of_ours(error), may_be_charged=True)

    def fault_of_ours(self, error: Exception) -> Fallback:
        """The fallback that it comes to; told of."""
        self.on_internal_failure(None, error)
        return Fallback(FallbackReason.INVALID_ANSWER, type(error).__name__, is_ours=True)


async def _read_step(agent: str, messages: Sequence[Message], catalogue: Sequence[Tool]) -> Step:
    """In a thread where it would hold the event loop."""
    if is_read_at_once(messages):
        return Step.read(agent, messages, catalogue)
    return await asyncio.to_thread(Step.read, agent, messages, catalogue)


class Decision:
    """One step's menu, being decided: `run()` it if `is_asked`, wait until it is `decided`, then read it."""

    def __init__(
        self,
        use_case: DecideStepMenu,
        request: MenuRequest,
        agent: str,
        previous_tool: str | None,
        question: Question | Fallback,
    ) -> None:
        self._use_case = use_case
        self._request = request
        self._agent = agent
        self._previous_tool = previous_tool
        self._question = question
        self.decided: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        """Done as soon as the menu is known."""
        if isinstance(question, Fallback):
            self.decided.set_result(Verdict(question))

    @property
    def is_asked(self) -> bool:
        """A request is to be sent."""
        return not isinstance(self._question, Fallback)

    @property
    def provider(self) -> Provider:
        """Who is asked."""
        return self._request.start.provider

    def give_up(self, error: Exception) -> None:
        """Decide without asking, for a fault of ours."""
        self.decided.set_result(Verdict(self._use_case.fault_of_ours(error)))

    async def run(self) -> bool:
        """Ask, and record what it cost; whether that is recorded. To be run to its end, also when nobody waits for
        the menu any more: the charge is not undone by leaving.
        """
        assert not isinstance(self._question, Fallback), "there is nothing to ask"
        verdict = await self._use_case.ask(self._question)
        self.decided.set_result(verdict)
        if verdict.spend is None:
            return True
        usage = self._usage(verdict, verdict.spend)
        settlement = Settlement(turn_id=usage.turn_id, usage=usage, end=None)
        # The turn waits for it only when the chat has ended.
        return await self._use_case.recorder.record(settlement, at_leisure=True)

    @property
    def outcome(self) -> RouterOutcome | None:
        """What is known of its cost now; None: nothing was sent."""
        if not self.is_asked:
            return None
        if not self.decided.done():
            return RouterOutcome.UNSEEN
        verdict = self.decided.result()
        if verdict.spend is not None:
            return RouterOutcome.CHARGED
        return RouterOutcome.UNSEEN if verdict.may_be_charged else RouterOutcome.FREE

    @property
    def menu(self) -> Sequence[Tool]:
        """The tools that the chat model is given."""
        outcome, catalogue = self.decided.result().outcome, self._request.catalogue
        if isinstance(outcome, Fallback):
            return catalogue
        return narrowed_menu(catalogue, outcome.option, self._previous_tool)

    def routing(self, *, is_spend_recorded: bool) -> Routing:
        """What the step's answer says of it; before it is decided, that nobody waited for the router any longer."""
        if not self.decided.done():
            return self._routing_of(Verdict(_NOT_WAITED_FOR), self._request.catalogue, is_spend_recorded=True)
        return self._routing_of(self.decided.result(), self.menu, is_spend_recorded=is_spend_recorded)

    def _routing_of(self, verdict: Verdict, menu: Sequence[Tool], *, is_spend_recorded: bool) -> Routing:
        return Routing(
            model=self._use_case.router.model,
            catalogue=[tool.name for tool in self._request.catalogue],
            menu=[tool.name for tool in menu],
            previous_tool=self._previous_tool,
            outcome=verdict.outcome,
            latency_ms=verdict.latency_ms,
            cost_micros=to_micros(verdict.spend.charged_usd) if verdict.spend else 0,
            is_spend_unrecorded=not is_spend_recorded,
        )

    def _usage(self, verdict: Verdict, spend: RouterSpend) -> TokenUsage:
        start, use_case = self._request.start, self._use_case
        return TokenUsage(
            id=start.router_usage_id,
            turn_id=start.turn_id,
            session_id=start.session_id,
            project_id=start.project_id,
            actor_kind=ActorKind.AGENT,
            actor_id=self._agent,
            area=area_of(self._agent),
            provider=start.provider,
            model_id=None,
            model_name=use_case.router.model,
            tokens=spend.tokens,
            is_estimated=spend.is_estimated,
            awaits_truth=False,
            cost=implicit_cost(spend.tokens, spend.charged_usd),
            latency_ms=verdict.latency_ms,
            binding_origin=None,
            routing_preference=None,
            upstream_provider=None,
            resolved_model_name=spend.resolved_model,
            generation_id=spend.generation_id,
            created_at=use_case.clock.now(),
            traceparent=start.traceparent,
        )
