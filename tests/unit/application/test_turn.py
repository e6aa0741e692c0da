"""The turn on the in-memory twins: the order of its steps, and what it leaves behind."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.credential_vault import InMemoryVault
from adapters.in_memory.ledger import BudgetEntry, InMemoryLedger
from adapters.in_memory.llm_provider import ScriptedProvider, ScriptedReply
from adapters.in_memory.token_estimator import WordTokenEstimator
from adapters.in_memory.turn_contexts import InMemoryTurnContexts
from adapters.in_memory.usage_recorder import InMemoryUsageRecorder
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from application.ports.turn_context import ContextUnavailable
from application.ports.turn_telemetry import TurnTelemetry
from application.record_usage import RecordUsage
from application.turn import (
    TextDeltas,
    Turn,
    TurnEvent,
    TurnFinished,
    TurnPipeline,
    TurnRequest,
    UnknownSession,
)
from domain.binding import BindingScope, BoundModel
from domain.budget import BudgetScope
from domain.failure import FailureCode, TurnFailure
from domain.provider import Provider
from domain.secret import Secret
from domain.step import CalledTool
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
        self,
        turn_id: UUID,
        *,
        session_id: UUID,
        project_id: UUID,
        bound: BoundModel,
        usage: ReportedUsage | None,
        generation_id: str | None,
    ) -> None:
        self.cut.append((turn_id, usage))

    def internal_failure(self, turn_id: UUID | None, error: BaseException) -> None:
        self.internal.append(error)


class SlowRecorder(InMemoryUsageRecorder):
    """Writes when it is let."""

    def __init__(self, rig: "Rig") -> None:
        super().__init__(rig.ledger, on_unrecorded=rig.unrecorded.append)
        self.is_asked = asyncio.Event()
        self.may_write = asyncio.Event()

    async def record(self, usage: TokenUsage) -> bool:
        self.is_asked.set()
        await self.may_write.wait()
        return await super().record(usage)


class Rig:
    """One workspace with all that a turn needs, over the twins."""

    def __init__(self) -> None:
        self.ledger = InMemoryLedger()
        self.provider = ScriptedProvider()
        self.vault = InMemoryVault()
        self.heard = Heard()
        self.unrecorded: list[TokenUsage] = []
        self.owner = uuid4()
        self.workspace = self.ledger.add_workspace(self.owner)
        self.project = self.ledger.add_project(self.workspace)
        self.session = self.ledger.add_session(self.project)
        self.ledger.sealed_keys[self.owner, Provider.OPENROUTER] = self.vault.seal(Secret("sk-or-key"))
        self.bind(BindingScope.WORKSPACE, str(self.workspace))
        self.pipeline = TurnPipeline(
            contexts=InMemoryTurnContexts(self.ledger),
            provider=self.provider,
            served=frozenset({Provider.OPENROUTER, Provider.OLLAMA}),
            vault=self.vault,
            record_usage=RecordUsage(
                WordTokenEstimator(),
                InMemoryUsageRecorder(self.ledger, on_unrecorded=self.unrecorded.append),
            ),
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

    async def admit(self, *, agent: str | None = "dev-api", ceiling_s: float = 30) -> Turn:
        return await self.pipeline.admit(
            TurnRequest(
                session_id=self.session,
                project_id=self.project,
                agent=agent,
                messages=[SaidMessage("user", "duas palavras")],
                tools=[OfferedTool()],
                wants_whole_catalogue=False,
                started_s=self.pipeline.clock.monotonic(),
                ceiling_s=ceiling_s,
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
    while not rig.pipeline._settlements:
        await asyncio.sleep(0)
    if usage is None:
        await asyncio.sleep(0.01)

    (settlement,) = rig.pipeline._settlements
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

    (settlement,) = rig.pipeline._settlements
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
    rig.ledger.is_reachable = False

    events = [event async for event in turn.events()]

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
