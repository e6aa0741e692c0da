"""One world a contract test, held by PostgreSQL or in memory, with the same handles on both."""

import base64
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from adapters.in_memory.budgets import InMemoryAgentAreas, InMemoryBudgets
from adapters.in_memory.holds import InMemoryHolds
from adapters.in_memory.journal import InMemoryJournal
from adapters.in_memory.ledger import AreaEntry, BudgetEntry, HoldEntry, InMemoryLedger
from adapters.in_memory.spending import InMemorySpending
from adapters.in_memory.turn_contexts import InMemoryTurnContexts
from adapters.in_memory.usage_recorder import InMemoryCorrections, InMemoryUsageRecorder
from adapters.postgres.agent_areas import PostgresAgentAreas
from adapters.postgres.budgets import PostgresBudgets
from adapters.postgres.corrections import PostgresCorrections
from adapters.postgres.holds import PostgresHolds
from adapters.postgres.pool import holds_pool, owners_pool, read_pool, write_pool
from adapters.postgres.spending import PostgresSpending
from adapters.postgres.turn_contexts import PostgresTurnContexts
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from application.ports.agent_areas import AgentAreas
from application.ports.budgets import Budgets
from application.ports.corrections import Corrections
from application.ports.credential_vault import SealedKey
from application.ports.holds import Holds
from application.ports.spending import SpendingBooks
from application.ports.turn_context import TurnContexts
from application.ports.usage_recorder import UsageRecorder
from domain.binding import BindingScope, BoundModel
from domain.budget import BudgetPolicy, BudgetScope
from domain.provider import Provider
from domain.settlement import Settlement, TurnStart
from domain.usage import ActorKind, Cost, Prices, TokenCounts, TokenUsage
from tests.support import brabo_data

HELD_BY: Final = ("in_memory", "postgres")


def usage_of(world: "LedgerWorld", cost_micros: int = 10, **changes: Any) -> TokenUsage:
    """A record of the world's session; `changes` are fields of it."""
    return usage_of_session(world.session_id, world.project_id, cost_micros, **changes)


def usage_of_session(
    session_id: UUID, project_id: UUID, cost_micros: int = 10, /, **changes: Any
) -> TokenUsage:
    """The same of any session."""
    usage_id = uuid4()
    usage = TokenUsage(
        id=usage_id,
        turn_id=changes.get("id", usage_id),
        session_id=session_id,
        project_id=project_id,
        actor_kind=ActorKind.AGENT,
        actor_id="escriba",
        area=None,
        provider=Provider.OPENROUTER,
        model_id=None,
        model_name="maker/model",
        tokens=TokenCounts(120, 30),
        is_estimated=False,
        awaits_truth=False,
        cost=Cost(cost_micros, Prices(150_000, 600_000), is_implicit=False, catalogue_micros=None),
        latency_ms=321,
        binding_origin=None,
        routing_preference=None,
        upstream_provider=None,
        resolved_model_name=None,
        generation_id=None,
        created_at=datetime(2026, 9, 1, 12, 30, 45, 123456, UTC),
    )
    return replace(usage, **changes)


def start_of(**fields: Any) -> TurnStart:
    """A start; `fields` are its own."""
    now = datetime(2026, 9, 1, 12, 30, tzinfo=UTC)
    usual: dict[str, Any] = {
        "turn_id": uuid4(),
        "router_usage_id": uuid4(),
        "workspace_id": uuid4(),
        "project_id": uuid4(),
        "session_id": uuid4(),
        "agent": "escriba",
        "provider": Provider.OPENROUTER,
        "model_id": uuid4(),
        "model_name": "maker/model",
        "prices": Prices(150_000, 600_000),
        "binding_origin": "workspace",
        "routing_preference": None,
        "prompt_bytes": 1_200,
        "started_at": now,
        "due_at": now + timedelta(minutes=10),
    }
    return TurnStart(**(usual | fields))


def row_of(usage: TokenUsage) -> Settlement:
    """A settlement of this row alone."""
    return Settlement(turn_id=usage.turn_id, usage=usage, end=None)


def sealed_key(mark: str) -> SealedKey:
    """An envelope that is told from others by its mark."""
    return SealedKey(*(base64.b64encode(f"{mark}-{part}".encode()).decode() for part in range(6)))


