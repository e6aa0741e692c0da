"""The books: starts and ends of turns, holds, corrections, parked rows, and which counters each row has moved.

A counter's opening is what it held when it was first seen, less what rows without marks explain. It is written while
nobody can write `token_usage`: row locks would let a row in between. Triggers write those of later budgets and areas,
whoever makes them, and add what goes with a deleted session.
"""

from alembic import op

revision = "py0004"
down_revision = "py0003"

_COLUMNS = {
    "models": ["max_output_tokens integer"],
    "budgets": [
        "strict boolean NOT NULL DEFAULT false",
        "held_micros bigint NOT NULL DEFAULT 0",
        "armings integer NOT NULL DEFAULT 0",
    ],
    "token_usage": [
        "turn_id uuid",
        "moved_project_budget_id uuid",
        "moved_session_budget_id uuid",
        "moved_area_id uuid",
    ],
}

_TABLES = {
    "turn_starts": """
        turn_id uuid NOT NULL,
        router_usage_id uuid NOT NULL,
        workspace_id uuid NOT NULL,
        project_id uuid NOT NULL,
        session_id uuid NOT NULL,
        agent text,
        provider text NOT NULL,
        model_id uuid NOT NULL,
        model_name text NOT NULL,
        input_price_per_million_micros bigint NOT NULL,
        output_price_per_million_micros bigint NOT NULL,
        binding_origin text NOT NULL,
        routing_preference text,
        prompt_bytes bigint NOT NULL,
        process_id uuid NOT NULL,
        host text NOT NULL,
        started_at timestamptz NOT NULL,
        due_at timestamptz NOT NULL,
        traceparent text,
        generation_id text,
        taken_until timestamptz,
        ended_at timestamptz,
        outcome text,
        router_outcome text,
        error_code text,
        settled_by uuid,
        CONSTRAINT pk_turn_starts PRIMARY KEY (turn_id)
    """,
    "api_processes": """
        id uuid NOT NULL,
        host text NOT NULL,
        started_at timestamptz NOT NULL DEFAULT now(),
        beat_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_api_processes PRIMARY KEY (id)
    """,
    "api_leases": """
        name text NOT NULL,
        holder uuid NOT NULL,
        until_at timestamptz NOT NULL,
        CONSTRAINT pk_api_leases PRIMARY KEY (name)
    """,
    "budget_holds": """
        turn_id uuid NOT NULL,
        budget_id uuid NOT NULL,
        granted_micros bigint NOT NULL,
        chat_micros bigint NOT NULL,
        router_micros bigint NOT NULL,
        settled_micros bigint NOT NULL DEFAULT 0,
        state text NOT NULL DEFAULT 'open'::text,
        created_at timestamptz NOT NULL DEFAULT now(),
        closed_at timestamptz,
        CONSTRAINT pk_budget_holds PRIMARY KEY (turn_id, budget_id)
    """,
    "usage_corrections": """
        id uuid NOT NULL DEFAULT gen_random_uuid(),
        usage_id uuid NOT NULL,
        ordinal integer NOT NULL,
        figure_usd numeric NOT NULL,
        source text NOT NULL,
        delta_micros bigint NOT NULL,
        delta_usd numeric NOT NULL,
        turn_id uuid,
        project_id uuid NOT NULL,
        session_id uuid NOT NULL,
        actor_kind text NOT NULL,
        actor_id text NOT NULL,
        provider text NOT NULL,
        model_name text NOT NULL,
        usage_created_at timestamptz NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        moved_project_budget_id uuid,
        moved_session_budget_id uuid,
        moved_area_id uuid,
        CONSTRAINT pk_usage_corrections PRIMARY KEY (id),
        CONSTRAINT uq_usage_corrections_usage_id_source_figure_usd UNIQUE (usage_id, source, figure_usd),
        CONSTRAINT uq_usage_corrections_usage_id_ordinal UNIQUE (usage_id, ordinal)
    """,
    "parked_usage": """
        id uuid NOT NULL,
        turn_id uuid NOT NULL,
        project_id uuid NOT NULL,
        session_id uuid NOT NULL,
        actor_kind text NOT NULL,
        actor_id text NOT NULL,
        provider text NOT NULL,
        model_name text NOT NULL,
        cost_micros bigint NOT NULL,
        charged_usd numeric,
        estimated boolean NOT NULL,
        created_at timestamptz NOT NULL,
        record jsonb NOT NULL,
        reason text NOT NULL,
        parked_at timestamptz NOT NULL DEFAULT now(),
        moved_project_budget_id uuid,
        moved_session_budget_id uuid,
        moved_area_id uuid,
        CONSTRAINT pk_parked_usage PRIMARY KEY (id)
    """,
    "usage_truths": """
        usage_id uuid NOT NULL,
        turn_id uuid NOT NULL,
        project_id uuid NOT NULL,
        provider text NOT NULL,
        generation_id text,
        booked_micros bigint NOT NULL,
        created_at timestamptz NOT NULL,
        ask_after timestamptz NOT NULL,
        times_asked integer NOT NULL DEFAULT 0,
        state text NOT NULL DEFAULT 'open'::text,
        truth_micros bigint,
        reason text,
        closed_at timestamptz,
        CONSTRAINT pk_usage_truths PRIMARY KEY (usage_id)
    """,
    "counter_openings": """
        counter_id uuid NOT NULL,
        opening_micros bigint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_counter_openings PRIMARY KEY (counter_id)
    """,
    "audit_runs": """
        only_row boolean NOT NULL DEFAULT true,
        ran_at timestamptz NOT NULL,
        duration_ms integer NOT NULL,
        violations integer NOT NULL,
        failed text[] NOT NULL,
        CONSTRAINT pk_audit_runs PRIMARY KEY (only_row)
    """,
}

