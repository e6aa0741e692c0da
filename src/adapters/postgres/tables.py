"""The tables this program reads and writes, as the newest migration leaves them.

Statements are built from these tables. A database that was adopted has more tables and more columns than these, so
every statement names its columns. What came after the baseline says with which revision in its `info`.
"""

from typing import Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    FromClause,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

VERSION_TABLE: Final = "brabo_api_version"
BASELINE: Final = "0065"
HEAD: Final = "py0004"
"""The revision this program needs; `READ_VERSION` gives it on a database that is current."""

READ_VERSION: Final = f"SELECT version_num FROM {VERSION_TABLE}"  # noqa: S608 - made of a constant
"""One row with the revision; no row, or an undefined table, on a database that was never migrated."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


def revision_of(column: Column[object]) -> str:
    """The revision that brings the column."""
    return str(column.info.get("revision", revision_of_table(column.table)))


def revision_of_table(table: FromClause) -> str:
    """The revision that brings the table."""
    assert isinstance(table, Table)
    return str(table.info.get("revision", BASELINE))


def _enum(name: str, *labels: str) -> Enum:
    return Enum(*labels, name=name, metadata=metadata)


role = _enum("role", "owner", "maintainer", "developer", "viewer")
session_status = _enum("session_status", "created", "active", "closing", "closed", "closed_abnormally")
session_kind = _enum("session_kind", "consultiva", "criativa")
actor_kind = _enum("actor_kind", "user", "agent", "system")
_PROVIDERS: Final = (
    "ollama",
    "anthropic",
    "openai",
    "openrouter",
    "nvidia-nim",
    "together",
    "deepinfra",
    "bitdeer",
    "vultr",
)
llm_provider = _enum("llm_provider", *_PROVIDERS)
credential_provider = _enum("credential_provider", *_PROVIDERS, "github", "gitlab")
model_binding_scope = _enum("model_binding_scope", "workspace", "project", "area", "agent", "session")
model_availability = _enum("model_availability", "available", "unavailable")
price_change_source = _enum("price_change_source", "manual", "sync")
budget_policy = _enum("budget_policy", "block", "allow")
routing_preference = _enum("routing_preference", "price", "throughput", "latency")


def _id() -> Column[object]:
    return Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid())


def _time(name: str) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())


def _micros(name: str) -> Column[object]:
    return Column(name, BigInteger, nullable=False)


def _micros_from_zero(name: str, *, revision: str = BASELINE) -> Column[object]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"), info={"revision": revision})


def _flag(name: str, default: str, *, revision: str = BASELINE) -> Column[object]:
    return Column(name, Boolean, nullable=False, server_default=text(default), info={"revision": revision})


def _part_of(name: str, parent: str, *, primary_key: bool = False) -> Column[object]:
    """A key of the row this one belongs to and is deleted with."""
    return Column(
        name, ForeignKey(f"{parent}.id", ondelete="CASCADE"), nullable=False, primary_key=primary_key
    )


users = Table(
    "users",
    metadata,
    _id(),
    Column("keycloak_sub", Text, unique=True),
    Column("email", Text, nullable=False),
    Column("name", Text),
    _time("created_at"),
    _time("updated_at"),
)
Index("uq_users_lower_email", func.lower(users.c.email), unique=True)

workspaces = Table(
    "workspaces",
    metadata,
    _id(),
    Column("name", Text, nullable=False),
    Column("slug", Text, nullable=False, unique=True),
    Column("created_by", ForeignKey("users.id"), nullable=False),
    _time("created_at"),
    _time("updated_at"),
    _flag("tool_router_enabled", "true", revision="0066"),
)

workspace_members = Table(
    "workspace_members",
    metadata,
    _part_of("workspace_id", "workspaces", primary_key=True),
    Column("user_id", ForeignKey("users.id"), primary_key=True, index=True),
    Column("role", role, nullable=False),
    _time("created_at"),
)

projects = Table(
    "projects",
    metadata,
    _id(),
    _part_of("workspace_id", "workspaces"),
    Column("name", Text, nullable=False),
    Column("slug", Text, nullable=False),
    Column("workspace_dir_name", Text, nullable=False, unique=True),
    Column("created_by", ForeignKey("users.id"), nullable=False),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("workspace_id", "slug"),
)

project_members = Table(
    "project_members",
    metadata,
    _part_of("project_id", "projects", primary_key=True),
    Column("user_id", ForeignKey("users.id"), primary_key=True, index=True),
    Column("role", role, nullable=False),
    _time("created_at"),
)

sessions = Table(
    "sessions",
    metadata,
    _id(),
    _part_of("project_id", "projects"),
    Column("created_by", ForeignKey("users.id"), nullable=False),
    Column("status", session_status, nullable=False, server_default="created"),
    Column("kind", session_kind, nullable=False, server_default="consultiva"),
    Column("name", Text),
    Column("next_seq", Integer, nullable=False, server_default=text("1")),
    _time("created_at"),
    _time("updated_at"),
    Column("closed_at", DateTime(timezone=True)),
    Column("trace_parent", Text),
)
Index(None, sessions.c.project_id)

session_events = Table(
    "session_events",
    metadata,
    Column("id", Text, primary_key=True),
    _part_of("session_id", "sessions"),
    Column("seq", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("actor_kind", actor_kind, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("payload", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    _time("created_at"),
    UniqueConstraint("session_id", "seq"),
)

outbox_events = Table(
    "outbox_events",
    metadata,
    _id(),
    Column("aggregate_type", Text, nullable=False),
    Column("aggregate_id", Uuid, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("payload", JSONB, nullable=False),
    Column("metadata", JSONB, nullable=False),
    _time("created_at"),
    Column("processed_at", DateTime(timezone=True)),
)
Index(
    "ix_outbox_events_unprocessed",
    outbox_events.c.created_at,
    postgresql_where=outbox_events.c.processed_at.is_(None),
)

models = Table(
    "models",
    metadata,
    _id(),
    Column("provider", llm_provider, nullable=False),
    Column("name", Text, nullable=False),
    Column("display_name", Text, nullable=False),
    _micros_from_zero("input_price_per_million_micros"),
    _micros_from_zero("output_price_per_million_micros"),
    Column("context_window", Integer),
    _flag("supports_tool_calling", "false"),
    _flag("supports_streaming", "true"),
    _flag("supports_vision", "false"),
    _flag("supports_reasoning", "false"),
    _flag("generates_image", "false"),
    _flag("manual_pricing", "true"),
    Column("availability", model_availability, nullable=False, server_default="available"),
    Column("last_seen_at", DateTime(timezone=True)),
    _time("created_at"),
    _time("updated_at"),
    Column("max_output_tokens", Integer, info={"revision": "py0004"}),
    UniqueConstraint("provider", "name"),
)

workspace_models = Table(
    "workspace_models",
    metadata,
    _part_of("workspace_id", "workspaces", primary_key=True),
    Column("model_id", ForeignKey("models.id"), primary_key=True),
    _flag("is_active", "true"),
    Column("uses", ARRAY(Text), nullable=False),
    Column("curated_by", ForeignKey("users.id")),
    _time("created_at"),
    _time("updated_at"),
)

model_bindings = Table(
    "model_bindings",
    metadata,
    _id(),
    Column("scope", model_binding_scope, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("model_id", ForeignKey("models.id"), nullable=False),
    Column("routing_preference", routing_preference),
    Column("created_by", ForeignKey("users.id"), nullable=False),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("scope", "scope_id"),
)

model_price_changes = Table(
    "model_price_changes",
    metadata,
    _id(),
    Column("model_id", ForeignKey("models.id"), nullable=False),
    _micros("input_before_micros"),
    _micros("input_after_micros"),
    _micros("output_before_micros"),
    _micros("output_after_micros"),
    Column("source", price_change_source, nullable=False),
    Column("changed_by", ForeignKey("users.id")),
    _time("created_at"),
)
Index(None, model_price_changes.c.model_id, model_price_changes.c.created_at)

user_credentials = Table(
    "user_credentials",
    metadata,
    _id(),
    Column("user_id", ForeignKey("users.id"), nullable=False),
    Column("provider", credential_provider, nullable=False),
    Column("wrapped_dek", Text, nullable=False),
    Column("dek_iv", Text, nullable=False),
    Column("dek_auth_tag", Text, nullable=False),
    Column("encrypted_api_key", Text, nullable=False),
    Column("api_key_iv", Text, nullable=False),
    Column("api_key_auth_tag", Text, nullable=False),
    Column("key_id", Text),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("user_id", "provider"),
)

budgets = Table(
    "budgets",
    metadata,
    _id(),
    Column("project_id", ForeignKey("projects.id", ondelete="CASCADE"), unique=True),
    Column("session_id", ForeignKey("sessions.id", ondelete="CASCADE"), unique=True),
    _micros("limit_micros"),
    _micros_from_zero("spent_micros"),
    Column("policy", budget_policy, nullable=False, server_default="block"),
    Column("last_threshold_notified", Integer, nullable=False, server_default=text("0")),
    _time("created_at"),
    _time("updated_at"),
    _flag("strict", "false", revision="py0004"),
    _micros_from_zero("held_micros", revision="py0004"),
    Column("armings", Integer, nullable=False, server_default=text("0"), info={"revision": "py0004"}),
    CheckConstraint("num_nonnulls(project_id, session_id) = 1", name="one_owner"),
    # Every turn updates its budgets: room in the page keeps those updates off the indexes.
    postgresql_with={"fillfactor": 50},
)

agent_areas = Table(
    "agent_areas",
    metadata,
    _id(),
    _part_of("project_id", "projects"),
    Column("key", Text, nullable=False),
    Column("lead_agent_id", Text, nullable=False),
    Column("max_parallel", Integer, nullable=False, server_default=text("2")),
    Column("budget_micros", BigInteger),
    _micros_from_zero("spent_micros"),
    _time("created_at"),
    _time("updated_at"),
    UniqueConstraint("project_id", "key"),
    CheckConstraint("budget_micros >= 0", name="budget_not_negative"),
    CheckConstraint("spent_micros >= 0", name="spent_not_negative"),
)

token_usage = Table(
    "token_usage",
    metadata,
    _id(),
    _part_of("session_id", "sessions"),
    Column("actor_kind", actor_kind, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("provider", llm_provider, nullable=False),
    Column("model_id", ForeignKey("models.id", ondelete="SET NULL")),
    Column("model_name", Text, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    _flag("estimated", "false"),
    _micros("cost_micros"),
    _micros_from_zero("input_price_per_million_micros"),
    _micros_from_zero("output_price_per_million_micros"),
    Column("latency_ms", Integer, nullable=False),
    Column("binding_origin", model_binding_scope),
    Column("upstream_provider", Text),
    Column("routing_preference", routing_preference),
    _time("created_at"),
    Column(
        "price_implicit", Boolean, nullable=False, server_default=text("false"), info={"revision": "0066"}
    ),
    Column("catalog_cost_micros", BigInteger, info={"revision": "0067"}),
    Column("resolved_model_name", Text, info={"revision": "0067"}),
    Column("generation_id", Text, info={"revision": "0067"}),
    Column("cached_input_tokens", Integer, info={"revision": "py0001"}),
    Column("reasoning_tokens", Integer, info={"revision": "py0001"}),
    Column("charged_usd", Numeric, info={"revision": "py0003"}),
    # Null in the rows of other programs. The marks say which counters a row of ours has moved; null: there was none.
    Column("turn_id", Uuid, info={"revision": "py0004"}),
    Column("moved_project_budget_id", Uuid, info={"revision": "py0004"}),
    Column("moved_session_budget_id", Uuid, info={"revision": "py0004"}),
    Column("moved_area_id", Uuid, info={"revision": "py0004"}),
)
Index(None, token_usage.c.session_id, token_usage.c.created_at)
Index(None, token_usage.c.created_at)

router_switches = Table(
    "brabo_api_router_switches",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("workspace_id", Uuid, nullable=False),
    Column("by_user_id", Uuid),
    Column("was_enabled", Boolean, nullable=False),
    Column("is_enabled", Boolean, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    info={"revision": "py0002"},
)
"""Who switched a workspace's router, the shell being nobody. It outlives the workspace and the user."""
Index(None, router_switches.c.workspace_id, router_switches.c.created_at)

