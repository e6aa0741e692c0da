"""The turn on the in-memory twins: the order of its steps, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.credential_vault import InMemoryVault
from adapters.in_memory.holds import InMemoryHolds
from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import BudgetEntry, InMemoryLedger
from adapters.in_memory.llm_provider import ScriptedProvider, ScriptedReply
from adapters.in_memory.router_switches import InMemoryRouterSwitches
from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.in_memory.tool_router import ScriptedRouter
from adapters.in_memory.turn_contexts import InMemoryTurnContexts
from adapters.in_memory.turn_starts import InMemoryTurnStarts
from adapters.in_memory.usage_recorder import InMemoryUsageRecorder
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from application.decide_step_menu import DecideStepMenu
from application.ports.turn_context import ContextUnavailable
from application.ports.turn_telemetry import TurnTelemetry
from application.record_usage import RecordUsage
from application.strict_budgets import StrictBudgets
from application.turn import (
    RoutingStarted,
    TextDeltas,
    Turn,
    TurnEvent,
    TurnFinished,
    TurnPipeline,
    TurnRequest,
    UnknownSession,
)
from domain.binding import BindingScope, BoundModel
from domain.budget import Budget, BudgetScope, refusing_budget
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.routing import (
    Choice,
    Fallback,
    FallbackReason,
    RouterSpend,
    Verdict,
)
from domain.secret import Secret
from domain.settlement import Settlement, TurnStart
from domain.step import CalledTool, Message, Tool
from domain.usage import Prices, ReportedUsage, TokenCounts, TokenUsage

USAGE = ReportedUsage(TokenCounts(100, 20), Decimal("0.000123"))


@dataclass(frozen=True)
class SaidMessage:
    role: str
    content: str
    tool_calls: tuple[CalledTool, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class OfferedTool:
    name: str = "read_file"
    description: str = "reads"
    parameters: dict[str, object] = field(default_factory=dict)


class Heard(TurnTelemetry):
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.ended: list[FailureCode | None] = []
        self.left = 0
        self.unreadable = 0
        self.cut: list[tuple[UUID, ReportedUsage | None]] = []
        self.internal: list[BaseException] = []

    def turn_ended(self, turn_id: UUID, *, failure: FailureCode | None, duration_s: float) -> None:
        self.ended.append(failure)

    def turn_left(self, turn_id: UUID, *, duration_s: float) -> None:
        self.left += 1

    def credential_unreadable(self, turn_id: UUID, *, workspace_id: UUID) -> None:
        self.unreadable += 1

    def settlement_cut(
        self, start: TurnStart, *, usage: ReportedUsage | None, generation_id: str | None
    ) -> None:
        self.cut.append((start.turn_id, usage))

    def internal_failure(self, turn_id: UUID | None, error: BaseException) -> None:
        self.internal.append(error)


class SlowRecorder(InMemoryUsageRecorder):
    """Writes when it is let."""

    def __init__(self, rig: "Rig") -> None:
        super().__init__(rig.ledger, rig.journal, on_unrecorded=rig.unrecorded.append)
        self.is_asked = asyncio.Event()
        self.may_write = asyncio.Event()

    async def record(self, settlement: Settlement, *, at_leisure: bool = False) -> bool:
        self.is_asked.set()
        await self.may_write.wait()
        return await super().record(settlement)


class Rig:
    """One workspace with all that a turn needs, over the twins."""

    def __init__(self) -> None:
        self.ledger = InMemoryLedger()
        self.provider = ScriptedProvider()
        self.vault = InMemoryVault()
        self.heard = Heard()
        self.journal = InMemoryJournal()
        self.starts = InMemoryTurnStarts()
        self.unrecorded: list[TokenUsage] = []
        self.owner = uuid4()
        self.workspace = self.ledger.add_workspace(self.owner)
        self.project = self.ledger.add_project(self.workspace)
        self.session = self.ledger.add_session(self.project)
        self.ledger.sealed_keys[self.owner, Provider.OPENROUTER] = self.vault.seal(Secret("sk-or-key"))
        self.bind(BindingScope.WORKSPACE, str(self.workspace))
        self.router = ScriptedRouter()
        self.switches = InMemoryRouterSwitches()
        recorder = InMemoryUsageRecorder(self.ledger, self.journal, on_unrecorded=self.unrecorded.append)
        self.pipeline = TurnPipeline(
            contexts=InMemoryTurnContexts(self.ledger),
            provider=self.provider,
            served=frozenset({Provider.OPENROUTER, Provider.OLLAMA}),
            vault=self.vault,
            decide_menu=DecideStepMenu(
                router=self.router,
                switches=self.switches,
                recorder=recorder,
                clock=SystemClock(),
                on_internal_failure=self.heard.internal_failure,
                on_switch_unreadable=lambda _: None,
            ),
            record_usage=RecordUsage(WordTokenEstimator(), recorder),
            recorder=recorder,
            journal=self.journal,
            starts=self.starts,
            strict_budgets=StrictBudgets(output_tokens=8_192, bounded={Provider.OPENROUTER}),
            holds=InMemoryHolds(self.ledger),
            longest_drain_s=27,
            clock=SystemClock(),
            ids=UuidV7Ids(),
            telemetry=self.heard,
        )

    def bind(self, scope: BindingScope, scope_id: str, provider: Provider = Provider.OPENROUTER) -> None:
        self.ledger.bindings[scope, scope_id] = BoundModel(
            scope=scope,
            model_id=uuid4(),
            provider=provider,
            name=f"maker/{scope.value}",
            prices=Prices(1_000_000, 2_000_000),
            is_available=True,
            supports_tool_calling=True,
        )

    async def admit(
        self,
        *,
        agent: str | None = "dev-api",
        ceiling_s: float = 30,
        messages: Sequence[Message] = (SaidMessage("user", "duas palavras"),),
        catalogue: Sequence[Tool] = (OfferedTool(),),
        wants_whole_catalogue: bool = False,
    ) -> Turn:
        return await self.pipeline.admit(
            TurnRequest(
                session_id=self.session,
                project_id=self.project,
                agent=agent,
                messages=messages,
                tools=catalogue,
                wants_whole_catalogue=wants_whole_catalogue,
                started_s=self.pipeline.clock.monotonic(),
                ceiling_s=ceiling_s,
                body_bytes=1_200,
            )
        )

    async def run(self, *, agent: str | None = "dev-api", ceiling_s: float = 30) -> TurnFinished:
        turn = await self.admit(agent=agent, ceiling_s=ceiling_s)
        events = [event async for event in turn.events()]
        finished = events[-1]
        assert isinstance(finished, TurnFinished)
        assert finished.text == "".join(
            piece for event in events[:-1] if isinstance(event, TextDeltas) for piece in event.pieces
        )
        return finished


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_turn_yields_its_pieces_and_then_its_answer_with_the_row(rig: Rig) -> None:
    rig.provider.will_say("um ", "dois", usage=USAGE)

    finished = await rig.run()

    (row,) = rig.ledger.usages.values()
    assert finished.text == "um dois"
    assert finished.usage == row
    assert (row.id, row.cost.micros, row.actor_id, row.area) == (finished.turn_id, 123, "dev-api", "dev")
    assert rig.heard.ended == [None]
    (call,) = rig.provider.calls
    assert call.api_key is not None
    assert call.api_key.reveal() == "sk-or-key"


async def test_a_turn_without_an_agent_is_the_models(rig: Rig) -> None:
    finished = await rig.run(agent=None)

    (row,) = rig.ledger.usages.values()
    assert finished.model == row.actor_id == "maker/workspace"
    assert row.area is None


async def test_an_unknown_session_is_no_turn(rig: Rig) -> None:
    rig.session = uuid4()

    with pytest.raises(UnknownSession):
        await rig.admit()


async def test_a_context_that_cannot_be_read_is_no_turn(rig: Rig) -> None:
    rig.ledger.is_reachable = False

    with pytest.raises(ContextUnavailable):
        await rig.admit()


async def test_the_gate_comes_after_the_binding_and_before_the_credential(rig: Rig) -> None:
    rig.ledger.add_budget(BudgetEntry(BudgetScope.SESSION, rig.session, 100, spent_micros=100))
    rig.ledger.sealed_keys.clear()

    refused = await rig.run()
    rig.ledger.bindings.clear()
    unbound = await rig.run()

    assert refused.failure == TurnFailure(FailureCode.BUDGET_EXHAUSTED, budget=BudgetScope.SESSION)
    assert refused.model == "maker/workspace"
    assert unbound.failure == TurnFailure(FailureCode.NO_MODEL)
    assert unbound.model is None
    assert rig.provider.calls == []
    assert rig.ledger.usages == {}


async def test_a_key_sealed_by_someone_else_is_no_credential(rig: Rig) -> None:
    rig.ledger.sealed_keys[rig.owner, Provider.OPENROUTER] = InMemoryVault().seal(Secret("x"))

    finished = await rig.run()

    assert finished.failure is not None
    assert finished.failure.code is FailureCode.NO_CREDENTIAL
    assert rig.heard.unreadable == 1


async def test_ollama_takes_no_credential_and_anthropic_has_no_adapter(rig: Rig) -> None:
    rig.bind(BindingScope.SESSION, str(rig.session), Provider.OLLAMA)
    local = await rig.run()
    rig.bind(BindingScope.SESSION, str(rig.session), Provider.ANTHROPIC)
    unserved = await rig.run()

    assert local.failure is None
    assert rig.provider.calls[0].api_key is None
    assert unserved.failure == TurnFailure(
        FailureCode.NO_PROVIDER, provider=Provider.ANTHROPIC, binding=BindingScope.SESSION
    )


async def test_missing_usage_is_counted_and_says_so(rig: Rig) -> None:
    rig.provider.will_say("três palavras aqui")

    finished = await rig.run()

    assert finished.usage is not None
    assert finished.usage.is_estimated
    assert finished.usage.tokens.output > 0
    assert finished.usage.tokens.input > 0
    assert not finished.usage.cost.is_implicit


async def test_a_refused_call_has_no_row(rig: Rig) -> None:
    rig.provider.will_fail(TurnFailure(FailureCode.AUTH, Provider.OPENROUTER, 401))

    finished = await rig.run()

    assert finished.usage is None
    assert rig.ledger.usages == {}
    assert rig.heard.ended == [FailureCode.AUTH]


@pytest.fixture
def slow_recorder(rig: Rig) -> SlowRecorder:
    recorder = SlowRecorder(rig)
    rig.pipeline = replace(rig.pipeline, record_usage=RecordUsage(WordTokenEstimator(), recorder))
    return recorder


async def test_the_answer_waits_for_its_row(rig: Rig, slow_recorder: SlowRecorder) -> None:
    rig.provider.will_say("um", usage=USAGE)
    running = asyncio.create_task(rig.run())

    await slow_recorder.is_asked.wait()
    await asyncio.wait({running}, timeout=0.05)

    assert not running.done()
    slow_recorder.may_write.set()
    assert (await running).turn_id in rig.ledger.usages


async def test_leaving_while_the_row_is_written_does_not_undo_it(
    rig: Rig, slow_recorder: SlowRecorder
) -> None:
    rig.provider.will_say("um", usage=USAGE)
    running = asyncio.create_task(rig.run())

    await slow_recorder.is_asked.wait()
    await asyncio.sleep(0.01)  # the turn stands at its last step
    running.cancel()
    await asyncio.wait({running})
    slow_recorder.may_write.set()
    await rig.pipeline.settled()

    assert running.cancelled()
    assert len(rig.ledger.usages) == 1


@pytest.mark.parametrize("usage", [None, USAGE], ids=["being counted", "not begun"])
async def test_a_settlement_cut_before_the_recorder_has_it_is_told_of(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, usage: ReportedUsage | None
) -> None:
    async def never(_: object, texts: object) -> int:
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(WordTokenEstimator, "count", never)
    rig.provider.will_say("um", usage=usage)
    turn = await rig.admit()
    events = turn.events()
    await anext(events)
    ending = asyncio.ensure_future(anext(events))
    while not rig.pipeline._left_behind:
        await asyncio.sleep(0)
    if usage is None:
        await asyncio.sleep(0.01)

    (settlement,) = rig.pipeline._left_behind
    settlement.cancel()
    await asyncio.wait({settlement, ending})
    await events.aclose()

    assert rig.heard.cut == [(turn.id, usage)]
    assert ending.cancelled()


async def test_a_settlement_cut_after_it_is_the_recorders_to_tell_of(
    rig: Rig, slow_recorder: SlowRecorder
) -> None:
    rig.provider.will_say("um", usage=USAGE)
    running = asyncio.create_task(rig.run())
    await slow_recorder.is_asked.wait()

    (settlement,) = rig.pipeline._left_behind
    settlement.cancel()
    await asyncio.wait({running})

    assert rig.heard.cut == []


async def test_leaving_closes_the_call_and_leaves_the_settlement_running(rig: Rig) -> None:
    rig.provider.will_reply(ScriptedReply(pieces=("um ", "dois"), hangs=True, generation_id="gen-1"))
    turn = await rig.admit()
    seen: list[object] = []

    async def read() -> None:
        async for event in turn.events():
            seen.append(event)  # noqa: PERF401 - kept when the reading is cancelled

    reading = asyncio.create_task(read())
    while len(seen) < 2:
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await rig.pipeline.settled()

    (row,) = rig.ledger.usages.values()
    assert reading.cancelled()
    assert rig.provider.closed == 1
    assert (row.is_estimated, row.generation_id) == (True, "gen-1")
    assert rig.heard.left == 1
    assert rig.heard.ended == []


async def test_a_reader_that_closes_the_events_early_leaves_too(rig: Rig) -> None:
    rig.provider.will_reply(ScriptedReply(pieces=("um ", "dois"), hangs=True))
    turn = await rig.admit()
    events = turn.events()

    await anext(events)
    await events.aclose()
    await rig.pipeline.settled()

    assert rig.provider.closed == 1
    assert len(rig.ledger.usages) == 1


@pytest.mark.parametrize("early", [True, False])
async def test_an_interrupted_turn_answers_and_is_recorded(rig: Rig, early: bool) -> None:
    rig.provider.will_reply(ScriptedReply(pieces=("um ",), hangs=True))
    turn = await rig.admit()
    if early:
        turn.interrupt(FailureCode.DRAINING)
    events = [event async for event in interrupting(turn)]

    finished = events[-1]
    assert isinstance(finished, TurnFinished)
    assert finished.failure is not None
    assert finished.failure.code is FailureCode.DRAINING
    assert finished.text == ("" if early else "um ")
    assert len(rig.ledger.usages) == (0 if early else 1)


async def interrupting(turn: Turn) -> AsyncIterator[TurnEvent]:
    async for event in turn.events():
        yield event
        turn.interrupt(FailureCode.DRAINING)


async def test_the_ceiling_ends_a_turn_with_an_answer(rig: Rig) -> None:
    rig.provider.will_reply(ScriptedReply(pieces=("um ",), hangs=True))

    finished = await rig.run(ceiling_s=0.05)

    assert finished.failure is not None
    assert finished.failure.code is FailureCode.TIMEOUT
    assert finished.text == "um "
    assert len(rig.ledger.usages) == 1


async def test_a_fault_of_ours_is_an_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr("application.record_usage.decide_cost", broken)
    rig.provider.will_say("um ", "dois", usage=USAGE)

    finished = await rig.run()

    assert finished.failure == TurnFailure(FailureCode.INTERNAL)
    assert (finished.text, finished.model) == ("um dois", "maker/workspace")
    assert all(isinstance(error, LookupError) for error in rig.heard.internal)
    assert rig.heard.internal


async def test_what_cannot_be_recorded_does_not_keep_the_answer(rig: Rig) -> None:
    rig.provider.will_say("um", usage=USAGE)
    turn = await rig.admit()
    events: list[TurnEvent] = []

    async for event in turn.events():
        events.append(event)
        rig.ledger.is_reachable, rig.journal.is_full = False, True

    assert isinstance(events[-1], TurnFinished)
    assert events[-1].usage is not None
    assert [usage.id for usage in rig.unrecorded] == [turn.id]


async def test_a_provider_that_breaks_its_promise_is_an_answer_after_its_row(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.provider.will_say("um ", "dois", usage=USAGE)
    turn = await rig.admit()
    events = turn.events()
    await anext(events)
    assert turn._chat is not None

    async def broken() -> object:
        raise LookupError("a fault")

    monkeypatch.setattr(type(turn._chat), "__anext__", lambda _: broken())
    (finished,) = [event async for event in events]

    assert isinstance(finished, TurnFinished)
    assert finished.failure == TurnFailure(FailureCode.INTERNAL)
    assert finished.text == "um "
    assert finished.usage is not None
    assert list(rig.ledger.usages) == [finished.turn_id]


CATALOGUE = (OfferedTool("rodar"), OfferedTool("editar"), OfferedTool("ler"))
AFTER_READING = (
    SaidMessage("user", "edite a.ts"),
    SaidMessage("assistant", "", (CalledTool("c1", "ler", {"path": "a.ts"}),)),
    SaidMessage("tool", "conteúdo", tool_call_id="c1"),
)
NARROWING = Choice("editar", 0.9)
SPEND = RouterSpend(Decimal("0.000052"), TokenCounts(1000, 0), is_estimated=False, generation_id="gen-dec-1")


async def admit_routed(rig: Rig, **over: Any) -> Turn:
    """A turn whose router is to be asked."""
    return await rig.admit(**{"messages": AFTER_READING, "catalogue": CATALOGUE, **over})


async def events_of(turn: Turn) -> tuple[Sequence[TurnEvent], TurnFinished]:
    """What comes before the answer, and the answer."""
    *before, finished = [event async for event in turn.events()]
    assert isinstance(finished, TurnFinished)
    return before, finished


async def test_the_narrowed_menu_reaches_the_provider_and_the_answer(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))
    rig.provider.will_say("um", usage=USAGE)

    before, finished = await events_of(await admit_routed(rig))

    (call,) = rig.provider.calls
    assert [id(tool) for tool in call.tools] == [id(CATALOGUE[1]), id(CATALOGUE[2])]
    assert before == [RoutingStarted(), TextDeltas(["um"])]
    routing = finished.routing
    assert routing is not None
    assert (routing.outcome, routing.menu, routing.is_applied) == (NARROWING, ["editar", "ler"], True)
    assert not routing.is_spend_unrecorded
    router_row, chat_row = rig.ledger.usages.values()
    assert (router_row.model_name, router_row.cost.micros) == (rig.router.model, 52)
    assert chat_row == finished.usage  # the chat's alone


async def test_started_comes_first_and_nothing_is_sent_before_it(rig: Rig) -> None:
    events = (await admit_routed(rig)).events()

    assert await anext(events) == RoutingStarted()
    assert rig.router.asked == []

    assert isinstance(await anext(events), TextDeltas)
    assert len(rig.router.asked) == 1
    await events.aclose()


async def test_without_a_request_nothing_is_said_to_have_started(rig: Rig) -> None:
    fallback = Fallback(FallbackReason.TIMEOUT, "circuit_open")
    rig.router.will_not_ask(fallback)

    before, finished = await events_of(await admit_routed(rig))

    assert before == [TextDeltas(["ok"])]
    assert finished.routing is not None
    assert (finished.routing.outcome, finished.routing.is_applied) == (fallback, False)
    assert rig.provider.calls[0].tools is CATALOGUE
    assert rig.router.asked == []


async def test_a_turn_whose_router_has_no_part_says_nothing_of_it(rig: Rig) -> None:
    off = rig.switches.off
    for over in ({"catalogue": CATALOGUE[:1]}, {"wants_whole_catalogue": True}, {}):
        if not over:
            off.add(rig.workspace)
        before, finished = await events_of(await admit_routed(rig, **over))

        assert before == [TextDeltas(["ok"])]
        assert (finished.routing, finished.failure) == (None, None)
    assert rig.switches.reads == 1
    assert rig.router.prepared == []
    assert len(rig.ledger.usages) == 3


async def test_a_router_that_raises_costs_the_turn_its_narrowing_and_no_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(ScriptedRouter, "prepare", broken)

    _, finished = await events_of(await admit_routed(rig))

    assert (finished.failure, finished.text) == (None, "ok")
    assert finished.routing is not None
    assert finished.routing.outcome == Fallback(FallbackReason.INVALID_ANSWER, "LookupError", is_ours=True)
    assert rig.provider.calls[0].tools is CATALOGUE
    assert [type(error) for error in rig.heard.internal] == [LookupError]


async def test_the_gate_is_asked_once_although_the_router_spends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counted(budgets: Sequence[Budget]) -> Budget | None:
        asked.append(budgets)
        return refusing_budget(budgets)

    monkeypatch.setattr("application.turn.refusing_budget", counted)
    rig.ledger.add_budget(BudgetEntry(BudgetScope.PROJECT, rig.project, 50))
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))

    _, finished = await events_of(await admit_routed(rig))

    assert finished.failure is None
    assert len(rig.provider.calls) == 1
    assert len(asked) == 1
    assert rig.ledger.budgets[BudgetScope.PROJECT, rig.project].spent_micros > 50


@pytest.fixture
def slow_router_row(rig: Rig) -> SlowRecorder:
    """The router's row waits; the chat's does not."""
    recorder = SlowRecorder(rig)
    decide_menu = replace(rig.pipeline.decide_menu, recorder=recorder)
    rig.pipeline = replace(rig.pipeline, decide_menu=decide_menu)
    return recorder


async def test_the_chat_does_not_wait_for_the_routers_row_and_the_answer_does(
    rig: Rig, slow_router_row: SlowRecorder
) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))
    rig.provider.will_say("um", usage=USAGE)
    events = (await admit_routed(rig)).events()

    assert await anext(events) == RoutingStarted()
    async with asyncio.timeout(5):
        assert await anext(events) == TextDeltas(["um"])
    assert slow_router_row.is_asked.is_set()
    assert rig.ledger.usages == {}
    answering = asyncio.ensure_future(anext(events))
    await asyncio.wait({answering}, timeout=0.05)
    assert not answering.done()
    assert [row.model_name for row in rig.ledger.usages.values()] == ["maker/workspace"]

    slow_router_row.may_write.set()
    finished = await answering
    assert isinstance(finished, TurnFinished)
    assert finished.routing is not None
    assert not finished.routing.is_spend_unrecorded
    assert len(rig.ledger.usages) == 2
    await events.aclose()


async def test_a_row_of_the_routers_that_is_not_written_is_said_to_be_missing(
    rig: Rig, slow_router_row: SlowRecorder
) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))
    running = asyncio.create_task(events_of(await admit_routed(rig)))
    await slow_router_row.is_asked.wait()
    while len(rig.ledger.usages) != 1:
        await asyncio.sleep(0)

    rig.ledger.is_reachable, rig.journal.is_full = False, True
    slow_router_row.may_write.set()
    _, finished = await running

    assert finished.failure is None
    assert finished.routing is not None
    assert (finished.routing.is_spend_unrecorded, finished.routing.cost_micros) == (True, 52)
    assert [row.generation_id for row in rig.unrecorded] == ["gen-dec-1"]


async def test_a_fault_while_the_routers_spend_is_recorded_is_an_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr("application.decide_step_menu.implicit_cost", broken)
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))

    _, finished = await events_of(await admit_routed(rig))

    assert finished.failure is None
    assert finished.routing is not None
    assert finished.routing.is_spend_unrecorded
    assert [type(error) for error in rig.heard.internal] == [LookupError]


async def asked_and_waiting(rig: Rig, turn: Turn) -> "asyncio.Task[tuple[Sequence[TurnEvent], TurnFinished]]":
    """The turn under way, its router asked and not yet answering."""
    running = asyncio.create_task(events_of(turn))
    while not rig.router.asked:
        await asyncio.sleep(0)
    return running


def assert_decided_and_recorded(rig: Rig) -> None:
    """What a decision leaves behind that nobody waited for: its row and no chat call."""
    (row,) = rig.ledger.usages.values()
    assert (row.generation_id, row.cost.micros, row.actor_id) == ("gen-dec-1", 52, "dev-api")
    assert rig.provider.calls == []
    assert rig.heard.internal == []


async def test_leaving_while_the_router_is_asked_lets_it_finish_and_calls_no_chat(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND), pause_s=0.1)
    running = await asked_and_waiting(rig, await admit_routed(rig))

    running.cancel()
    await asyncio.wait({running})
    assert rig.ledger.usages == {}
    await rig.pipeline.settled()

    assert running.cancelled()
    assert_decided_and_recorded(rig)
    assert rig.heard.left == 1


async def test_leaving_before_the_router_is_asked_sends_nothing(rig: Rig) -> None:
    events = (await admit_routed(rig)).events()

    assert await anext(events) == RoutingStarted()
    await events.aclose()
    await rig.pipeline.settled()

    assert (rig.router.asked, rig.provider.calls, rig.ledger.usages) == ([], [], {})


async def test_a_drain_while_the_router_is_asked_answers_at_once(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND), pause_s=0.1)
    turn = await admit_routed(rig)
    running = await asked_and_waiting(rig, turn)

    turn.interrupt(FailureCode.DRAINING)
    before, finished = await running

    assert finished.failure == TurnFailure(FailureCode.DRAINING, provider=Provider.OPENROUTER)
    assert (finished.model, finished.usage) == ("maker/workspace", None)
    assert_not_waited_for(finished)
    assert before == [RoutingStarted()]
    assert rig.ledger.usages == {}
    await rig.pipeline.settled()
    assert_decided_and_recorded(rig)


def assert_not_waited_for(finished: TurnFinished) -> None:
    """It was asked, and the turn ended before its answer."""
    routing = finished.routing
    assert routing is not None
    assert isinstance(routing.outcome, Fallback)
    assert routing.outcome.reason is FallbackReason.TIMEOUT
    assert routing.menu == routing.catalogue
    assert (routing.cost_micros, routing.is_spend_unrecorded) == (0, False)


async def test_the_ceiling_while_the_router_is_asked_answers_at_once(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND), pause_s=0.2)

    before, finished = await events_of(await admit_routed(rig, ceiling_s=0.05))

    assert finished.failure == TurnFailure(FailureCode.TIMEOUT, provider=Provider.OPENROUTER)
    assert_not_waited_for(finished)
    assert before == [RoutingStarted()]
    assert rig.ledger.usages == {}
    await rig.pipeline.settled()
    assert_decided_and_recorded(rig)


async def test_a_drain_before_the_router_is_asked_sends_nothing(rig: Rig) -> None:
    turn = await admit_routed(rig)
    turn.interrupt(FailureCode.DRAINING)

    before, finished = await events_of(turn)

    assert finished.failure is not None
    assert finished.failure.code is FailureCode.DRAINING
    assert (before, finished.routing) == ([], None)
    assert (rig.router.asked, rig.provider.calls, rig.ledger.usages) == ([], [], {})


async def test_a_drain_just_before_the_router_is_asked_sends_nothing(rig: Rig) -> None:
    turn = await admit_routed(rig)
    async with aclosing(turn.events()) as events:
        assert await anext(events) == RoutingStarted()
        turn.interrupt(FailureCode.DRAINING)
        finished = await anext(events)

    assert isinstance(finished, TurnFinished)
    assert finished.failure == TurnFailure(FailureCode.DRAINING, provider=Provider.OPENROUTER)
    assert finished.routing is None
    assert (rig.router.asked, rig.provider.calls, rig.ledger.usages) == ([], [], {})


async def test_a_chat_that_fails_has_its_router_paid_for_and_told_of(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))
    rig.provider.will_fail(TurnFailure(FailureCode.AUTH, Provider.OPENROUTER, 401))

    _, finished = await events_of(await admit_routed(rig))

    assert finished.failure is not None
    assert finished.usage is None
    assert finished.routing is not None
    assert (finished.routing.is_applied, finished.routing.cost_micros) == (True, 52)
    assert [row.generation_id for row in rig.ledger.usages.values()] == ["gen-dec-1"]


async def test_a_fault_of_ours_after_the_router_keeps_what_it_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a fault")

    monkeypatch.setattr(ScriptedProvider, "chat", broken)
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))

    _, finished = await events_of(await admit_routed(rig))

    assert finished.failure == TurnFailure(FailureCode.INTERNAL)
    assert finished.routing is not None
    assert not finished.routing.is_spend_unrecorded
    assert len(rig.ledger.usages) == 1
