"""The one composition root: a list of parts, no logic. Nothing else names an adapter."""

from adapters.security.envelope import EnvelopeVault
from adapters.security.service_token import ServiceTokens
from adapters.system.clock import SystemClock
from adapters.system.ids import UuidV7Ids
from adapters.tokenizer import O200kTokenEstimator
from dependency_injector import containers, providers

from adapters.embedded_postgres import EmbeddedPostgres
from adapters.metrics.telemetry import PrometheusTelemetry
from adapters.openai_compatible import chat_providers
from adapters.postgres.pool import read_pool, write_pool
from adapters.postgres.readiness import database_is_ready
from adapters.postgres.turn_contexts import PostgresTurnContexts
from adapters.postgres.usage_recorder import PostgresUsageRecorder
from adapters.transport.way_out import WayOut
from application.record_usage import RecordUsage
from application.turn import TurnPipeline
from entrypoints.http.drain import Drain
from entrypoints.settings import Settings


class Container(containers.DeclarativeContainer):
    """The parts of one process. Who serves opens the pools, the recorder and the way out, and closes them."""

    settings = providers.Dependency(instance_of=Settings)
    database_url = providers.Dependency(instance_of=str)

    embedded_postgres = providers.Singleton(EmbeddedPostgres)

    clock = providers.Singleton(SystemClock)
    ids = providers.Singleton(UuidV7Ids)
    telemetry = providers.Singleton(PrometheusTelemetry)
    service_tokens = providers.Singleton(
        ServiceTokens, settings.provided.service_token, settings.provided.service_token_previous
    )
    vault = providers.Singleton(
        EnvelopeVault, settings.provided.master_key, settings.provided.master_key_previous
    )
    estimator = providers.Singleton(O200kTokenEstimator)

    read_pool = providers.Singleton(read_pool, database_url)
    write_pool = providers.Singleton(write_pool, database_url)
    database_readiness = providers.Callable(database_is_ready, read_pool)
    turn_contexts = providers.Singleton(PostgresTurnContexts, read_pool)
    usage_recorder = providers.Singleton(
        PostgresUsageRecorder, write_pool, on_unrecorded=telemetry.provided.usage_unrecorded
    )

    way_out = providers.Singleton(WayOut)
    chat_providers = providers.Singleton(
        chat_providers,
        way_out,
        base_urls=settings.provided.provider_bases,
        public_url=settings.provided.public_url,
        idle_s=settings.provided.request_timeout_s,
        on_dropped_frame=telemetry.provided.frame_dropped,
    )

    record_usage = providers.Singleton(RecordUsage, estimator, usage_recorder)
    turn_pipeline = providers.Singleton(
        TurnPipeline,
        contexts=turn_contexts,
        providers=chat_providers,
        vault=vault,
        record_usage=record_usage,
        clock=clock,
        ids=ids,
        telemetry=telemetry,
    )
    drain = providers.Singleton(Drain)
