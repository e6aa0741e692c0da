"""The tables of the existing program that this one reads and writes, for a database that starts empty."""

from alembic import op

revision = "0065"
down_revision = None

# Name and labels. Labels are wire names.
ENUMS = {
    "role": "'owner', 'maintainer', 'developer', 'viewer'",
    "session_status": "'created', 'active', 'closing', 'closed', 'closed_abnormally'",
    "session_kind": "'consultiva', 'criativa'",
    "actor_kind": "'user', 'agent', 'system'",
    "llm_provider": """'ollama', 'anthropic', 'openai', 'openrouter', 'nvidia-nim', 'together', 'deepinfra',
        'bitdeer', 'vultr'""",
    "credential_provider": """'ollama', 'anthropic', 'openai', 'openrouter', 'nvidia-nim', 'together', 'deepinfra',
        'bitdeer', 'vultr', 'github', 'gitlab'""",
    "model_binding_scope": "'workspace', 'project', 'area', 'agent', 'session'",
    "model_availability": "'available', 'unavailable'",
    "price_change_source": "'manual', 'sync'",
    "budget_policy": "'block', 'allow'",
    "routing_preference": "'price', 'throughput', 'latency'",
}

# In the order in which they refer to each other.
TABLES = {
    "users": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        keycloak_sub text,
        email text NOT NULL,
        name text,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_users PRIMARY KEY (id),
        CONSTRAINT uq_users_keycloak_sub UNIQUE (keycloak_sub)
    """,
    "workspaces": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        name text NOT NULL,
        slug text NOT NULL,
        created_by uuid NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_workspaces PRIMARY KEY (id),
        CONSTRAINT uq_workspaces_slug UNIQUE (slug),
        CONSTRAINT fk_workspaces_created_by FOREIGN KEY (created_by) REFERENCES users (id)
    """,
    "workspace_members": """
        workspace_id uuid NOT NULL,
        user_id uuid NOT NULL,
        role role NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_workspace_members PRIMARY KEY (workspace_id, user_id),
        CONSTRAINT fk_workspace_members_workspace_id FOREIGN KEY (workspace_id) REFERENCES workspaces (id)
            ON DELETE CASCADE,
        CONSTRAINT fk_workspace_members_user_id FOREIGN KEY (user_id) REFERENCES users (id)
    """,
    "projects": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        workspace_id uuid NOT NULL,
        name text NOT NULL,
        slug text NOT NULL,
        workspace_dir_name text NOT NULL,
        created_by uuid NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_projects PRIMARY KEY (id),
        CONSTRAINT uq_projects_workspace_id_slug UNIQUE (workspace_id, slug),
        CONSTRAINT uq_projects_workspace_dir_name UNIQUE (workspace_dir_name),
        CONSTRAINT fk_projects_workspace_id FOREIGN KEY (workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE,
        CONSTRAINT fk_projects_created_by FOREIGN KEY (created_by) REFERENCES users (id)
    """,
    "project_members": """
        project_id uuid NOT NULL,
        user_id uuid NOT NULL,
        role role NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_project_members PRIMARY KEY (project_id, user_id),
        CONSTRAINT fk_project_members_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
        CONSTRAINT fk_project_members_user_id FOREIGN KEY (user_id) REFERENCES users (id)
    """,
    "sessions": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        project_id uuid NOT NULL,
        created_by uuid NOT NULL,
        status session_status NOT NULL DEFAULT 'created',
        kind session_kind NOT NULL DEFAULT 'consultiva',
        name text,
        next_seq integer NOT NULL DEFAULT 1,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        closed_at timestamptz,
        trace_parent text,
        CONSTRAINT pk_sessions PRIMARY KEY (id),
        CONSTRAINT fk_sessions_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
        CONSTRAINT fk_sessions_created_by FOREIGN KEY (created_by) REFERENCES users (id)
    """,
    "session_events": """
        id text NOT NULL,
        session_id uuid NOT NULL,
        seq integer NOT NULL,
        type text NOT NULL,
        actor_kind actor_kind NOT NULL,
        actor_id text NOT NULL,
        payload jsonb NOT NULL DEFAULT '{}',
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_session_events PRIMARY KEY (id),
        CONSTRAINT uq_session_events_session_id_seq UNIQUE (session_id, seq),
        CONSTRAINT fk_session_events_session_id FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
    """,
    "outbox_events": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        aggregate_type text NOT NULL,
        aggregate_id uuid NOT NULL,
        event_type text NOT NULL,
        payload jsonb NOT NULL,
        metadata jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        processed_at timestamptz,
        CONSTRAINT pk_outbox_events PRIMARY KEY (id)
    """,
    "models": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
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
        CONSTRAINT pk_models PRIMARY KEY (id),
        CONSTRAINT uq_models_provider_name UNIQUE (provider, name)
    """,
    "workspace_models": """
        workspace_id uuid NOT NULL,
        model_id uuid NOT NULL,
        is_active boolean NOT NULL DEFAULT true,
        uses text[] NOT NULL,
        curated_by uuid,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_workspace_models PRIMARY KEY (workspace_id, model_id),
        CONSTRAINT fk_workspace_models_workspace_id FOREIGN KEY (workspace_id) REFERENCES workspaces (id)
            ON DELETE CASCADE,
        CONSTRAINT fk_workspace_models_model_id FOREIGN KEY (model_id) REFERENCES models (id),
        CONSTRAINT fk_workspace_models_curated_by FOREIGN KEY (curated_by) REFERENCES users (id)
    """,
    "model_bindings": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        scope model_binding_scope NOT NULL,
        scope_id text NOT NULL,
        model_id uuid NOT NULL,
        routing_preference routing_preference,
        created_by uuid NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_model_bindings PRIMARY KEY (id),
        CONSTRAINT uq_model_bindings_scope_scope_id UNIQUE (scope, scope_id),
        CONSTRAINT fk_model_bindings_model_id FOREIGN KEY (model_id) REFERENCES models (id),
        CONSTRAINT fk_model_bindings_created_by FOREIGN KEY (created_by) REFERENCES users (id)
    """,
    "model_price_changes": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        model_id uuid NOT NULL,
        input_before_micros bigint NOT NULL,
        input_after_micros bigint NOT NULL,
        output_before_micros bigint NOT NULL,
        output_after_micros bigint NOT NULL,
        source price_change_source NOT NULL,
        changed_by uuid,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_model_price_changes PRIMARY KEY (id),
        CONSTRAINT fk_model_price_changes_model_id FOREIGN KEY (model_id) REFERENCES models (id),
        CONSTRAINT fk_model_price_changes_changed_by FOREIGN KEY (changed_by) REFERENCES users (id)
    """,
    "user_credentials": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        user_id uuid NOT NULL,
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
        CONSTRAINT pk_user_credentials PRIMARY KEY (id),
        CONSTRAINT uq_user_credentials_user_id_provider UNIQUE (user_id, provider),
        CONSTRAINT fk_user_credentials_user_id FOREIGN KEY (user_id) REFERENCES users (id)
    """,
    "budgets": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        project_id uuid,
        session_id uuid,
        limit_micros bigint NOT NULL,
        spent_micros bigint NOT NULL DEFAULT 0,
        policy budget_policy NOT NULL DEFAULT 'block',
        last_threshold_notified integer NOT NULL DEFAULT 0,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_budgets PRIMARY KEY (id),
        CONSTRAINT uq_budgets_project_id UNIQUE (project_id),
        CONSTRAINT uq_budgets_session_id UNIQUE (session_id),
        CONSTRAINT ck_budgets_one_owner CHECK (num_nonnulls(project_id, session_id) = 1),
        CONSTRAINT fk_budgets_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE,
        CONSTRAINT fk_budgets_session_id FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE
    """,
    "agent_areas": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        project_id uuid NOT NULL,
        key text NOT NULL,
        lead_agent_id text NOT NULL,
        max_parallel integer NOT NULL DEFAULT 2,
        budget_micros bigint,
        spent_micros bigint NOT NULL DEFAULT 0,
        created_at timestamptz NOT NULL DEFAULT now(),
        updated_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_agent_areas PRIMARY KEY (id),
        CONSTRAINT uq_agent_areas_project_id_key UNIQUE (project_id, key),
        CONSTRAINT ck_agent_areas_budget_not_negative CHECK (budget_micros >= 0),
        CONSTRAINT ck_agent_areas_spent_not_negative CHECK (spent_micros >= 0),
        CONSTRAINT fk_agent_areas_project_id FOREIGN KEY (project_id) REFERENCES projects (id) ON DELETE CASCADE
    """,
    "token_usage": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        session_id uuid NOT NULL,
        actor_kind actor_kind NOT NULL,
        actor_id text NOT NULL,
        provider llm_provider NOT NULL,
        model_id uuid,
        model_name text NOT NULL,
        input_tokens integer NOT NULL,
        output_tokens integer NOT NULL,
        estimated boolean NOT NULL DEFAULT false,
        cost_micros bigint NOT NULL,
        input_price_per_million_micros bigint NOT NULL DEFAULT 0,
        output_price_per_million_micros bigint NOT NULL DEFAULT 0,
        latency_ms integer NOT NULL,
        binding_origin model_binding_scope,
        upstream_provider text,
        routing_preference routing_preference,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_token_usage PRIMARY KEY (id),
        CONSTRAINT fk_token_usage_session_id FOREIGN KEY (session_id) REFERENCES sessions (id) ON DELETE CASCADE,
        CONSTRAINT fk_token_usage_model_id FOREIGN KEY (model_id) REFERENCES models (id) ON DELETE SET NULL
    """,
}

INDEXES = (
    "CREATE UNIQUE INDEX uq_users_lower_email ON users (lower(email))",
    "CREATE INDEX ix_workspace_members_user_id ON workspace_members (user_id)",
    "CREATE INDEX ix_project_members_user_id ON project_members (user_id)",
    "CREATE INDEX ix_sessions_project_id ON sessions (project_id)",
    "CREATE INDEX ix_outbox_events_unprocessed ON outbox_events (created_at) WHERE processed_at IS NULL",
    "CREATE INDEX ix_model_price_changes_model_id_created_at ON model_price_changes (model_id, created_at)",
    "CREATE INDEX ix_token_usage_session_id_created_at ON token_usage (session_id, created_at)",
    "CREATE INDEX ix_token_usage_created_at ON token_usage (created_at)",
)


def upgrade() -> None:
    for name, labels in ENUMS.items():
        op.execute(f"CREATE TYPE {name} AS ENUM ({labels})")
    for name, columns in TABLES.items():
        op.execute(f"CREATE TABLE {name} ({columns})")
    # Every turn updates its budgets: room in the page keeps those updates off the indexes.
    op.execute("ALTER TABLE budgets SET (fillfactor = 50)")
    for statement in INDEXES:
        op.execute(statement)


def downgrade() -> None:
    # Without CASCADE: what someone else hung on these tables stops the way back instead of going with it.
    for name in reversed(TABLES):
        op.execute(f"DROP TABLE {name}")
    for name in reversed(ENUMS):
        op.execute(f"DROP TYPE {name}")
