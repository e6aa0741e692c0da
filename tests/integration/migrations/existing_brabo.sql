-- A database as another program made it, at 0065: its own names for constraints, indexes and triggers, tables and
-- columns that we do not know, and a numbering of its own that says nothing to us.

CREATE TABLE other_migrations (number integer PRIMARY KEY, ran_at bigint NOT NULL);
INSERT INTO other_migrations VALUES (65, 1764000000), (71, 1765000000);

CREATE TYPE role AS ENUM ('owner', 'maintainer', 'developer', 'viewer');
CREATE TYPE session_status AS ENUM ('created', 'active', 'paused', 'closing', 'closed', 'closed_abnormally');
CREATE TYPE session_kind AS ENUM ('consultiva', 'criativa');
CREATE TYPE actor_kind AS ENUM ('user', 'agent', 'system');
CREATE TYPE llm_provider AS ENUM ('ollama', 'anthropic', 'openai', 'openrouter', 'nvidia-nim', 'together', 'deepinfra', 'bitdeer', 'vultr');
CREATE TYPE credential_provider AS ENUM ('github', 'gitlab', 'ollama', 'anthropic', 'openai', 'openrouter', 'nvidia-nim', 'together', 'deepinfra', 'bitdeer', 'vultr');
CREATE TYPE model_binding_scope AS ENUM ('workspace', 'project', 'area', 'agent', 'session');
CREATE TYPE model_availability AS ENUM ('available', 'unavailable');
CREATE TYPE price_change_source AS ENUM ('manual', 'sync');
CREATE TYPE budget_policy AS ENUM ('block', 'allow');
CREATE TYPE routing_preference AS ENUM ('price', 'throughput', 'latency');

CREATE TABLE users (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    keycloak_sub text CONSTRAINT users_kc_key UNIQUE,
    email varchar(320) NOT NULL,
    password_hash text NOT NULL DEFAULT '',
    name text,
    created_at timestamp(3) with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP,
    updated_at timestamp(3) with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP
);
CREATE UNIQUE INDEX users_mail_once ON users (lower(email));

CREATE TABLE workspaces (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL,
    slug text NOT NULL,
    created_by uuid NOT NULL CONSTRAINT workspaces_owner REFERENCES users (id),
    plan text NOT NULL DEFAULT 'free',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX workspaces_slug_idx ON workspaces (slug);

CREATE TABLE workspace_members (
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    role role NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT workspace_members_both PRIMARY KEY (workspace_id, user_id)
);

CREATE TABLE projects (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name text NOT NULL,
    slug text NOT NULL,
    workspace_dir_name text NOT NULL CONSTRAINT projects_dir_key UNIQUE,
    created_by uuid NOT NULL REFERENCES users (id),
    repository_url text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT projects_slug_key UNIQUE (slug, workspace_id)
);

CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    role role NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (project_id, user_id)
);

CREATE TABLE sessions (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    created_by uuid NOT NULL REFERENCES users (id),
    status session_status NOT NULL DEFAULT 'created',
    kind session_kind NOT NULL DEFAULT 'consultiva',
    name text,
    next_seq integer NOT NULL DEFAULT 1,
    worktree text NOT NULL DEFAULT 'main',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    trace_parent text
);

