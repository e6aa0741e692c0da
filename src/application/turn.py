"""THE turn: the only place that knows the order of its steps (contract, section 3)."""

import asyncio
from collections.abc import AsyncGenerator, Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from application.decide_step_menu import DecideStepMenu, Decision, MenuRequest, may_be_routed
from application.ports.clock import Clock, Ids
from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.holds import Holds
from application.ports.journal import Journal, NotEntered
from application.ports.llm_provider import ChatCall, ChatOutcome, ChatStream, LLMProvider
from application.ports.turn_context import TurnContext, TurnContexts
from application.ports.turn_starts import TurnStarts
from application.ports.turn_telemetry import TurnTelemetry
from application.ports.usage_recorder import UsageRecorder
from application.record_usage import EndedTurn, RecordUsage
from application.strict_budgets import PlannedHold, StrictBudgets, StrictTurn
from domain.binding import BoundModel
from domain.budget import refusing_budget
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.routing import Routing
from domain.secret import Secret
from domain.settlement import TurnOutcome, TurnStart
from domain.step import CalledTool, Message, Tool
from domain.usage import TokenUsage

_LONGEST_UNFLUSHED_S: Final = 5.0
"""Once the database has not taken a record for this long, nothing new is begun."""


class UnknownSession(Exception):  # noqa: N818 - it names what happened
    """There is no such session in that project."""


