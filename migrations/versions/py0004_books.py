"""The books: starts and ends of turns, holds, corrections, parked rows, and which counters each row has moved.

A counter's opening is what it held when it was first seen, less what rows without marks explain. It is written while
nobody can write `token_usage`: row locks would let a row in between. Triggers write those of later budgets and areas,
whoever makes them, and add what goes with a deleted session.
"""

from alembic import op
from sqlalchemy import text

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
        origin_id uuid NOT NULL,
        opening_micros bigint NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        CONSTRAINT pk_counter_openings PRIMARY KEY (counter_id, origin_id)
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
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
        SELECT CASE WHEN starts_with(agent, 'dev-') THEN 'dev'
            WHEN agent IN ('qa', 'qa-automacao', 'qa-performance-seguranca') THEN 'qa'
            WHEN agent IN ('infra', 'infra-workflows') THEN 'infra' END
    $$
"""

_OPEN = """
    INSERT INTO counter_openings (counter_id, origin_id, opening_micros)
    SELECT c.id, c.id, c.spent_micros - ({unmarked}) FROM {counters} c WHERE c.id = NEW.id
    ON CONFLICT (counter_id, origin_id) DO NOTHING;
"""

# What rows without marks explain of a counter: those of other programs, and ours from before there were marks.
_UNMARKED_OF_SESSION = """
    SELECT coalesce(sum(t.cost_micros), 0) FROM token_usage t
    WHERE t.turn_id IS NULL AND t.session_id = c.session_id
"""
_UNMARKED_OF_PROJECT = """
    SELECT coalesce(sum(t.cost_micros), 0) FROM token_usage t JOIN sessions s ON s.id = t.session_id
    WHERE t.turn_id IS NULL AND s.project_id = c.project_id
"""
_UNMARKED_OF_AREA = f"""
    {_UNMARKED_OF_PROJECT} AND t.actor_kind = 'agent' AND brabo_api_area_of(t.actor_id) = c.key
"""

_FUNCTIONS = {
    "brabo_api_open_budget": f"""
        LOCK TABLE token_usage IN SHARE ROW EXCLUSIVE MODE;
        IF NEW.session_id IS NOT NULL THEN
            {_OPEN.format(counters="budgets", unmarked=_UNMARKED_OF_SESSION)}
        ELSE
            {_OPEN.format(counters="budgets", unmarked=_UNMARKED_OF_PROJECT)}
        END IF;
        RETURN NULL;
    """,
    "brabo_api_open_area": f"""
        LOCK TABLE token_usage IN SHARE ROW EXCLUSIVE MODE;
        {_OPEN.format(counters="agent_areas", unmarked=_UNMARKED_OF_AREA)}
        RETURN NULL;
    """,
    # An entry of its own for each session: two that are deleted at once wait for no row of each other. A project that
    # is deleted takes its counters along.
    "brabo_api_delete_session": """
        IF EXISTS (SELECT FROM projects p WHERE p.id = OLD.project_id) THEN
            INSERT INTO counter_openings AS o (counter_id, origin_id, opening_micros)
            SELECT counter_id, OLD.id, sum(cost_micros)
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
            ON CONFLICT (counter_id, origin_id) DO UPDATE
                SET opening_micros = o.opening_micros + excluded.opening_micros;
        END IF;
        RETURN OLD;
    """,
}

# Openings are written when the transaction that makes a counter commits: it holds up those who write rows from then on
# only, and not for as long as it takes.
_TRIGGERS = {
    "brabo_api_open_budget": (
        "CONSTRAINT TRIGGER",
        "AFTER INSERT",
        "budgets",
        "DEFERRABLE INITIALLY DEFERRED",
    ),
    "brabo_api_open_area": (
        "CONSTRAINT TRIGGER",
        "AFTER INSERT",
        "agent_areas",
        "DEFERRABLE INITIALLY DEFERRED",
    ),
    "brabo_api_delete_session": ("TRIGGER", "BEFORE DELETE", "sessions", ""),
}

# One look at the rows for all of them, since nobody can write any meanwhile.
_FIRST_OPENINGS = """
    WITH unmarked AS MATERIALIZED (
        SELECT s.project_id, t.session_id, CASE t.actor_kind WHEN 'agent' THEN brabo_api_area_of(t.actor_id) END AS key,
            sum(t.cost_micros) AS micros
        FROM token_usage t JOIN sessions s ON s.id = t.session_id
        WHERE t.turn_id IS NULL GROUP BY 1, 2, 3
    ), explained AS (
        SELECT b.id, sum(u.micros) AS micros FROM budgets b JOIN unmarked u ON u.project_id = b.project_id GROUP BY b.id
        UNION ALL
        SELECT b.id, sum(u.micros) FROM budgets b JOIN unmarked u ON u.session_id = b.session_id GROUP BY b.id
        UNION ALL
        SELECT a.id, sum(u.micros)
        FROM agent_areas a JOIN unmarked u ON u.project_id = a.project_id AND u.key = a.key GROUP BY a.id
    )
    INSERT INTO counter_openings (counter_id, origin_id, opening_micros)
    SELECT c.id, c.id, c.spent_micros - coalesce(e.micros, 0)
    FROM (SELECT id, spent_micros FROM budgets UNION ALL SELECT id, spent_micros FROM agent_areas) c
    LEFT JOIN explained e ON e.id = c.id
    ON CONFLICT (counter_id, origin_id) DO NOTHING
