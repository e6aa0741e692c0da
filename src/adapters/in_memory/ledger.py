"""What the database holds for a turn, in memory: the contexts read it and the recorder writes it."""

from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID, uuid4

from application.ports.corrections import Booked, Verdict
from application.ports.credential_vault import SealedKey
from domain.binding import BindingScope, BoundModel
from domain.budget import BudgetPolicy, BudgetScope, crossed_thresholds
from domain.provider import Provider
from domain.settlement import RouterOutcome, Settlement, TurnEnd
from domain.usage import TokenUsage, to_micros


@dataclass(slots=True)
class BudgetEntry:
    """A row of `budgets`. `owner_id` is the project's or the session's."""

    scope: BudgetScope
    owner_id: UUID
    limit_micros: int
    policy: BudgetPolicy = BudgetPolicy.BLOCK
    spent_micros: int = 0
    last_threshold_notified: int = 0
    is_strict: bool = False
    held_micros: int = 0
    armings: int = 0
    id: UUID = field(default_factory=uuid4)


@dataclass(slots=True)
class AreaEntry:
    """A row of `agent_areas`."""

    limit_micros: int | None = None
    spent_micros: int = 0
    id: UUID = field(default_factory=uuid4)


@dataclass(slots=True)
class HoldEntry:
    """A row of `budget_holds`: what is held of one budget for one turn."""

    granted_micros: int
    chat_micros: int
    router_micros: int
    settled_micros: int = 0
    has_ended: bool = False

    @property
    def held_micros(self) -> int:
        return self.chat_micros + self.router_micros


@dataclass(frozen=True, slots=True)
class CorrectionEntry:
    """A row of `usage_corrections`."""

    source: str
    figure_usd: Decimal
    delta_micros: int
    delta_usd: Decimal


@dataclass(frozen=True, slots=True)
class ThresholdCrossed:
    """An announcement in the outbox."""

    budget_id: UUID
    scope: BudgetScope
    scope_id: UUID
    threshold: int
    spent_micros: int
    limit_micros: int
    arming: int
    traceparent: str | None


