"""THE turn: the only place that knows the order of its steps (contract, section 3)."""

import asyncio
from collections.abc import AsyncGenerator, Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from application.decide_step_menu import DecideStepMenu, Decision, MenuRequest
from application.ports.clock import Clock, Ids
from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.llm_provider import ChatCall, ChatOutcome, ChatStream, LLMProvider
from application.ports.turn_context import TurnContext, TurnContexts
from application.ports.turn_telemetry import TurnTelemetry
from application.record_usage import ChatSpend, RecordUsage
from domain.binding import BoundModel
from domain.budget import refusing_budget
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.routing import Routing
from domain.secret import Secret
from domain.step import CalledTool, Message, Tool
from domain.usage import TokenUsage


class UnknownSession(Exception):  # noqa: N818 - it names what happened
    """There is no such session in that project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What an engine asks for."""

    session_id: UUID
    project_id: UUID
    agent: str | None
    messages: Sequence[Message] = field(repr=False)
    tools: Sequence[Tool] = field(repr=False)
    wants_whole_catalogue: bool
    started_s: float
    """When its first byte came, on the clock's `monotonic()`."""
    ceiling_s: float
    """The longest the whole turn may take, from then on."""
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class RoutingStarted:
    """The tool router is about to be asked: before any delta."""


@dataclass(frozen=True, slots=True)
class TextDeltas:
    """Pieces of the answer's text that arrived together: at least one, none of them empty."""

    pieces: Sequence[str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFinished:
    """The answer, always the last event. `text` is the concatenation of the deltas."""

    turn_id: UUID
    text: str = field(default="", repr=False)
    tool_calls: Sequence[CalledTool] = field(default=(), repr=False)
    is_truncated: bool = False
    failure: TurnFailure | None = None
    model: str | None = None
    usage: TokenUsage | None = None
    """The chat's row; None when nothing was charged."""
    routing: Routing | None = None
    """What became of the menu; None when the tool router had no part in the turn, or none that was waited for."""


TurnEvent = RoutingStarted | TextDeltas | TurnFinished


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that was decided before anything is sent."""

    bound: BoundModel
    api_key: Secret | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPipeline:
    """Admits turns. What it is made of is shared by both presentations."""

    contexts: TurnContexts
    provider: LLMProvider
    served: Container[Provider]
    """The providers that `provider` can call."""
    vault: CredentialVault
    decide_menu: DecideStepMenu
    record_usage: RecordUsage
    clock: Clock
    ids: Ids
    telemetry: TurnTelemetry
    _left_behind: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)

    async def admit(self, request: TurnRequest) -> "Turn":
        """The turn, with nothing sent yet: the last chance for a status.

        Raises UnknownSession or ContextUnavailable.
        """
        context = await self.contexts.read(request.session_id, request.project_id, request.agent)
        if context is None:
            raise UnknownSession
        return Turn(self, request, context, turn_id=self.ids.new())

    async def settled(self) -> None:
        """Wait until every settlement, and every decision, that turns have left behind has ended; each is bounded."""
        while self._left_behind:
            await asyncio.wait(self._left_behind)

    def settle(self, spend: ChatSpend) -> asyncio.Task[TokenUsage | None]:
        """Start a settlement that outlives the turn's own task: leaving does not undo it."""
        handed_over = asyncio.Event()
        task = asyncio.create_task(self.record_usage.chat(spend, handed_over))
        self._left_behind.add(task)
        task.add_done_callback(lambda done: self._settlement_ended(spend, handed_over, done))
        return task

    def decide(self, decision: Decision) -> asyncio.Task[bool]:
        """Start a decision that outlives the turn's own task, with the recording of its spend."""
        task = asyncio.create_task(decision.run())
        self._left_behind.add(task)
        task.add_done_callback(self._decision_ended)
        return task

    def _decision_ended(self, task: asyncio.Task[bool]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.telemetry.internal_failure(None, error)

    def _settlement_ended(
        self, spend: ChatSpend, handed_over: asyncio.Event, task: asyncio.Task[TokenUsage | None]
    ) -> None:
        self._left_behind.discard(task)
        if task.cancelled():
            # Only the end of the event loop cancels a settlement.
            if spend.outcome.may_be_charged and not handed_over.is_set():
                self.telemetry.settlement_cut(
                    spend.turn_id,
                    session_id=spend.session_id,
                    project_id=spend.project_id,
                    bound=spend.bound,
                    usage=spend.outcome.usage,
                    generation_id=spend.outcome.generation_id,
                )
        elif error := task.exception():
            self.telemetry.internal_failure(spend.turn_id, error)


class Turn:
    """One admitted turn: iterate over `events()` once."""

    def __init__(
        self,
        pipeline: TurnPipeline,
        request: TurnRequest,
        context: TurnContext,
        *,
        turn_id: UUID,
    ) -> None:
        self.id = turn_id
        self._pipeline = pipeline
        self._request = request
        self._context = context
        self._bound = context.bindings.resolve(with_tools=bool(request.tools))
        self._chat: ChatStream | None = None
        self._settlement: asyncio.Task[TokenUsage | None] | None = None
        self._decision: Decision | None = None
        self._deciding: asyncio.Task[bool] | None = None
        self._interrupted: asyncio.Future[FailureCode] = asyncio.get_running_loop().create_future()

    def interrupt(self, code: FailureCode) -> None:
        """End the turn early, with an answer that says so. What was spent is recorded as always."""
        if not self._interrupted.done():
            self._interrupted.set_result(code)
        if self._chat is not None:
            self._chat.interrupt(code)

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """Deltas as they arrive, then the answer; a failure is an answer too.

        Cancelled or closed early, it closes the upstream call at once and leaves the settlement running.
        """
        telemetry = self._pipeline.telemetry
        answer: TurnFinished | None = None
        pieces: list[str] = []
        try:
            async with aclosing(self._steps()) as steps:
                async for event in steps:
                    if isinstance(event, TextDeltas):
                        pieces += event.pieces
                    elif isinstance(event, TurnFinished):
                        answer = event
                    yield event
        except Exception as error:  # noqa: BLE001 - once the head is out, a fault of ours is an answer, never a cut
            telemetry.internal_failure(self.id, error)
            answer = TurnFinished(
                turn_id=self.id,
                text="".join(pieces),
                failure=TurnFailure(FailureCode.INTERNAL),
                model=self._bound.name if self._bound else None,
                usage=await self._settled_usage(),
                routing=await self._routing(),
            )
            yield answer
        finally:
            duration_s = self._pipeline.clock.monotonic() - self._request.started_s
            if answer is None:
                telemetry.turn_left(self.id, duration_s=duration_s)
            else:
                failure = answer.failure.code if answer.failure else None
                telemetry.turn_ended(self.id, failure=failure, duration_s=duration_s)

    async def _steps(self) -> AsyncGenerator[TurnEvent, None]:
        plan = self._plan()
        if isinstance(plan, TurnFailure):
            yield TurnFinished(turn_id=self.id, failure=plan, model=self._bound.name if self._bound else None)
            return

        # The gate is not consulted again between router and chat.
        menu = self._request.tools
        self._decision = await self._pipeline.decide_menu.prepare(self._menu_request(plan))
        if self._decision is not None and not self._interrupted.done():
            if self._decision.is_asked:
                yield RoutingStarted()
                failure = await self._decided(self._decision)
                if failure is not None:
                    routing = self._decision.routing(is_spend_recorded=True) if self._deciding else None
                    yield TurnFinished(
                        turn_id=self.id, failure=failure, model=plan.bound.name, routing=routing
                    )
                    return
            menu = self._decision.menu

        chat = self._pipeline.provider.chat(
            ChatCall(
                provider=plan.bound.provider,
                model=plan.bound.name,
                messages=self._request.messages,
                tools=menu,
                api_key=plan.api_key,
                routing_preference=plan.bound.routing_preference,
                deadline_s=self._request.started_s + self._request.ceiling_s,
                traceparent=self._request.traceparent,
            )
        )
        self._chat = chat
        if self._interrupted.done():
            chat.interrupt(self._interrupted.result())
        try:
            async with aclosing(chat):
                async for pieces in chat:
                    yield TextDeltas(pieces)
        finally:
            # Also when the engine went away: what was spent is spent.
            outcome = chat.outcome()
            self._settlement = self._pipeline.settle(self._spend(plan.bound, menu, outcome))
        usage = await asyncio.shield(self._settlement)
        yield TurnFinished(
            turn_id=self.id,
            text=outcome.text,
            tool_calls=outcome.tool_calls,
            is_truncated=outcome.is_truncated,
            failure=outcome.failure,
            model=plan.bound.name,
            usage=usage,
            routing=await self._routing(),
        )

    async def _decided(self, decision: Decision) -> TurnFailure | None:
        """Ask the router, and wait for its menu; why the turn ends before there is one, if it does.

        The decision itself goes on until its spend is recorded: leaving does not uncharge it.
        """
        left_s = self._request.started_s + self._request.ceiling_s - self._pipeline.clock.monotonic()
        if left_s > 0 and not self._interrupted.done():
            self._deciding = self._pipeline.decide(decision)
        either: set[asyncio.Future[Any]] = {decision.decided, self._interrupted}
        await asyncio.wait(either, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
        if decision.decided.done():
            return None
        return TurnFailure(
            self._interrupted.result() if self._interrupted.done() else FailureCode.TIMEOUT,
            provider=decision.provider,
        )

    async def _routing(self) -> Routing | None:
        """What became of the menu, once its spend is recorded; None where nobody waited for it."""
        decision, deciding = self._decision, self._deciding
        if decision is None or not decision.decided.done():
            return None
        if deciding is None:
            return decision.routing(is_spend_recorded=True)
        await asyncio.wait({deciding})
        is_recorded = not deciding.cancelled() and not deciding.exception() and deciding.result()
        return decision.routing(is_spend_recorded=is_recorded)

    async def _settled_usage(self) -> TokenUsage | None:
        """The row of a turn that failed inside, once it is written; None without one."""
        settlement = self._settlement
        if settlement is None:
            return None
        await asyncio.wait({settlement})
        return None if settlement.cancelled() or settlement.exception() else settlement.result()

    def _plan(self) -> _Plan | TurnFailure:
        """Binding, gate and credential, in the contract's order; the first that refuses is the failure."""
        bound = self._bound
        if bound is None:
            gone = self._context.bindings.most_specific_gone()
            if gone is None:
                return TurnFailure(FailureCode.NO_MODEL)
            return TurnFailure(FailureCode.MODEL_GONE, binding=gone.scope)
        spent = refusing_budget(self._context.budgets)
        if spent is not None:
            return TurnFailure(FailureCode.BUDGET_EXHAUSTED, budget=spent.scope)
        if bound.provider not in self._pipeline.served:
            return TurnFailure(FailureCode.NO_PROVIDER, provider=bound.provider, binding=bound.scope)
        if not bound.provider.needs_credential:
            return _Plan(bound, api_key=None)
        sealed = self._context.sealed_keys.get(bound.provider)
        if sealed is None:
            return TurnFailure(FailureCode.NO_CREDENTIAL, provider=bound.provider)
        try:
            return _Plan(bound, self._pipeline.vault.open(sealed))
        except CannotOpenCredential:
            self._pipeline.telemetry.credential_unreadable(self.id, workspace_id=self._context.workspace_id)
            return TurnFailure(FailureCode.NO_CREDENTIAL, provider=bound.provider)

    def _menu_request(self, plan: _Plan) -> MenuRequest:
        request = self._request
        return MenuRequest(
            workspace_id=self._context.workspace_id,
            project_id=request.project_id,
            session_id=request.session_id,
            provider=plan.bound.provider,
            api_key=plan.api_key,
            agent=request.agent,
            messages=request.messages,
            catalogue=request.tools,
            wants_whole_catalogue=request.wants_whole_catalogue,
            traceparent=request.traceparent,
        )

    def _spend(self, bound: BoundModel, menu: Sequence[Tool], outcome: ChatOutcome) -> ChatSpend:
        clock, request = self._pipeline.clock, self._request
        return ChatSpend(
            turn_id=self.id,
            session_id=request.session_id,
            project_id=request.project_id,
            agent=request.agent,
            bound=bound,
            messages=request.messages,
            tools=menu,
            outcome=outcome,
            ended_at=clock.now(),
            latency_ms=round((clock.monotonic() - self._request.started_s) * 1000),
            traceparent=request.traceparent,
        )