_INDEXES = (
    "ix_turn_starts_open ON turn_starts (started_at) WHERE ended_at IS NULL",
    "ix_budget_holds_excess ON budget_holds (budget_id) WHERE settled_micros > granted_micros",
    "ix_budget_holds_held ON budget_holds (budget_id) WHERE chat_micros + router_micros > 0",
    "ix_usage_corrections_usage_created_at ON usage_corrections (usage_created_at)",
    "ix_parked_usage_created_at ON parked_usage (created_at)",
    "ix_usage_truths_open ON usage_truths (ask_after) WHERE state = 'open'",
)


# An agent's area, as the program itself maps it (contract, section 4).
_AREA_OF = """
    CREATE OR REPLACE FUNCTION brabo_api_area_of(agent text) RETURNS text
    LANGUAGE sql IMMUTABLE AS $$
        SELECT CASE WHEN starts_with(agent, 'dev-') THEN 'dev'
            WHEN agent IN ('qa', 'qa-automacao', 'qa-performance-seguranca') THEN 'qa'
            WHEN agent IN ('infra', 'infra-workflows') THEN 'infra' END
    $$
"""

# What rows without marks explain of a counter: those of other programs, and ours from before there were marks.
_UNMARKED_OF_BUDGET = """
    SELECT coalesce(sum(t.cost_micros), 0) FROM token_usage t JOIN sessions s ON s.id = t.session_id
    WHERE t.turn_id IS NULL AND (t.session_id = b.session_id OR s.project_id = b.project_id)
"""
_UNMARKED_OF_AREA = """
    SELECT coalesce(sum(t.cost_micros), 0) FROM token_usage t JOIN sessions s ON s.id = t.session_id
    WHERE t.turn_id IS NULL AND t.actor_kind = 'agent' AND s.project_id = b.project_id
        AND brabo_api_area_of(t.actor_id) = b.key
"""