@dataclass(kw_only=True)
class LedgerWorld(ABC):
    """A workspace with a project and a session of somebody else than the owner, and no binding, budget or key."""

    contexts: TurnContexts
    recorder: UsageRecorder
    journal: InMemoryJournal
    corrections: Corrections
    holds: Holds
    budgets: Budgets
    areas: AgentAreas
    spending: SpendingBooks
    unrecorded: list[TokenUsage]
    owner_id: UUID
    workspace_id: UUID
    project_id: UUID
    session_id: UUID
    session_creator_id: UUID = field(default_factory=uuid4)

    @abstractmethod
    def add_project(self) -> UUID: ...
    @abstractmethod
    def add_session(self, project_id: UUID) -> UUID: ...
    @abstractmethod
    def parked_ids(self) -> list[UUID]: ...
    @abstractmethod
    def close_session(self, session_id: UUID) -> None: ...
    @abstractmethod
    def delete_session(self, session_id: UUID) -> None: ...
    @abstractmethod
    def bind(self, bound: BoundModel, scope_id: str) -> None: ...
    @abstractmethod
    def add_budget(self, entry: BudgetEntry) -> None: ...
    @abstractmethod
    def budget(self, scope: BudgetScope, owner_id: UUID) -> BudgetEntry: ...
    @abstractmethod
    def hold(self, turn_id: UUID, budget_id: UUID) -> HoldEntry | None: ...
    @abstractmethod
    def add_area(self, key: str, entry: AreaEntry) -> None: ...
    @abstractmethod
    def area_spent_micros(self, key: str) -> int: ...
    @abstractmethod
    def add_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None: ...
    @abstractmethod
    def rows(self) -> dict[UUID, dict[str, Any]]:
        """The rows of `token_usage`, by the names of its columns."""

    @abstractmethod
    def announcements(self) -> list[dict[str, Any]]:
        """The rows of `outbox_events` but for their ids and times, by aggregate and threshold."""

    def bound(self, scope: BindingScope, **changes: Any) -> BoundModel:
        """A binding to a model of its own; `changes` are fields of it."""
        bound = BoundModel(
            scope=scope,
            model_id=uuid4(),
            provider=Provider.OPENROUTER,
            name=f"maker/{uuid4().hex[:8]}",
            prices=Prices(150_000, 600_000),
            is_available=True,
            supports_tool_calling=True,
            routing_preference=None,
        )
        return replace(bound, **changes)


@dataclass(kw_only=True)
class InMemoryWorld(LedgerWorld):
    ledger: InMemoryLedger

    def add_project(self) -> UUID:
        return self.ledger.add_project(self.workspace_id)

    def add_session(self, project_id: UUID) -> UUID:
        return self.ledger.add_session(project_id)

    def parked_ids(self) -> list[UUID]:
        return sorted(self.ledger.parked)

    def close_session(self, session_id: UUID) -> None:
        """The ledger knows no state of a session, since a turn asks for none."""

    def delete_session(self, session_id: UUID) -> None:
        del self.ledger.session_projects[session_id]

    def bind(self, bound: BoundModel, scope_id: str) -> None:
        self.ledger.bindings[bound.scope, scope_id] = bound

    def add_budget(self, entry: BudgetEntry) -> None:
        self.ledger.add_budget(entry)

    def budget(self, scope: BudgetScope, owner_id: UUID) -> BudgetEntry:
        return self.ledger.budgets[scope, owner_id]

    def hold(self, turn_id: UUID, budget_id: UUID) -> HoldEntry | None:
        found = self.ledger.holds.get((turn_id, budget_id))
        return None if found is None else replace(found)

    def add_area(self, key: str, entry: AreaEntry) -> None:
        self.ledger.areas[self.project_id, key] = entry

    def area_spent_micros(self, key: str) -> int:
        return self.ledger.areas[self.project_id, key].spent_micros

    def add_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None:
        self.ledger.sealed_keys[user_id, provider] = sealed

    def rows(self) -> dict[UUID, dict[str, Any]]:
        return {
            usage.id: {
                "id": usage.id,
                "session_id": usage.session_id,
                "actor_kind": usage.actor_kind,
                "actor_id": usage.actor_id,
                "provider": usage.provider,
                "model_id": usage.model_id,
                "model_name": usage.model_name,
                "input_tokens": usage.tokens.input,
                "output_tokens": usage.tokens.output,
                "estimated": usage.is_estimated,
                "cost_micros": usage.cost.micros,
                "input_price_per_million_micros": usage.cost.prices.input_per_million_micros,
                "output_price_per_million_micros": usage.cost.prices.output_per_million_micros,
                "latency_ms": usage.latency_ms,
                "binding_origin": usage.binding_origin,
                "upstream_provider": usage.upstream_provider,
                "routing_preference": usage.routing_preference,
                "created_at": usage.created_at,
                "price_implicit": usage.cost.is_implicit,
                "catalog_cost_micros": usage.cost.catalogue_micros,
                "resolved_model_name": usage.resolved_model_name,
                "generation_id": usage.generation_id,
                "cached_input_tokens": usage.tokens.cached_input,
                "reasoning_tokens": usage.tokens.reasoning,
                "charged_usd": usage.cost.charged_usd,
            }
            for usage in self.ledger.usages.values()
        }

    def announcements(self) -> list[dict[str, Any]]:
        return [
            {
                "aggregate_type": "budget",
                "aggregate_id": crossed.budget_id,
                "event_type": "budget.threshold_crossed",
                "payload": {
                    "scope": crossed.scope,
                    "scopeId": str(crossed.scope_id),
                    "threshold": crossed.threshold,
                    "spentMicros": crossed.spent_micros,
                    "limitMicros": crossed.limit_micros,
                },
                "metadata": {
                    key: value
                    for key, value in (
                        ("traceparent", crossed.traceparent),
                        ("arming", crossed.arming or None),
                    )
                    if value is not None
                },
            }
            for crossed in sorted(self.ledger.outbox, key=lambda each: (each.budget_id, each.threshold))
        ]