@dataclass(slots=True)
class InMemoryLedger:
    """One world of workspaces. Fill it through the `add_…` methods; everything may be read and changed directly."""

    workspace_owners: dict[UUID, UUID] = field(default_factory=dict)
    project_workspaces: dict[UUID, UUID] = field(default_factory=dict)
    session_projects: dict[UUID, UUID] = field(default_factory=dict)
    bindings: dict[tuple[BindingScope, str], BoundModel] = field(default_factory=dict)
    """By scope and `scope_id`, which for agents and areas is `<project id>:<slug>`."""
    budgets: dict[tuple[BudgetScope, UUID], BudgetEntry] = field(default_factory=dict)
    areas: dict[tuple[UUID, str], AreaEntry] = field(default_factory=dict)
    """By project and key."""
    sealed_keys: dict[tuple[UUID, Provider], SealedKey] = field(default_factory=dict, repr=False)
    """By user and provider."""
    usages: dict[UUID, TokenUsage] = field(default_factory=dict)
    parked: dict[UUID, TokenUsage] = field(default_factory=dict)
    """Rows of sessions that were gone."""
    corrections: dict[UUID, list[CorrectionEntry]] = field(default_factory=dict)
    """By the row they correct."""
    ends: dict[UUID, TurnEnd] = field(default_factory=dict)
    """By turn."""
    holds: dict[tuple[UUID, UUID], HoldEntry] = field(default_factory=dict)
    """By turn and budget."""
    open_truths: dict[UUID, TokenUsage] = field(default_factory=dict)
    """Rows whose true cost is to be asked of the provider."""
    outbox: list[ThresholdCrossed] = field(default_factory=list)
    is_reachable: bool = True
    """False plays a database that is out of reach."""

    def add_workspace(self, owner_id: UUID) -> UUID:
        workspace_id = uuid4()
        self.workspace_owners[workspace_id] = owner_id
        return workspace_id

    def add_project(self, workspace_id: UUID) -> UUID:
        project_id = uuid4()
        self.project_workspaces[project_id] = workspace_id
        return project_id

    def add_session(self, project_id: UUID) -> UUID:
        session_id = uuid4()
        self.session_projects[session_id] = project_id
        return session_id

    def add_budget(self, entry: BudgetEntry) -> None:
        self.budgets[entry.scope, entry.owner_id] = entry

    def settle(self, settlement: Settlement) -> None:
        """Enter a settlement and move what it moves; what is there already moves nothing, and another figure is a
        correction."""
        usage, end = settlement.usage, settlement.end
        is_new_end = end is not None and end.start.turn_id not in self.ends
        if end is not None and is_new_end:
            self.ends[end.start.turn_id] = end
        if usage is not None:
            if usage.id in self.usages or usage.id in self.parked:
                self._correct_settled(usage)
            else:
                self._enter(usage)
        elif end is not None and is_new_end:
            for entry, hold in self._holds_of(settlement.turn_id):
                self._hold(entry, hold, chat_micros=0)
        if end is not None and is_new_end:
            for entry, hold in self._holds_of(settlement.turn_id):
                hold.has_ended = True
                if end.router in (None, RouterOutcome.FREE):
                    self._hold(entry, hold, router_micros=0)

    def correct(self, usage_id: UUID, source: str, figure_usd: Decimal, *, is_certain: bool) -> Booked | None:
        """Book a figure of a row; None when there is no such row. Sources: `provider`, `settlement`, `estimate`."""
        usage = self.usages.get(usage_id) or self.parked.get(usage_id)
        if usage is None:
            return None
        booked = self.corrections.setdefault(usage_id, [])
        original_usd = figure_of(usage)
        now_usd = original_usd + sum((one.delta_usd for one in booked), Decimal(0))
        now_micros = usage.cost.micros + sum(one.delta_micros for one in booked)
        delta_micros = to_micros(figure_usd) - now_micros
        sources = {one.source for one in booked}
        is_known = any((one.source, one.figure_usd) == (source, figure_usd) for one in booked)
        if source == "provider" and now_usd == figure_usd and not delta_micros:
            verdict = Verdict.EQUAL
        elif (
            is_known
            or (source != "provider" and (figure_usd == original_usd or "provider" in sources))
            or (source == "estimate" and (not usage.is_estimated or sources - {"estimate"}))
        ):
            verdict = Verdict.KNOWN
        else:
            verdict = Verdict.CORRECTED
            booked.append(CorrectionEntry(source, figure_usd, delta_micros, figure_usd - now_usd))
            self._move(usage, delta_micros)
        if source == "provider":
            self.open_truths.pop(usage_id, None)
        if verdict is not Verdict.KNOWN:
            for entry, hold in self._holds_of(usage.turn_id):
                hold.settled_micros += delta_micros
                if is_certain:
                    self._free(entry, hold, is_chat=usage_id == usage.turn_id)
        return Booked(verdict, delta_micros if verdict is Verdict.CORRECTED else 0)

    def write_off(self, usage_id: UUID, turn_id: UUID) -> None:
        """Close the question what a row cost, and free what is held for it."""
        self.open_truths.pop(usage_id, None)
        for entry, hold in self._holds_of(turn_id):
            self._free(entry, hold, is_chat=usage_id == turn_id)

    def _enter(self, usage: TokenUsage) -> None:
        ledger = self.usages if usage.session_id in self.session_projects else self.parked
        ledger[usage.id] = usage
        self._move(usage, usage.cost.micros)
        if usage.awaits_truth:
            self.open_truths[usage.id] = usage
        is_chat = usage.id == usage.turn_id
        for entry, hold in self._holds_of(usage.turn_id):
            hold.settled_micros += usage.cost.micros
            if not usage.awaits_truth:
                self._free(entry, hold, is_chat=is_chat)
            elif is_chat:
                self._hold(entry, hold, chat_micros=max(0, hold.chat_micros - usage.cost.micros))
            else:
                self._hold(entry, hold, router_micros=max(0, hold.router_micros - usage.cost.micros))

    def _correct_settled(self, usage: TokenUsage) -> None:
        self.correct(
            usage.id,
            "estimate" if usage.is_estimated else "settlement",
            figure_of(usage),
            is_certain=not usage.awaits_truth,
        )

    def _move(self, usage: TokenUsage, micros: int) -> None:
        for owner in ((BudgetScope.PROJECT, usage.project_id), (BudgetScope.SESSION, usage.session_id)):
            if entry := self.budgets.get(owner):
                self._charge(entry, micros, usage.traceparent)
        if usage.area is not None and (area := self.areas.get((usage.project_id, usage.area))):
            area.spent_micros += micros

    def _holds_of(self, turn_id: UUID) -> list[tuple[BudgetEntry, HoldEntry]]:
        by_id = {entry.id: entry for entry in self.budgets.values()}
        return [
            (by_id[budget_id], hold)
            for (of_turn, budget_id), hold in self.holds.items()
            if of_turn == turn_id and budget_id in by_id
        ]

    def _free(self, entry: BudgetEntry, hold: HoldEntry, *, is_chat: bool) -> None:
        if is_chat:
            self._hold(entry, hold, chat_micros=0)
        else:
            self._hold(entry, hold, router_micros=0)

    def _hold(
        self,
        entry: BudgetEntry,
        hold: HoldEntry,
        *,
        chat_micros: int | None = None,
        router_micros: int | None = None,
    ) -> None:
        before_micros = hold.held_micros
        hold.chat_micros = hold.chat_micros if chat_micros is None else chat_micros
        hold.router_micros = hold.router_micros if router_micros is None else router_micros
        entry.held_micros += hold.held_micros - before_micros

    def _charge(self, entry: BudgetEntry, micros: int, traceparent: str | None) -> None:
        entry.spent_micros += micros
        crossed = crossed_thresholds(
            spent_micros=entry.spent_micros,
            limit_micros=entry.limit_micros,
            last_notified_percent=entry.last_threshold_notified,
        )
        for threshold in crossed:
            entry.last_threshold_notified = threshold
            self.outbox.append(
                ThresholdCrossed(
                    budget_id=entry.id,
                    scope=entry.scope,
                    scope_id=entry.owner_id,
                    threshold=threshold,
                    spent_micros=entry.spent_micros,
                    limit_micros=entry.limit_micros,
                    arming=entry.armings,
                    traceparent=traceparent,
                )
            )


def figure_of(usage: TokenUsage) -> Decimal:
    """What a row says it cost, in USD: exactly where the provider said so."""
    exact_usd = usage.cost.charged_usd
    return Decimal(usage.cost.micros) / 1_000_000 if exact_usd is None else exact_usd
