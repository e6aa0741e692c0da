"""The one composition root: a list of parts, no logic. Nothing else names an adapter."""

import socket
from operator import methodcaller

from dependency_injector import containers, providers

from adapters.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresError
from adapters.jev import JevToolRouter, decisions_url
from adapters.journal.file_journal import FileJournal
from adapters.journal.other_journals import FileJournals
from adapters.metrics.telemetry import PrometheusTelemetry
from adapters.openai_compatible.generation_records import OpenRouterGenerationRecords
from adapters.openai_compatible.model_catalogue import OpenAICompatibleCatalogue
from adapters.openai_compatible.profiles import bounded_providers, provider_table
from adapters.openai_compatible.provider import Clocks, OpenAICompatibleProvider
from adapters.postgres import migrate
from adapters.postgres.agent_areas import PostgresAgentAreas
from adapters.postgres.audit import PostgresAudit, PostgresAuditRuns
from adapters.postgres.budgets import PostgresBudgets
from adapters.postgres.corrections import PostgresCorrections
from adapters.postgres.diagnosis import PostgresDiagnosis
from adapters.postgres.first_steps import PostgresFirstSteps
from adapters.postgres.holds import PostgresHolds
from adapters.postgres.invariants import INVARIANTS as INVARIANTS
from adapters.postgres.pool import holds_pool, owners_pool, read_pool, write_pool
from adapters.postgres.readiness import database_is_ready
from adapters.postgres.router_switches import PostgresRouterSwitches
from adapters.postgres.spending import PostgresSpending
from adapters.postgres.truths import PostgresOpenTruths, PostgresOwnerKeys
from adapters.postgres.turn_contexts import PostgresTurnContexts
from adapters.postgres.turn_starts import PostgresOrphanedStarts, PostgresTurnStarts
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from adapters.postgres.users import PostgresUsers
from adapters.postgres.workspaces import PostgresWorkspaces
from adapters.security.envelope import EnvelopeVault
from adapters.security.service_token import ServiceTokens
from adapters.security.user_token import Ed25519UserTokens
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from adapters.tokenizer import O200kTokenEstimator
from adapters.transport.way_out import WayOut
from application.agent_areas import LimitAgentArea, ReadAgentAreas
from application.decide_step_menu import DecideStepMenu
from application.diagnose import Diagnose
from application.first_steps import TakeFirstSteps
from application.read_budget import ReadBudget
from application.read_tool_router import ReadToolRouter
from application.reconcile import Reconcile
from application.record_usage import RecordUsage
from application.report_spend import ReportSpend
from application.set_budget import SetBudget
from application.settle_abandoned import SettleAbandoned
from application.strict_budgets import StrictBudgets
from application.switch_tool_router import SwitchToolRouter
from application.turn import TurnPipeline
from entrypoints.drain import Drain
from entrypoints.settings import Settings

READABLE_ERRORS = (EmbeddedPostgresError, migrate.MigrationError)
"""Errors of adapters whose text is written for whoever typed a command."""