CREATE TABLE session_events (
    id text PRIMARY KEY,
    session_id uuid NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    seq integer NOT NULL,
    type text NOT NULL,
    actor_kind actor_kind NOT NULL,
    actor_id text NOT NULL,
    payload jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX session_events_in_order ON session_events (session_id, seq);

CREATE TABLE outbox_events (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type text NOT NULL,
    aggregate_id uuid NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    attempts integer NOT NULL DEFAULT 0,
    position bigint GENERATED ALWAYS AS IDENTITY,
    created_at timestamptz NOT NULL DEFAULT now(),
    processed_at timestamptz
);
CREATE INDEX outbox_todo ON outbox_events (created_at) WHERE processed_at IS NULL;

CREATE TABLE models (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    provider llm_provider NOT NULL,
    name text NOT NULL,
    display_name text NOT NULL,
    input_price_per_million_micros bigint NOT NULL DEFAULT 0,
    output_price_per_million_micros bigint NOT NULL DEFAULT 0,
    context_window integer,
    supports_tool_calling boolean NOT NULL DEFAULT false,
    supports_streaming boolean NOT NULL DEFAULT true,
    supports_vision boolean NOT NULL DEFAULT false,
    supports_reasoning boolean NOT NULL DEFAULT false,
    generates_image boolean NOT NULL DEFAULT false,
    manual_pricing boolean NOT NULL DEFAULT true,
    availability model_availability NOT NULL DEFAULT 'available',
    last_seen_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT models_once UNIQUE (provider, name)
);

CREATE TABLE workspace_models (
    workspace_id uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    model_id uuid NOT NULL REFERENCES models (id) ON DELETE CASCADE,
    is_active boolean NOT NULL DEFAULT true,
    uses text[] NOT NULL DEFAULT '{}',
    curated_by uuid REFERENCES users (id) ON DELETE SET NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (workspace_id, model_id)
);

CREATE TABLE model_bindings (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    scope model_binding_scope NOT NULL,
    scope_id text NOT NULL,
    model_id uuid NOT NULL REFERENCES models (id),
    routing_preference routing_preference,
    created_by uuid NOT NULL REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_binding_a_scope UNIQUE (scope, scope_id)
);

CREATE TABLE model_price_changes (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    model_id uuid NOT NULL REFERENCES models (id),
    input_before_micros bigint NOT NULL,
    input_after_micros bigint NOT NULL,
    output_before_micros bigint NOT NULL,
    output_after_micros bigint NOT NULL,
    source price_change_source NOT NULL,
    changed_by uuid REFERENCES users (id),
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE user_credentials (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    provider credential_provider NOT NULL,
    wrapped_dek text NOT NULL,
    dek_iv text NOT NULL,
    dek_auth_tag text NOT NULL,
    encrypted_api_key text NOT NULL,
    api_key_iv text NOT NULL,
    api_key_auth_tag text NOT NULL,
    key_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT one_key_a_provider UNIQUE (user_id, provider)
);

CREATE TABLE budgets (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    project_id uuid REFERENCES projects (id) ON DELETE CASCADE,
    session_id uuid REFERENCES sessions (id) ON DELETE CASCADE,
    limit_micros bigint NOT NULL,
    spent_micros bigint NOT NULL DEFAULT 0,
    policy budget_policy NOT NULL DEFAULT 'block',
    last_threshold_notified integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT project_xor_session CHECK ((project_id IS NULL) <> (session_id IS NULL))
);
CREATE UNIQUE INDEX budgets_of_project ON budgets (project_id);
CREATE UNIQUE INDEX budgets_of_session ON budgets (session_id);

CREATE TABLE agent_areas (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    key text NOT NULL,
    lead_agent_id text NOT NULL,
    max_parallel integer NOT NULL DEFAULT 2,
    budget_micros bigint CHECK (budget_micros >= 0),
    spent_micros bigint NOT NULL DEFAULT 0 CHECK (spent_micros >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT area_once UNIQUE (project_id, key)
);

CREATE TABLE token_usage (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    session_id uuid NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    actor_kind actor_kind NOT NULL,
    actor_id text NOT NULL,
    provider llm_provider NOT NULL,
    model_id uuid REFERENCES models (id) ON DELETE SET NULL,
    model_name text NOT NULL,
    input_tokens integer NOT NULL,
    output_tokens integer NOT NULL,
    estimated boolean NOT NULL DEFAULT false,
    cost_micros bigint NOT NULL,
    input_price_per_million_micros bigint NOT NULL DEFAULT 0,
    output_price_per_million_micros bigint NOT NULL DEFAULT 0,
    latency_ms integer NOT NULL,
    billing_month date NOT NULL DEFAULT date_trunc('month', now()),
    binding_origin model_binding_scope,
    upstream_provider text,
    routing_preference routing_preference,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX usage_by_session ON token_usage (session_id);

CREATE TABLE knowledge_chunks (
    id bigserial PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    body text NOT NULL
);

CREATE FUNCTION touch_updated_at() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.updated_at := now();
    RETURN NEW;
END $$;
CREATE TRIGGER budgets_touch BEFORE UPDATE ON budgets FOR EACH ROW EXECUTE FUNCTION touch_updated_at();
