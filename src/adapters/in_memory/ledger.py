"""What the database holds for a turn, in memory: the contexts read it and the recorder writes it."""

from dataclasses import dataclass, field
from uuid import UUID, uuid4

from application.ports.credential_vault import SealedKey
from domain.binding import BindingScope, BoundModel
from domain.budget import BudgetPolicy, BudgetScope, crossed_thresholds
from domain.provider import Provider
from domain.usage import TokenUsage


@dataclass(slots=True)
class BudgetEntry:
    """A row of `budgets`. `owner_id` is the project's or the session's."""

    scope: BudgetScope
    owner_id: UUID
    limit_micros: int
    policy: BudgetPolicy = BudgetPolicy.BLOCK
    spent_micros: int = 0
    last_threshold_notified: int = 0
    id: UUID = field(default_factory=uuid4)


@dataclass(slots=True)
class AreaEntry:
    """A row of `agent_areas`."""

    limit_micros: int | None = None
    spent_micros: int = 0


@dataclass(frozen=True, slots=True)
class ThresholdCrossed:
    """An announcement in the outbox."""

    budget_id: UUID
    scope: BudgetScope
    scope_id: UUID
    threshold: int
    spent_micros: int
    limit_micros: int
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

    def settle(self, usage: TokenUsage) -> bool:
        """Enter a record and move what it moves; a record that is there already moves nothing.

        False when there is no such session.
        """
        if usage.id in self.usages:
            return True
        if usage.session_id not in self.session_projects:
            return False
        self.usages[usage.id] = usage
        for owner in ((BudgetScope.PROJECT, usage.project_id), (BudgetScope.SESSION, usage.session_id)):
            if entry := self.budgets.get(owner):
                self._charge(entry, usage)
        if usage.area is not None and (area := self.areas.get((usage.project_id, usage.area))):
            area.spent_micros += usage.cost.micros
        return True

    def _charge(self, entry: BudgetEntry, usage: TokenUsage) -> None:
        entry.spent_micros += usage.cost.micros
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
                    traceparent=usage.traceparent,
                )
            )