class Container(containers.DeclarativeContainer):
    """The parts of one process. Who serves opens the pools, the recorder and the way out, and closes them."""

    settings = providers.Dependency(instance_of=Settings)
    database_url = providers.Dependency(instance_of=str)

    embedded_postgres = providers.Singleton(EmbeddedPostgres)

    clock = providers.Singleton(SystemClock)
    ids = providers.Singleton(UuidV7Ids)
    process_id = providers.Singleton(methodcaller("new"), ids)
    host = providers.Callable(socket.gethostname)
    telemetry = providers.Singleton(PrometheusTelemetry)
    service_tokens = providers.Singleton(
        ServiceTokens, settings.provided.service_token, settings.provided.service_token_previous
    )
    vault = providers.Singleton(
        EnvelopeVault, settings.provided.master_key, settings.provided.master_key_previous
    )
    user_tokens = providers.Singleton(
        Ed25519UserTokens,
        settings.provided.jwt_secret,
        settings.provided.jwt_secret_previous,
        now=clock.provided.now,
    )
    estimator = providers.Singleton(O200kTokenEstimator)

    read_pool = providers.Singleton(read_pool, database_url)
    write_pool = providers.Singleton(write_pool, database_url)
    holds_pool = providers.Singleton(holds_pool, database_url)
    database_readiness = providers.Callable(database_is_ready, read_pool)
    turn_contexts = providers.Singleton(PostgresTurnContexts, read_pool)
    journal = providers.Singleton(
        FileJournal,
        settings.provided.journal_dir,
        process_id,
        fsync_always=settings.provided.journal_fsync_always,
    )
    journals = providers.Singleton(FileJournals, settings.provided.journal_dir)
    usage_recorder = providers.Singleton(
        PostgresUsageRecorder,
        write_pool,
        journal,
        process_id=process_id,
        host=host,
        on_unrecorded=telemetry.provided.usage_unrecorded,
        on_parked=telemetry.provided.usage_parked,
    )
    turn_starts = providers.Singleton(PostgresTurnStarts, write_pool, process_id=process_id, host=host)
    orphaned_starts = providers.Singleton(PostgresOrphanedStarts, write_pool)
    corrections = providers.Singleton(PostgresCorrections, write_pool)

    owners_pool = providers.Singleton(owners_pool, database_url)
    users = providers.Singleton(PostgresUsers, owners_pool)
    workspaces = providers.Singleton(PostgresWorkspaces, owners_pool)
    read_tool_router = providers.Singleton(ReadToolRouter, users, workspaces)
    switch_tool_router = providers.Singleton(SwitchToolRouter, users, workspaces)
    budgets = providers.Singleton(PostgresBudgets, owners_pool)
    read_budget = providers.Singleton(ReadBudget, users, budgets)
    set_budget = providers.Singleton(SetBudget, users, budgets)
    agent_areas = providers.Singleton(PostgresAgentAreas, owners_pool)
    read_agent_areas = providers.Singleton(ReadAgentAreas, users, agent_areas)
    limit_agent_area = providers.Singleton(LimitAgentArea, users, agent_areas)

    way_out = providers.Singleton(WayOut)
    provider_profiles = providers.Singleton(
        provider_table, settings.provided.provider_bases, settings.provided.public_url
    )
    clocks = providers.Singleton(
        Clocks, first_byte_s=settings.provided.request_timeout_s, idle_s=settings.provided.request_timeout_s
    )
    chat_provider = providers.Singleton(
        OpenAICompatibleProvider,
        provider_profiles,
        way_out,
        now=clock.provided.now,
        clocks=clocks,
        on_dropped_frame=telemetry.provided.frame_dropped,
    )

    generation_records = providers.Singleton(OpenRouterGenerationRecords, settings.provided.openrouter_base)
    audit = providers.Singleton(PostgresAudit, database_url)
    audit_runs = providers.Singleton(PostgresAuditRuns, owners_pool)
    open_truths = providers.Singleton(PostgresOpenTruths, write_pool)
    owner_keys = providers.Singleton(PostgresOwnerKeys, write_pool)
    reconcile = providers.Singleton(
        Reconcile,
        truths=open_truths,
        records=generation_records,
        corrections=corrections,
        keys=owner_keys,
        vault=vault,
        clock=clock,
    )

    tool_router = providers.Singleton(
        JevToolRouter,
        providers.Callable(decisions_url, settings.provided.openrouter_base),
        way_out,
        estimator,
        clock,
        timeout_s=settings.provided.tool_router_timeout_s,
        on_decision=telemetry.provided.router_decided,
        on_unseen_charge=telemetry.provided.router_charge_unseen,
        on_circuits_open=telemetry.provided.router_circuits_open,
    )

    record_usage = providers.Singleton(RecordUsage, estimator, usage_recorder)
    decide_step_menu = providers.Singleton(
        DecideStepMenu,
        router=tool_router,
        switches=providers.Singleton(PostgresRouterSwitches, read_pool),
        recorder=usage_recorder,
        clock=clock,
        on_internal_failure=telemetry.provided.internal_failure,
        on_switch_unreadable=telemetry.provided.router_switch_unreadable,
    )
    holds = providers.Singleton(PostgresHolds, holds_pool, process_id=process_id, host=host)
    turn_pipeline = providers.Singleton(
        TurnPipeline,
        contexts=turn_contexts,
        provider=chat_provider,
        served=provider_profiles,
        vault=vault,
        decide_menu=decide_step_menu,
        record_usage=record_usage,
        recorder=usage_recorder,
        journal=journal,
        starts=turn_starts,
        strict_budgets=providers.Singleton(
            StrictBudgets,
            output_tokens=settings.provided.strict_output_tokens,
            bounded=providers.Callable(bounded_providers, provider_profiles),
        ),
        holds=holds,
        clock=clock,
        ids=ids,
        telemetry=telemetry,
        longest_drain_s=settings.provided.longest_drain_s,
    )
    settle_abandoned = providers.Singleton(
        SettleAbandoned,
        journals=journals,
        orphans=orphaned_starts,
        recorder=usage_recorder,
        records=generation_records,
        keys=owner_keys,
        vault=vault,
        clock=clock,
        router_model=tool_router.provided.model,
        silent_s=settings.provided.longest_turn_s,
    )
    drain = providers.Singleton(Drain)

    upgrade_database = providers.Callable(migrate.upgrade, database_url)
    downgrade_database = providers.Callable(migrate.downgrade, database_url)
    require_current_database = providers.Callable(migrate.require_current, database_url)
    locate_database = providers.Callable(migrate.where, database_url)
    model_catalogue = providers.Singleton(OpenAICompatibleCatalogue, provider_profiles)
    first_steps_store = providers.Singleton(PostgresFirstSteps, database_url)
    take_first_steps = providers.Singleton(
        TakeFirstSteps,
        store=first_steps_store,
        vault=vault,
        catalogue=model_catalogue,
        served=provider_profiles,
    )
    report_spend = providers.Singleton(
        ReportSpend, providers.Singleton(PostgresSpending, database_url), clock
    )
    diagnosis = providers.Singleton(PostgresDiagnosis, database_url)
    diagnose = providers.Factory(
        Diagnose, diagnosis=diagnosis, vault=vault, catalogue=model_catalogue, served=provider_profiles
    )