"""


def upgrade() -> None:
    # Each on its own: whoever uses two of these tables must not meet somebody who holds one and waits for the other.
    with op.get_context().autocommit_block():
        for table, columns in _COLUMNS.items():
            added = ", ".join(f"ADD COLUMN IF NOT EXISTS {column}" for column in columns)
            op.execute(f"ALTER TABLE {table} {added}")
    for table, body in _TABLES.items():
        op.execute(f"CREATE TABLE IF NOT EXISTS {table} ({body})")
    for index in _INDEXES:
        op.execute(f"CREATE INDEX IF NOT EXISTS {index}")
    op.execute(_AREA_OF)
    _make_functions()
    # These four are to be had together: whoever is in the way is let through well before a deadlock is looked for.
    op.execute("SET LOCAL lock_timeout = '250ms'")
    op.execute("LOCK TABLE sessions, token_usage, budgets, agent_areas IN SHARE ROW EXCLUSIVE MODE")
    for name, (kind, when, table, deferral) in _TRIGGERS.items():
        op.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
        op.execute(
            f"CREATE {kind} {name} {when} ON {table} {deferral} FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
    op.execute(_FIRST_OPENINGS)


def downgrade() -> None:
    connection = op.get_bind()
    not_ours: set[tuple[str, str]] = set()
    if connection.scalar(text("SELECT to_regclass('brabo_api_adoption')")):
        rows = connection.execute(text("SELECT table_name, column_name FROM brabo_api_adoption"))
        not_ours = {(row.table_name, row.column_name) for row in rows}
    with op.get_context().autocommit_block():
        for name, (_, _, table, _) in _TRIGGERS.items():
            op.execute(f"DROP TRIGGER IF EXISTS {name} ON {table}")
        for table, columns in _COLUMNS.items():
            for name in (column.split()[0] for column in columns):
                if (table, name) not in not_ours:
                    op.execute(f"ALTER TABLE {table} DROP COLUMN IF EXISTS {name}")
    for name in _FUNCTIONS:
        op.execute(f"DROP FUNCTION {name}()")
    op.execute("DROP FUNCTION brabo_api_area_of(text)")
    for table in _TABLES:
        op.execute(f"DROP TABLE {table}")


def _make_functions() -> None:
    """Whoever makes a counter may have no rights on our tables: the functions have ours, in the schemas of today.

    They wait for 4 s at most, before those who queue behind them count as held up (5 s).
    """
    schemas = op.get_bind().scalar(
        text("SELECT string_agg(quote_ident(name), ', ') FROM unnest(current_schemas(false)) AS name")
    )
    for name, body in _FUNCTIONS.items():
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
            f"SET search_path = {schemas}, pg_temp SET lock_timeout = '4s' AS $$ BEGIN {body} END $$"
        )
        op.execute(f"REVOKE EXECUTE ON FUNCTION {name}() FROM PUBLIC")
