"""Whether the router is asked, what its word does to the menu, and what it costs; on the in-memory twins."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from adapters.in_memory.clock import ManualClock
from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import AreaEntry, BudgetEntry, InMemoryLedger
from adapters.in_memory.router_switches import InMemoryRouterSwitches
from adapters.in_memory.tool_router import ScriptedRouter
from adapters.in_memory.usage_recorder import InMemoryUsageRecorder
from application.decide_step_menu import DecideStepMenu, Decision, MenuRequest
from application.ports.tool_router import Question
from domain.budget import BudgetScope
from domain.provider import Provider
from domain.routing import (
    Choice,
    Fallback,
    FallbackOrigin,
    FallbackReason,
    RouterSpend,
    Routing,
    RunnerUp,
    Verdict,
)
from domain.secret import Secret
from domain.settlement import TurnStart
from domain.step import Step
from domain.usage import ActorKind, Cost, Prices, TokenCounts, TokenUsage
from tests.support.ledger_worlds import start_of
from tests.support.loop_gaps import watched_loop
from tests.support.steps import ACall, ATool, Said, tools

KEY = Secret("sk-or-key")
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AFTER_READING = (
    Said("system", "contexto"),
    Said("user", "edite a.ts"),
    Said("assistant", "", (ACall("ler", "c1", {"path": "a.ts"}),)),
    Said("tool", "conteúdo", tool_call_id="c1"),
)
SPEND = RouterSpend(
    Decimal("0.000051912"),
    TokenCounts(1236, 7),
    is_estimated=False,
    generation_id="gen-dec-1",
    resolved_model="typesafe/jev-1.13-20260917",
)
NARROWING = Choice("editar", 0.87, RunnerUp("rodar", 0.1))

NOT_ASKED: Mapping[str, Mapping[str, Any]] = {
    "another provider": {"provider": Provider.OPENAI},
    "no credential is needed": {"provider": Provider.OLLAMA, "api_key": None},
    "no key": {"api_key": None},
    "no tools": {"catalogue": ()},
    "one tool": {"catalogue": tools("ler")},
    "no agent": {"agent": None},
    "anamnese": {"agent": "anamnese"},
    "context-manager": {"agent": "context-manager"},
    "the whole catalogue is wanted": {"wants_whole_catalogue": True},
}
"""The conditions that come before the switch, each broken alone."""


class Rig:
    """One session, and the use case over the twins."""

    def __init__(self) -> None:
        self.ledger = InMemoryLedger()
        self.workspace = self.ledger.add_workspace(uuid4())
        self.project = self.ledger.add_project(self.workspace)
        self.session = self.ledger.add_session(self.project)
        self.router = ScriptedRouter()
        self.switches = InMemoryRouterSwitches()
        self.journal = InMemoryJournal()
        self.unrecorded: list[TokenUsage] = []
        self.internal: list[BaseException] = []
        self.unreadable: list[UUID] = []
        self.clock = ManualClock(datetime(2026, 9, 18, 12, 0, tzinfo=UTC))
        self.use_case = DecideStepMenu(
            router=self.router,
            switches=self.switches,
            recorder=InMemoryUsageRecorder(self.ledger, self.journal, on_unrecorded=self.unrecorded.append),
            clock=self.clock,
            on_internal_failure=self._failed,
            on_switch_unreadable=self.unreadable.append,
        )

    def _failed(self, _turn_id: UUID | None, error: BaseException) -> None:
        self.internal.append(error)

    def request(self, **over: Any) -> MenuRequest:
        of_start = {name: over.pop(name) for name in ("workspace_id", "agent", "traceparent") if name in over}
        usual = MenuRequest(
            start=self.start(over.pop("provider", Provider.OPENROUTER), **of_start),
            api_key=KEY,
            messages=AFTER_READING,
            catalogue=tools("ler", "editar", "rodar"),
            wants_whole_catalogue=False,
        )
        return replace(usual, **over)

    def start(self, provider: Provider, **over: Any) -> TurnStart:
        usual = start_of(
            workspace_id=self.workspace,
            project_id=self.project,
            session_id=self.session,
            agent="dev-api",
            traceparent=TRACEPARENT,
        )
        return replace(usual, provider=provider, **over)

    async def prepared(self, **over: Any) -> Decision:
        decision = await self.use_case.prepare(self.request(**over))
        assert decision is not None
        return decision

    async def decided(self, **over: Any) -> tuple[Decision, Routing]:
        """Run to its end, as a turn does."""
        decision = await self.prepared(**over)
        is_recorded = await decision.run() if decision.is_asked else True
        return decision, decision.routing(is_spend_recorded=is_recorded)


@pytest.fixture
def rig() -> Rig:
    return Rig()


class BrokenRouter(ScriptedRouter):
    """Breaks its promise never to raise, before the question or while it is asked."""

    def __init__(self, *, at_once: bool) -> None:
        super().__init__()
        self._at_once = at_once

    async def prepare(self, step: Step, api_key: Secret) -> Question | Fallback:
        if self._at_once:
            raise LookupError("text with a secret")
        return _BrokenQuestion()


class _BrokenQuestion(Question):
    async def ask(self) -> Verdict:
        raise LookupError("text with a secret")


class UnreadableCall(ACall):
    """A call that no reader gets to the arguments of."""

    def __getattribute__(self, name: str) -> Any:
        if name == "arguments":
            raise LookupError("text with a secret")
        return super().__getattribute__(name)


@pytest.mark.parametrize("over", NOT_ASKED.values(), ids=NOT_ASKED)
async def test_a_condition_that_does_not_hold_ends_it_before_the_switch_is_read(
    rig: Rig, over: Mapping[str, Any]
) -> None:
    assert await rig.use_case.prepare(rig.request(**over)) is None
    assert rig.switches.reads == 0
    assert rig.router.prepared == []


async def test_the_switch_is_read_only_when_all_the_others_hold(rig: Rig) -> None:
    broken: Sequence[Mapping[str, Any]] = (
        {"provider": Provider.OPENAI},
        {"api_key": None},
        {"catalogue": tools("ler")},
        {"agent": "anamnese"},
        {"wants_whole_catalogue": True},
    )
    for chosen in product((False, True), repeat=len(broken)):
        over: dict[str, Any] = {}
        for is_broken, change in zip(chosen, broken, strict=True):
            over |= change if is_broken else {}
        rig.switches.reads = 0

        decision = await rig.use_case.prepare(rig.request(**over))

        assert rig.switches.reads == (0 if any(chosen) else 1), over
        assert (decision is None) is any(chosen), over


async def test_off_and_unreadable_are_read_once_and_end_it(rig: Rig) -> None:
    rig.switches.off.add(rig.workspace)
    assert await rig.use_case.prepare(rig.request()) is None
    assert rig.switches.reads == 1

    rig.switches.off.clear()
    rig.switches.is_readable = False
    assert rig.unreadable == []
    assert await rig.use_case.prepare(rig.request()) is None
    assert rig.switches.reads == 2
    assert rig.unreadable == [rig.workspace]

    assert rig.router.prepared == []
    assert rig.internal == []


async def test_a_switch_that_fails_otherwise_costs_the_narrowing_and_is_told_of(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_workspace_id: UUID) -> bool:
        raise OSError("no file left")

    monkeypatch.setattr(rig.switches, "is_on", fail)
    assert await rig.use_case.prepare(rig.request()) is None
    assert [type(error) for error in rig.internal] == [OSError]


async def test_it_is_read_anew_for_every_step(rig: Rig) -> None:
    rig.switches.off.add(uuid4())
    assert await rig.use_case.prepare(rig.request()) is not None
    rig.switches.off.add(rig.workspace)
    assert await rig.use_case.prepare(rig.request()) is None
    rig.switches.off.clear()
    assert await rig.use_case.prepare(rig.request()) is not None


async def test_two_tools_of_one_name_are_two(rig: Rig) -> None:
    assert await rig.use_case.prepare(rig.request(catalogue=tools("ler", "ler"))) is not None


async def test_preparing_sends_nothing_and_running_sends_once_with_the_key(rig: Rig) -> None:
    decision = await rig.prepared()
    assert decision.is_asked
    assert rig.router.asked == []
    assert not decision.decided.done()

    await decision.run()

    (step,) = rig.router.asked
    assert rig.router.keys == [KEY]
    assert (step.agent, step.context, step.request, step.previous_tool) == (
        "dev-api",
        "contexto",
        "edite a.ts",
        "ler",
    )


async def test_the_menu_is_the_choice_and_the_previous_tool_and_the_catalogues_own(rig: Rig) -> None:
    catalogue = tools("rodar", "editar", "procurar", "ler")
    rig.router.will_say(Verdict(NARROWING, 12, SPEND))

    decision, routing = await rig.decided(catalogue=catalogue)

    assert [id(tool) for tool in decision.menu] == [id(catalogue[1]), id(catalogue[3])]
    assert routing == Routing(
        model=rig.router.model,
        catalogue=["rodar", "editar", "procurar", "ler"],
        menu=["editar", "ler"],
        previous_tool="ler",
        outcome=NARROWING,
        latency_ms=12,
        cost_micros=52,
        is_spend_unrecorded=False,
    )
    assert routing.is_applied


@pytest.mark.parametrize(
    ("choice", "messages", "previous"),
    [
        ("responder_sem_ferramenta", AFTER_READING, "ler"),
        ("editar", (Said("user", "edite"),), None),
        ("editar", (), None),
        ("editar", (Said("assistant", "", (ACall("apagar"),)),), "apagar"),
    ],
    ids=["no tool fits", "no previous tool", "no messages", "previous tool is not on the catalogue"],
)
async def test_without_a_narrowing_the_menu_is_the_catalogue_itself(
    rig: Rig, choice: str, messages: Sequence[Said], previous: str | None
) -> None:
    catalogue = tools("ler", "editar", "rodar")
    rig.router.will_say(Verdict(Choice(choice, 0.9), 12))

    decision, routing = await rig.decided(catalogue=catalogue, messages=messages)

    assert decision.menu is catalogue
    assert (routing.is_applied, routing.previous_tool) == (False, previous)
    assert routing.outcome == Choice(choice, 0.9)


async def test_a_fallback_without_a_question_is_decided_at_once(rig: Rig) -> None:
    fallback = Fallback(FallbackReason.STATE_TOO_LARGE, "9000 tokens")
    rig.router.will_not_ask(fallback)

    decision, routing = await rig.decided()

    assert not decision.is_asked
    assert decision.decided.done()
    assert (routing.outcome, routing.latency_ms, routing.cost_micros) == (fallback, 0, 0)
    assert [routing.menu, routing.is_applied, routing.is_spend_unrecorded] == [
        routing.catalogue,
        False,
        False,
    ]
    assert rig.router.asked == []


@pytest.mark.parametrize(
    ("outcome", "is_estimated"),
    [
        (NARROWING, False),
        (Choice("responder_sem_ferramenta"), True),
        (Fallback(FallbackReason.CHOICE_NOT_OFFERED, "nenhuma"), False),
        (Fallback(FallbackReason.INVALID_ANSWER, "não é JSON"), True),
        (Fallback(FallbackReason.TIMEOUT, "tarde"), False),
    ],
    ids=["narrowed", "whole", "not offered", "invalid", "late"],
)
async def test_a_cost_is_a_row_whatever_came_of_it(
    rig: Rig, outcome: Choice | Fallback, is_estimated: bool
) -> None:
    rig.router.will_say(Verdict(outcome, 317, replace(SPEND, is_estimated=is_estimated)))

    _, routing = await rig.decided()

    (row,) = rig.ledger.usages.values()
    assert row == TokenUsage(
        id=row.id,
        turn_id=row.turn_id,
        session_id=rig.session,
        project_id=rig.project,
        actor_kind=ActorKind.AGENT,
        actor_id="dev-api",
        area="dev",
        provider=Provider.OPENROUTER,
        model_id=None,
        model_name=rig.router.model,
        tokens=TokenCounts(1236, 7),
        is_estimated=is_estimated,
        awaits_truth=False,
        # 52 × 1,000,000 ÷ 1,243 = 41,834.27…
        cost=Cost(52, Prices(41_834, 41_834), True, None, SPEND.charged_usd),
        latency_ms=317,
        binding_origin=None,
        routing_preference=None,
        upstream_provider=None,
        resolved_model_name="typesafe/jev-1.13-20260917",
        generation_id="gen-dec-1",
        created_at=rig.clock.now(),
        traceparent=TRACEPARENT,
    )
    assert row.id != row.turn_id
    assert (routing.cost_micros, routing.is_spend_unrecorded) == (52, False)


async def test_it_counts_for_budgets_and_area_and_without_an_area_for_none(rig: Rig) -> None:
    rig.ledger.add_budget(BudgetEntry(BudgetScope.PROJECT, rig.project, 1_000))
    rig.ledger.add_budget(BudgetEntry(BudgetScope.SESSION, rig.session, 50))
    rig.ledger.areas[rig.project, "dev"] = AreaEntry()
    for _ in range(2):
        rig.router.will_say(Verdict(NARROWING, 1, SPEND))

    await rig.decided(agent="dev-api")
    await rig.decided(agent="criativo")

    assert [entry.spent_micros for entry in rig.ledger.budgets.values()] == [104, 104]
    assert rig.ledger.areas[rig.project, "dev"].spent_micros == 52
    assert [row.area for row in rig.ledger.usages.values()] == ["dev", None]
    assert len(rig.ledger.usages) == 2


async def test_a_cost_of_zero_is_a_row_and_no_cost_is_none(rig: Rig) -> None:
    rig.router.will_say(Verdict(NARROWING, 1, replace(SPEND, charged_usd=Decimal(0))))
    rig.router.will_say(Verdict(NARROWING, 1))

    free, free_routing = await rig.decided()
    silent, silent_routing = await rig.decided()

    assert [row.cost.micros for row in rig.ledger.usages.values()] == [0]
    assert free.is_asked
    assert silent.is_asked
    for routing in (free_routing, silent_routing):
        assert (routing.cost_micros, routing.is_spend_unrecorded) == (0, False)


async def test_a_row_that_is_not_written_is_said_to_be_missing(rig: Rig) -> None:
    rig.ledger.is_reachable = False
    rig.router.will_say(Verdict(NARROWING, 1, SPEND))
    rig.router.will_say(Verdict(NARROWING, 1, SPEND))

    _, kept = await rig.decided()
    assert kept.is_spend_unrecorded is False  # the disk has it
    rig.journal.is_full = True
    _, routing = await rig.decided()

    assert (routing.is_spend_unrecorded, routing.cost_micros, routing.is_applied) == (True, 52, True)
    assert len(rig.unrecorded) == 1


@pytest.mark.parametrize("at_once", [True, False], ids=["preparing", "asking"])
async def test_a_router_that_raises_costs_the_narrowing_and_no_more(rig: Rig, at_once: bool) -> None:
    rig.use_case = replace(rig.use_case, router=BrokenRouter(at_once=at_once))

    _, routing = await rig.decided()

    assert_is_fault_of_ours(routing, rig)


async def test_a_step_that_cannot_be_read_costs_the_narrowing_and_no_more(rig: Rig) -> None:
    decision, routing = await rig.decided(messages=[Said("assistant", "", [UnreadableCall("ler")])])

    assert not decision.is_asked
    assert routing.previous_tool is None
    assert_is_fault_of_ours(routing, rig)


def assert_is_fault_of_ours(routing: Routing, rig: Rig) -> None:
    outcome = routing.outcome
    assert isinstance(outcome, Fallback)
    assert (outcome.reason, outcome.origin) == (FallbackReason.INVALID_ANSWER, FallbackOrigin.CODE)
    assert outcome.detail == "LookupError"
    assert routing.menu == routing.catalogue == ["ler", "editar", "rodar"]
    assert [type(error) for error in rig.internal] == [LookupError]
    assert rig.ledger.usages == {}


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def from_deep_within(levels: int, rig: Rig, messages: Sequence[Said]) -> Decision:
    """As `prepared`, with so many frames above it."""
    if levels:
        return await from_deep_within(levels - 1, rig, messages)
    return await rig.prepared(messages=messages)


@pytest.mark.parametrize("frames", [0, 200, 600])
async def test_arguments_of_899_levels_are_read_whatever_is_left_of_the_stack(rig: Rig, frames: int) -> None:
    messages = [Said("assistant", "", (ACall("ler", None, {"x": nested(898)}),))]

    decision = await from_deep_within(frames, rig, messages)
    await decision.run()

    (step,) = rig.router.asked
    (recent,) = step.recent_calls
    # {"x":  and 898 brackets each way and  }
    assert recent.arguments == '{"x":' + "[" * 495 + f"…[+{5 + 2 * 898 + 1 - 500}]"
    assert rig.internal == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "a.ts", "content": "O relatório lista o que há. " * 400_000},
        {"content": "a" * 10 * 2**20},
        {f"k{at}": "x" * 1_000 for at in range(5_000)},
    ],
    ids=["10 MB of prose", "10 MB of ASCII", "5 MB in 5,000 values"],
)
async def test_long_arguments_do_not_hold_the_event_loop(rig: Rig, arguments: dict[str, Any]) -> None:
    messages = [Said("assistant", "", (ACall("ler", None, arguments),))]

    async with watched_loop() as gaps:
        decision = await rig.prepared(messages=messages)
        await asyncio.sleep(0)

    await decision.run()
    assert len(rig.router.asked[0].recent_calls[0].arguments) < 600
    assert gaps.largest_ms < 20


async def test_contents_and_keys_are_not_in_a_repr(rig: Rig) -> None:
    request = rig.request(catalogue=[ATool("ler", "segredo"), ATool("editar", "segredo")])
    decision = await rig.prepared(messages=[Said("user", "segredo")])

    assert "segredo" not in repr(request) + repr(decision)
    assert "sk-or-key" not in repr(request) + repr(decision)