class BooksBehind(Exception):  # noqa: N818 - it names what happened
    """What was spent cannot be written down, so nothing new is spent. Says why."""


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
    body_bytes: int
    """Of the request as received."""
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
    hold: PlannedHold | None = None
    """What strict budgets have to hold for it."""


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
    recorder: UsageRecorder
    journal: Journal
    starts: TurnStarts
    strict_budgets: StrictBudgets
    holds: Holds
    clock: Clock
    ids: Ids
    telemetry: TurnTelemetry
    longest_drain_s: float
    """How much longer than its ceiling a turn can take at the end of its process."""
    _left_behind: set[asyncio.Task[Any]] = field(default_factory=set, repr=False)

    async def admit(self, request: TurnRequest) -> "Turn":
        """The turn, with nothing sent yet: the last chance for a status.

        Raises UnknownSession, ContextUnavailable or BooksBehind. Whoever has it closes it in the end.
        """
        if self.recorder.oldest_unflushed_s > _LONGEST_UNFLUSHED_S:
            raise BooksBehind(
                f"the database has not taken what was spent for over {_LONGEST_UNFLUSHED_S:g} s"
            )
        context = await self.contexts.read(request.session_id, request.project_id, request.agent)
        if context is None:
            raise UnknownSession
        turn = Turn(self, request, context, turn_id=self.ids.new())
        try:
            await turn.begin()
        except NotEntered as error:
            raise BooksBehind(str(error)) from error
        except BaseException:
            turn.close()
            raise
        return turn

    async def settled(self) -> None:
        """Wait until every settlement, and every decision, that turns have left behind has ended; each is bounded."""
        while self._left_behind:
            await asyncio.wait(self._left_behind)

    def settle(
        self, ended: EndedTurn, decision: Decision | None, deciding: asyncio.Task[bool] | None
    ) -> asyncio.Task[TokenUsage | None]:
        """Start a settlement that outlives the turn's own task: leaving does not undo it."""
        handed_over = asyncio.Event()
        task = asyncio.create_task(self._settle(ended, decision, deciding, handed_over))
        self._left_behind.add(task)
        task.add_done_callback(lambda done: self._settlement_ended(ended, handed_over, done))
        return task

    async def _settle(
        self,
        ended: EndedTurn,
        decision: Decision | None,
        deciding: asyncio.Task[bool] | None,
        handed_over: asyncio.Event,
    ) -> TokenUsage | None:
        if decision is not None and deciding is not None:
            if not decision.decided.done():
                # The turn is over, and its decision is not: its end has to say what the router took.
                either: set[asyncio.Future[Any]] = {decision.decided, deciding}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            ended = replace(ended, router=decision.outcome)
        usage = await self.record_usage.end(ended, handed_over)
        self.starts.forget(ended.start.turn_id)
        return usage

    def decide(self, decision: Decision, turn_id: UUID) -> asyncio.Task[bool]:
        """Start a decision that outlives the turn's own task, with the recording of its spend."""
        task = asyncio.create_task(self._decide(decision, turn_id))
        self._left_behind.add(task)
        task.add_done_callback(self._decision_ended)
        return task

    async def _decide(self, decision: Decision, turn_id: UUID) -> bool:
        try:
            await self.journal.asking(turn_id)
        except NotEntered as error:
            decision.give_up(error)
            return True
        return await decision.run()

    def _decision_ended(self, task: asyncio.Task[bool]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.telemetry.internal_failure(None, error)

    def _settlement_ended(
        self, ended: EndedTurn, handed_over: asyncio.Event, task: asyncio.Task[TokenUsage | None]
    ) -> None:
        self._left_behind.discard(task)
        if task.cancelled():
            # Only the end of the event loop cancels a settlement; the next process settles the turn.
            if ended.chat.may_be_charged and not handed_over.is_set():
                self.telemetry.settlement_cut(
                    ended.start, usage=ended.chat.usage, generation_id=ended.chat.generation_id
                )
        elif error := task.exception():
            self.telemetry.internal_failure(ended.start.turn_id, error)


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
        self._plan: _Plan | TurnFailure = self._make_plan()
        self._start: TurnStart | None = None
        self._chat: ChatStream | None = None
        self._settlement: asyncio.Task[TokenUsage | None] | None = None
        self._decision: Decision | None = None
        self._deciding: asyncio.Task[bool] | None = None
        self._interrupted: asyncio.Future[FailureCode] = asyncio.get_running_loop().create_future()

    async def begin(self) -> None:
        """Enter the turn in the books, unless it is refused before anything is sent.

        Raises NotEntered, and ContextUnavailable when strict budgets cannot be asked.
        """
        if isinstance(self._plan, _Plan):
            self._plan = await self._with_hold(self._plan)
        if isinstance(self._plan, TurnFailure):
            return
        pipeline, request, bound, hold = self._pipeline, self._request, self._plan.bound, self._plan.hold
        now = pipeline.clock.now()
        start = TurnStart(
            turn_id=self.id,
            router_usage_id=pipeline.ids.new(),
            workspace_id=self._context.workspace_id,
            project_id=request.project_id,
            session_id=request.session_id,
            agent=request.agent,
            provider=bound.provider,
            model_id=bound.model_id,
            model_name=bound.name,
            prices=bound.prices,
            binding_origin=bound.scope,
            routing_preference=bound.routing_preference,
            prompt_bytes=request.body_bytes,
            started_at=now,
            due_at=now + timedelta(seconds=request.ceiling_s + pipeline.longest_drain_s),
            traceparent=request.traceparent,
        )
        await pipeline.journal.begin(start)
        self._start = start
        pipeline.starts.note(start)
        if hold is not None and (short := await pipeline.holds.place(hold.request(start))) is not None:
            self._plan = hold.refused_by(short)
            self._settle_without_call(TurnOutcome.REFUSED, self._plan.code)

    def close(self) -> None:
        """Settle a turn whose events nobody has asked for. Otherwise it does nothing."""
        self._settle_without_call(TurnOutcome.LEFT, None)

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
                self._settle_without_call(TurnOutcome.LEFT, None)
                telemetry.turn_left(self.id, duration_s=duration_s)
            else:
                failure = answer.failure.code if answer.failure else None
                self._settle_without_call(TurnOutcome.ANSWERED, failure)
                telemetry.turn_ended(self.id, failure=failure, duration_s=duration_s)

    async def _steps(self) -> AsyncGenerator[TurnEvent, None]:
        plan, start = self._plan, self._start
        if isinstance(plan, TurnFailure):
            yield TurnFinished(turn_id=self.id, failure=plan, model=self._bound.name if self._bound else None)
            return
        assert start is not None, "begin() comes first"

        # The gate is not consulted again between router and chat.
        menu = self._request.tools
        self._decision = await self._pipeline.decide_menu.prepare(self._menu_request(start, plan))
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

        await self._pipeline.journal.sending(self.id)
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
                on_generation=self._note_generation,
                max_output_tokens=plan.hold.worst.output_tokens if plan.hold else None,
                max_prices=plan.hold.prices if plan.hold else None,
            )
        )
        self._chat = chat
        if self._interrupted.done():
            chat.interrupt(self._interrupted.result())
        how = TurnOutcome.LEFT
        try:
            async with aclosing(chat):
                async for pieces in chat:
                    yield TextDeltas(pieces)
            how = TurnOutcome.ANSWERED
        finally:
            # Also when the engine went away: what was spent is spent.
            outcome = chat.outcome()
            code = outcome.failure.code if outcome.failure else None
            settlement = self._settle(start, how, code, menu, outcome)
        usage = await asyncio.shield(settlement)
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
            self._deciding = self._pipeline.decide(decision, self.id)
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

    def _make_plan(self) -> _Plan | TurnFailure:
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

    async def _with_hold(self, plan: _Plan) -> _Plan | TurnFailure:
        """The plan with what strict budgets have to hold, or why they cannot."""
        request = self._request
        turn = StrictTurn(
            bound=plan.bound,
            budgets=self._context.budgets,
            messages=request.messages,
            tools=request.tools,
            body_bytes=request.body_bytes,
            may_be_routed=may_be_routed(
                provider=plan.bound.provider,
                api_key=plan.api_key,
                agent=request.agent,
                catalogue=request.tools,
                wants_whole_catalogue=request.wants_whole_catalogue,
            ),
        )
        hold = await self._pipeline.strict_budgets.plan(turn)
        return hold if isinstance(hold, TurnFailure) else replace(plan, hold=hold)

    def _menu_request(self, start: TurnStart, plan: _Plan) -> MenuRequest:
        request = self._request
        return MenuRequest(
            start=start,
            api_key=plan.api_key,
            messages=request.messages,
            catalogue=request.tools,
            wants_whole_catalogue=request.wants_whole_catalogue,
        )

    def _note_generation(self, generation_id: str) -> None:
        self._pipeline.journal.generation(self.id, generation_id)
        self._pipeline.starts.note_generation(self.id, generation_id)

    def _settle(
        self,
        start: TurnStart,
        how: TurnOutcome,
        failure: FailureCode | None,
        menu: Sequence[Tool],
        chat: ChatOutcome,
    ) -> asyncio.Task[TokenUsage | None]:
        clock = self._pipeline.clock
        ended = EndedTurn(
            start=start,
            outcome=how,
            error_code=failure,
            router=None,
            messages=self._request.messages,
            tools=menu,
            chat=chat,
            ended_at=clock.now(),
            latency_ms=round((clock.monotonic() - self._request.started_s) * 1000),
        )
        self._settlement = self._pipeline.settle(ended, self._decision, self._deciding)
        return self._settlement

    def _settle_without_call(self, how: TurnOutcome, failure: FailureCode | None) -> None:
        """Enter the end of a turn that began and whose chat call was never made."""
        if self._start is not None and self._settlement is None:
            self._settle(self._start, how, failure, (), ChatOutcome())