# Whoever makes a counter may have no rights on our table: the functions have their owner's, in the schema of today.
_FUNCTIONS = {
    "brabo_api_open_budget": f"""
        LOCK TABLE token_usage IN SHARE ROW EXCLUSIVE MODE;
        INSERT INTO counter_openings (counter_id, opening_micros)
        SELECT b.id, b.spent_micros - ({_UNMARKED_OF_BUDGET}) FROM budgets b WHERE b.id = NEW.id
        ON CONFLICT (counter_id) DO NOTHING;
        RETURN NULL;
    """,
    "brabo_api_open_area": f"""
        LOCK TABLE token_usage IN SHARE ROW EXCLUSIVE MODE;
        INSERT INTO counter_openings (counter_id, opening_micros)
        SELECT b.id, b.spent_micros - ({_UNMARKED_OF_AREA}) FROM agent_areas b WHERE b.id = NEW.id
        ON CONFLICT (counter_id) DO NOTHING;
        RETURN NULL;
    """,
    "brabo_api_delete_session": """
        UPDATE counter_openings o SET opening_micros = o.opening_micros + gone.micros
        FROM (
            SELECT counter_id, sum(cost_micros) AS micros
            FROM (
                SELECT t.moved_project_budget_id AS counter_id, t.cost_micros FROM token_usage t
                WHERE t.session_id = OLD.id
                UNION ALL
                SELECT t.moved_area_id, t.cost_micros FROM token_usage t WHERE t.session_id = OLD.id
                UNION ALL
                SELECT b.id, t.cost_micros FROM token_usage t JOIN budgets b ON b.project_id = OLD.project_id
                WHERE t.session_id = OLD.id AND t.turn_id IS NULL
                UNION ALL
                SELECT a.id, t.cost_micros FROM token_usage t
                JOIN agent_areas a ON a.project_id = OLD.project_id AND a.key = brabo_api_area_of(t.actor_id)
                WHERE t.session_id = OLD.id AND t.turn_id IS NULL AND t.actor_kind = 'agent'
            ) parts
            WHERE counter_id IS NOT NULL
            GROUP BY counter_id
        ) gone
        WHERE o.counter_id = gone.counter_id;
        RETURN OLD;
    """,
}

_TRIGGERS = {
    "brabo_api_open_budget": "AFTER INSERT ON budgets",
    "brabo_api_open_area": "AFTER INSERT ON agent_areas",
    "brabo_api_delete_session": "BEFORE DELETE ON sessions",
}


def upgrade() -> None:
    for table, columns in _COLUMNS.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column}")
    for table, body in _TABLES.items():
        op.execute(f"CREATE TABLE IF NOT EXISTS {table} ({body})")
    for index in _INDEXES:
        op.execute(f"CREATE INDEX IF NOT EXISTS {index}")
    op.execute(_AREA_OF)
    for name, body in _FUNCTIONS.items():
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql "
            f"SECURITY DEFINER SET search_path FROM CURRENT AS $$ BEGIN {body} END $$"
        )
    for name, when in _TRIGGERS.items():
        op.execute(f"DROP TRIGGER IF EXISTS {name} ON {when.rpartition(' ')[2]}")
        op.execute(f"CREATE TRIGGER {name} {when} FOR EACH ROW EXECUTE FUNCTION {name}()")
    op.execute("LOCK TABLE token_usage IN SHARE ROW EXCLUSIVE MODE")
    for counters, unmarked in (("budgets", _UNMARKED_OF_BUDGET), ("agent_areas", _UNMARKED_OF_AREA)):
        op.execute(
            f"INSERT INTO counter_openings (counter_id, opening_micros) "
            f"SELECT b.id, b.spent_micros - ({unmarked}) FROM {counters} b ON CONFLICT (counter_id) DO NOTHING"
        )


def downgrade() -> None:
    for name, when in _TRIGGERS.items():
        op.execute(f"DROP TRIGGER {name} ON {when.rpartition(' ')[2]}")
        op.execute(f"DROP FUNCTION {name}()")
    op.execute("DROP FUNCTION brabo_api_area_of(text)")
    for table in _TABLES:
        op.execute(f"DROP TABLE {table}")
    for table, columns in _COLUMNS.items():
        for column in columns:
            op.execute(f"ALTER TABLE {table} DROP COLUMN {column.split()[0]}")