# What follows has no foreign keys: it outlives the sessions and projects that it tells of.

turn_starts = Table(
    "turn_starts",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("router_usage_id", Uuid, nullable=False),
    Column("workspace_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("agent", Text),
    Column("provider", Text, nullable=False),
    Column("model_id", Uuid, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("input_price_per_million_micros", BigInteger, nullable=False),
    Column("output_price_per_million_micros", BigInteger, nullable=False),
    Column("binding_origin", Text, nullable=False),
    Column("routing_preference", Text),
    Column("prompt_bytes", BigInteger, nullable=False),
    Column("process_id", Uuid, nullable=False),
    Column("host", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False),
    Column("due_at", DateTime(timezone=True), nullable=False),
    Column("traceparent", Text),
    Column("generation_id", Text),
    Column("taken_until", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("outcome", Text),
    Column("router_outcome", Text),
    Column("error_code", Text),
    Column("settled_by", Uuid),
    info={"revision": "py0004"},
)
"""Each turn that was about to call somebody, with its one end; `taken_until`: somebody is settling it for another."""
Index(
    "ix_turn_starts_open",
    turn_starts.c.started_at,
    postgresql_where=turn_starts.c.ended_at.is_(None),
)

processes = Table(
    "api_processes",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("host", Text, nullable=False),
    Column("started_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("beat_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    info={"revision": "py0004"},
)
"""The heartbeats."""

leases = Table(
    "api_leases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("holder", Uuid, nullable=False),
    Column("until_at", DateTime(timezone=True), nullable=False),
    info={"revision": "py0004"},
)
"""What one process at a time does."""

budget_holds = Table(
    "budget_holds",
    metadata,
    Column("turn_id", Uuid, primary_key=True),
    Column("budget_id", Uuid, primary_key=True),
    Column("granted_micros", BigInteger, nullable=False),
    Column("chat_micros", BigInteger, nullable=False),
    Column("router_micros", BigInteger, nullable=False),
    Column("settled_micros", BigInteger, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'open'::text")),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("closed_at", DateTime(timezone=True)),
    info={"revision": "py0004"},
)
"""What is held of a strict budget for a turn: `chat_micros` and `router_micros` still are.

`settled_micros` is what its rows and corrections came to. States: `open` (the turn runs), `unsettled` (it has ended,
and what it cost is not known for certain), `settled`, `written_off`.
"""
Index(
    "ix_budget_holds_excess",
    budget_holds.c.budget_id,
    postgresql_where=budget_holds.c.settled_micros > budget_holds.c.granted_micros,
)
Index(
    "ix_budget_holds_held",
    budget_holds.c.budget_id,
    postgresql_where=budget_holds.c.chat_micros + budget_holds.c.router_micros > 0,
)

usage_corrections = Table(
    "usage_corrections",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("usage_id", Uuid, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("figure_usd", Numeric, nullable=False),
    Column("source", Text, nullable=False),
    Column("delta_micros", BigInteger, nullable=False),
    Column("delta_usd", Numeric, nullable=False),
    Column("turn_id", Uuid),
    Column("project_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("actor_kind", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("usage_created_at", DateTime(timezone=True), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("moved_project_budget_id", Uuid),
    Column("moved_session_budget_id", Uuid),
    Column("moved_area_id", Uuid),
    UniqueConstraint("usage_id", "source", "figure_usd"),
    UniqueConstraint("usage_id", "ordinal"),
    info={"revision": "py0004"},
)
"""What a row turned out to have cost beside what it says, up or down. `source`: `provider`, `settlement`, or
`estimate` for one that settled second with an estimate."""
Index(None, usage_corrections.c.usage_created_at)

parked_usage = Table(
    "parked_usage",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("turn_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=False),
    Column("session_id", Uuid, nullable=False),
    Column("actor_kind", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("charged_usd", Numeric),
    Column("estimated", Boolean, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("record", JSONB, nullable=False),
    Column("reason", Text, nullable=False),
    Column("parked_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("moved_project_budget_id", Uuid),
    Column("moved_session_budget_id", Uuid),
    Column("moved_area_id", Uuid),
    info={"revision": "py0004"},
)
"""Rows that the ledger refused, their session being gone; `record` is the whole row by the names of its columns."""
Index(None, parked_usage.c.created_at)

usage_truths = Table(
    "usage_truths",
    metadata,
    Column("usage_id", Uuid, primary_key=True),
    Column("turn_id", Uuid, nullable=False),
    Column("project_id", Uuid, nullable=False),
    Column("provider", Text, nullable=False),
    Column("generation_id", Text),
    Column("booked_micros", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("ask_after", DateTime(timezone=True), nullable=False),
    Column("times_asked", Integer, nullable=False, server_default=text("0")),
    Column("state", Text, nullable=False, server_default=text("'open'::text")),
    Column("truth_micros", BigInteger),
    Column("reason", Text),
    Column("closed_at", DateTime(timezone=True)),
    info={"revision": "py0004"},
)
"""Rows whose true cost is to be asked of the provider. States: `open`, `equal`, `corrected`, `irreconcilable`."""
Index("ix_usage_truths_open", usage_truths.c.ask_after, postgresql_where=usage_truths.c.state == "open")

counter_openings = Table(
    "counter_openings",
    metadata,
    Column("counter_id", Uuid, primary_key=True),
    Column("origin_id", Uuid, primary_key=True),
    Column("opening_micros", BigInteger, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    info={"revision": "py0004"},
)
"""What a budget's or area's counter holds that no row explains: what it held when it was first seen (`origin_id` is the
counter itself), and what went with each session that was deleted since (`origin_id` is the session)."""

audit_runs = Table(
    "audit_runs",
    metadata,
    Column("only_row", Boolean, primary_key=True, server_default=text("true")),
    Column("ran_at", DateTime(timezone=True), nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("violations", Integer, nullable=False),
    Column("failed", ARRAY(Text), nullable=False),
    info={"revision": "py0004"},
)
"""The last run of `brabo audit`: one row."""