@dataclass(kw_only=True)
class PostgresWorld(LedgerWorld):
    database_url: str

    def execute(self, statement: str, *parameters: object) -> list[dict[str, Any]]:
        """Run one statement and commit; its rows, if it brings any."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.cursor(row_factory=dict_row).execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def _insert(self, table: str, **values: object) -> UUID:
        with psycopg.connect(self.database_url) as connection:
            return brabo_data.insert(connection, table, **values)

    def add_project(self) -> UUID:
        with psycopg.connect(self.database_url) as connection:
            return brabo_data.create_project(connection, self.workspace_id, self.owner_id)

    def add_session(self, project_id: UUID) -> UUID:
        return self._insert("sessions", project_id=project_id, created_by=self.session_creator_id)

    def parked_ids(self) -> list[UUID]:
        return [row["id"] for row in self.execute("SELECT id FROM parked_usage ORDER BY id")]

    def close_session(self, session_id: UUID) -> None:
        self.execute("UPDATE sessions SET status = 'closed', closed_at = now() WHERE id = %s", session_id)

    def delete_session(self, session_id: UUID) -> None:
        self.execute("DELETE FROM sessions WHERE id = %s", session_id)

    def bind(self, bound: BoundModel, scope_id: str) -> None:
        self._insert(
            "models",
            id=bound.model_id,
            provider=str(bound.provider),
            name=bound.name,
            display_name=bound.name,
            input_price_per_million_micros=bound.prices.input_per_million_micros,
            output_price_per_million_micros=bound.prices.output_per_million_micros,
            supports_tool_calling=bound.supports_tool_calling,
            availability="available" if bound.is_available else "unavailable",
            manual_pricing=not bound.is_priced,
            max_output_tokens=bound.max_output_tokens,
        )
        self._insert(
            "model_bindings",
            scope=str(bound.scope),
            scope_id=scope_id,
            model_id=bound.model_id,
            routing_preference=None if bound.routing_preference is None else str(bound.routing_preference),
            created_by=self.owner_id,
        )

    def add_budget(self, entry: BudgetEntry) -> None:
        self._insert(
            "budgets",
            id=entry.id,
            **{f"{entry.scope}_id": entry.owner_id},
            limit_micros=entry.limit_micros,
            spent_micros=entry.spent_micros,
            policy=str(entry.policy),
            last_threshold_notified=entry.last_threshold_notified,
            strict=entry.is_strict,
            held_micros=entry.held_micros,
            armings=entry.armings,
        )

    def budget(self, scope: BudgetScope, owner_id: UUID) -> BudgetEntry:
        (row,) = self.execute(
            "SELECT id, limit_micros, policy::text, spent_micros, last_threshold_notified,"
            " strict AS is_strict, held_micros, armings"
            f" FROM budgets WHERE {scope}_id = %s",
            owner_id,
        )
        row["policy"] = BudgetPolicy(row["policy"])
        return BudgetEntry(scope=scope, owner_id=owner_id, **row)

    def hold(self, turn_id: UUID, budget_id: UUID) -> HoldEntry | None:
        rows = self.execute(
            "SELECT granted_micros, chat_micros, router_micros, settled_micros, state <> 'open' AS has_ended"
            " FROM budget_holds WHERE turn_id = %s AND budget_id = %s",
            turn_id,
            budget_id,
        )
        return HoldEntry(**rows[0]) if rows else None

    def add_area(self, key: str, entry: AreaEntry) -> None:
        self._insert(
            "agent_areas",
            project_id=self.project_id,
            key=key,
            lead_agent_id=key,
            budget_micros=entry.limit_micros,
            spent_micros=entry.spent_micros,
        )

    def area_spent_micros(self, key: str) -> int:
        (row,) = self.execute(
            "SELECT spent_micros FROM agent_areas WHERE project_id = %s AND key = %s", self.project_id, key
        )
        return int(row["spent_micros"])

    def add_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None:
        self._insert(
            "user_credentials",
            user_id=user_id,
            provider=str(provider),
            wrapped_dek=sealed.wrapped_dek,
            dek_iv=sealed.dek_iv,
            dek_auth_tag=sealed.dek_auth_tag,
            encrypted_api_key=sealed.encrypted_api_key,
            api_key_iv=sealed.api_key_iv,
            api_key_auth_tag=sealed.api_key_auth_tag,
        )

    def rows(self) -> dict[UUID, dict[str, Any]]:
        rows = self.execute(
            "SELECT id, session_id, actor_kind::text, actor_id, provider::text, model_id, model_name,"
            " input_tokens, output_tokens, estimated, cost_micros, input_price_per_million_micros,"
            " output_price_per_million_micros, latency_ms, binding_origin::text, upstream_provider,"
            " routing_preference::text, created_at, price_implicit, catalog_cost_micros, resolved_model_name,"
            " generation_id, cached_input_tokens, reasoning_tokens, charged_usd FROM token_usage"
        )
        return {row["id"]: row for row in rows}

    def announcements(self) -> list[dict[str, Any]]:
        return self.execute(
            "SELECT aggregate_type, aggregate_id, event_type, payload, metadata FROM outbox_events"
            " ORDER BY aggregate_id, (payload->>'threshold')::int"
        )


@asynccontextmanager
async def ledger_world(held_by: str, request: pytest.FixtureRequest) -> AsyncIterator[LedgerWorld]:
    """A world held by one of `HELD_BY`."""
    if held_by == "in_memory":
        yield in_memory_world()
    else:
        async with postgres_world(request.getfixturevalue("database_url")) as world:
            yield world


def in_memory_world() -> InMemoryWorld:
    ledger = InMemoryLedger()
    unrecorded: list[TokenUsage] = []
    journal = InMemoryJournal()
    owner_id = uuid4()
    workspace_id = ledger.add_workspace(owner_id)
    project_id = ledger.add_project(workspace_id)
    return InMemoryWorld(
        ledger=ledger,
        contexts=InMemoryTurnContexts(ledger),
        recorder=InMemoryUsageRecorder(ledger, journal, on_unrecorded=unrecorded.append),
        journal=journal,
        corrections=InMemoryCorrections(ledger),
        holds=InMemoryHolds(ledger),
        budgets=InMemoryBudgets(ledger),
        areas=InMemoryAgentAreas(ledger),
        spending=InMemorySpending(ledger),
        unrecorded=unrecorded,
        owner_id=owner_id,
        workspace_id=workspace_id,
        project_id=project_id,
        session_id=ledger.add_session(project_id),
    )


@asynccontextmanager
async def postgres_world(database_url: str) -> AsyncIterator[PostgresWorld]:
    ids = make_ids(database_url)
    unrecorded: list[TokenUsage] = []
    async with (
        read_pool(database_url) as reading,
        write_pool(database_url) as writing,
        owners_pool(database_url) as owners,
        holds_pool(database_url) as holding,
    ):
        journal = InMemoryJournal()
        recorder = PostgresUsageRecorder(
            writing, journal, process_id=uuid4(), host="here", on_unrecorded=unrecorded.append
        )
        yield PostgresWorld(
            database_url=database_url,
            contexts=PostgresTurnContexts(reading),
            recorder=recorder,
            journal=journal,
            corrections=PostgresCorrections(writing),
            holds=PostgresHolds(holding, process_id=uuid4(), host="here"),
            budgets=PostgresBudgets(owners),
            areas=PostgresAgentAreas(owners),
            spending=PostgresSpending(database_url),
            unrecorded=unrecorded,
            **ids,
        )
        await recorder.close()


def make_ids(database_url: str) -> dict[str, UUID]:
    """An owner, another user, a workspace, a project and the other's session, in a database; their ids."""
    made = brabo_data.create_world(
        database_url, project_limit_micros=None, area_ceilings_micros={}, api_key=None
    )
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM model_bindings WHERE id = %s", (made.binding_id,))
        creator_id = brabo_data.insert(
            connection, "users", email=f"{uuid4().hex}@example.com", name="Creator"
        )
        connection.execute("UPDATE sessions SET created_by = %s WHERE id = %s", (creator_id, made.session_id))
    return {
        "owner_id": made.user_id,
        "workspace_id": made.workspace_id,
        "project_id": made.project_id,
        "session_id": made.session_id,
        "session_creator_id": creator_id,
    }
