"""The statements that move counters: settling, parking, correcting, writing off.

Each is one statement, so one transaction and one snapshot, and all of them end in the same moves. Counters move by
what was inserted, never by what was handed over: what is there already moves none. Rows are locked budgets first,
then holds, then areas, each in the order of their ids, and each is updated by one CTE only, from the values its lock
brought: those beside an UPDATE may be older. They are SQL rather than expressions, since whoever checks the books
reads them.
"""

from typing import Final

from domain.budget import THRESHOLDS_PERCENT

ROW_COLUMNS: Final = {
    "id": "uuid",
    "turn_id": "uuid",
    "session_id": "uuid",
    "actor_kind": "actor_kind",
    "actor_id": "text",
    "provider": "llm_provider",
    "model_id": "uuid",
    "model_name": "text",
    "input_tokens": "integer",
    "output_tokens": "integer",
    "estimated": "boolean",
    "cost_micros": "bigint",
    "input_price_per_million_micros": "bigint",
    "output_price_per_million_micros": "bigint",
    "latency_ms": "integer",
    "binding_origin": "model_binding_scope",
    "upstream_provider": "text",
    "routing_preference": "routing_preference",
    "created_at": "timestamptz",
    "price_implicit": "boolean",
    "catalog_cost_micros": "bigint",
    "resolved_model_name": "text",
    "generation_id": "text",
    "cached_input_tokens": "integer",
    "reasoning_tokens": "integer",
    "charged_usd": "numeric",
}
"""Columns of `token_usage` that a record brings, with their types."""

START_COLUMNS: Final = {
    "turn_id": "uuid",
    "router_usage_id": "uuid",
    "workspace_id": "uuid",
    "project_id": "uuid",
    "session_id": "uuid",
    "agent": "text",
    "provider": "text",
    "model_id": "uuid",
    "model_name": "text",
    "input_price_per_million_micros": "bigint",
    "output_price_per_million_micros": "bigint",
    "binding_origin": "text",
    "routing_preference": "text",
    "prompt_bytes": "bigint",
    "process_id": "uuid",
    "host": "text",
    "started_at": "timestamptz",
    "due_at": "timestamptz",
    "traceparent": "text",
    "generation_id": "text",
}
"""Columns of `turn_starts` that a start brings."""

_END_COLUMNS: Final = {
    "ended_at": "timestamptz",
    "outcome": "text",
    "router_outcome": "text",
    "error_code": "text",
    "settled_by": "uuid",
}
_MARKS: Final = ("moved_project_budget_id", "moved_session_budget_id", "moved_area_id")

_PARKED_COLUMNS: Final = {
    "id": "uuid",
    "turn_id": "uuid",
    "project_id": "uuid",
    "session_id": "uuid",
    "actor_kind": "text",
    "actor_id": "text",
    "provider": "text",
    "model_name": "text",
    "cost_micros": "bigint",
    "charged_usd": "numeric",
    "estimated": "boolean",
    "created_at": "timestamptz",
}
"""Columns of `parked_usage` that a record brings. What `token_usage` refuses may be in any of the others."""


def names(columns: dict[str, str]) -> str:
    """The columns of a statement's list."""
    return ", ".join(columns)


def _marks_of(table: str) -> str:
    return ", ".join(f"{table}.{mark}" for mark in _MARKS)


def typed(columns: dict[str, str]) -> str:
    """The columns as `json_to_recordset` wants them declared."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def _handed(columns: dict[str, str]) -> str:
    """The records, with the counters they are to move: looked up in the snapshot in which these are locked."""
    brought = {
        **columns,
        "generation_id": "text",
        "project_id": "uuid",
        "area": "text",
        "traceparent": "text",
        "awaits_truth": "boolean",
    }
    return f"""
        handed AS (
            SELECT r.*, of_project.id AS moved_project_budget_id,
                of_session.id AS moved_session_budget_id, area.id AS moved_area_id
            FROM json_to_recordset(%(rows)s::json) AS r ({typed(brought)})
            LEFT JOIN budgets of_project ON of_project.project_id = r.project_id
            LEFT JOIN budgets of_session ON of_session.session_id = r.session_id
            LEFT JOIN agent_areas area ON area.project_id = r.project_id AND area.key = r.area
        )"""


_ENDED: Final = f"""
        ends AS (
            SELECT e.* FROM json_to_recordset(%(ends)s::json) AS e
                ({typed({**START_COLUMNS, **_END_COLUMNS, "has_chat_row": "boolean"})})
        ), ended AS (
            INSERT INTO turn_starts AS s ({names({**START_COLUMNS, **_END_COLUMNS})})
            SELECT {names({**START_COLUMNS, **_END_COLUMNS})} FROM ends ORDER BY turn_id
            ON CONFLICT (turn_id) DO UPDATE SET
                ended_at = excluded.ended_at, outcome = excluded.outcome, router_outcome = excluded.router_outcome,
                error_code = excluded.error_code, settled_by = excluded.settled_by,
                generation_id = coalesce(s.generation_id, excluded.generation_id)
            WHERE s.ended_at IS NULL
            RETURNING s.turn_id
        )"""

_HOLD_MOVES: Final = """
        hold_moves AS (
            SELECT turn_id, bool_or(frees_chat) AS frees_chat, sum(takes_chat) AS takes_chat,
                bool_or(frees_router) AS frees_router, sum(takes_router) AS takes_router, sum(cost) AS cost,
                bool_or(has_ended) AS has_ended, false AS is_written_off
            FROM (
                SELECT turn_id, id = turn_id AND NOT awaits_truth AS frees_chat,
                    CASE WHEN id = turn_id AND awaits_truth THEN cost_micros ELSE 0 END AS takes_chat,
                    id <> turn_id AND NOT awaits_truth AS frees_router,
                    CASE WHEN id <> turn_id AND awaits_truth THEN cost_micros ELSE 0 END AS takes_router,
                    cost_micros AS cost, false AS has_ended
                FROM written
                UNION ALL
                SELECT turn_id, NOT has_chat_row, 0, coalesce(router_outcome, 'free') = 'free', 0, 0, true
                FROM ends JOIN ended USING (turn_id)
            ) moves
            GROUP BY turn_id
        )"""


def _reaches(spent: str, percent: str) -> str:
    return f"locked.limit_micros > 0 AND {spent}::numeric * 100 >= locked.limit_micros::numeric * {percent}"


_REACHED: Final = " ".join(
    f"WHEN {_reaches('locked.spent_micros', str(percent))} THEN {percent}"
    for percent in reversed(THRESHOLDS_PERCENT)
)

_MOVES: Final = f"""
        shares AS (
            SELECT budget_id, sum(cost) AS cost, bool_or(is_spend) AS is_spend
            FROM (
                SELECT moved_project_budget_id AS budget_id, cost_micros AS cost, true AS is_spend FROM written
                UNION ALL SELECT moved_session_budget_id, cost_micros, true FROM written
                UNION ALL SELECT budget_id, 0, false FROM budget_holds JOIN hold_moves USING (turn_id)
            ) all_shares
            WHERE budget_id IS NOT NULL GROUP BY budget_id
        ), locked AS (
            SELECT b.id, b.project_id, b.session_id, b.limit_micros, b.last_threshold_notified, b.armings,
                b.held_micros, b.spent_micros AS spent_before_micros, b.spent_micros + shares.cost AS spent_micros,
                shares.is_spend
            FROM budgets b JOIN shares ON shares.budget_id = b.id
            ORDER BY b.id FOR UPDATE OF b
        ), locked_holds AS (
            SELECT h.turn_id, h.budget_id, h.chat_micros + h.router_micros AS held_micros,
                CASE WHEN m.frees_chat THEN 0 ELSE greatest(0, h.chat_micros - m.takes_chat)::bigint END
                    AS chat_micros,
                CASE WHEN m.frees_router THEN 0 ELSE greatest(0, h.router_micros - m.takes_router)::bigint END
                    AS router_micros,
                m.cost, m.has_ended, m.is_written_off
            FROM budget_holds h JOIN hold_moves m USING (turn_id)
            -- Asking for the budgets here is what makes their locks come first.
            WHERE (SELECT count(*) FROM locked) >= 0
            ORDER BY h.turn_id, h.budget_id FOR UPDATE OF h
        ), moved_holds AS (
            UPDATE budget_holds h SET
                chat_micros = l.chat_micros, router_micros = l.router_micros,
                settled_micros = h.settled_micros + l.cost,
                state = CASE WHEN l.chat_micros + l.router_micros = 0
                        THEN CASE WHEN l.is_written_off THEN 'written_off'
                            WHEN l.has_ended OR h.state <> 'open' THEN 'settled' ELSE h.state END
                    WHEN l.has_ended THEN 'unsettled' ELSE h.state END,
                closed_at = CASE WHEN l.chat_micros + l.router_micros = 0 AND (l.has_ended OR h.state <> 'open')
                    THEN now() END
            FROM locked_holds l WHERE h.turn_id = l.turn_id AND h.budget_id = l.budget_id
            RETURNING h.budget_id
        ), released AS (
            SELECT budget_id, sum(held_micros - chat_micros - router_micros) AS micros
            FROM locked_holds GROUP BY budget_id
        ), moved_budgets AS (
            UPDATE budgets b SET
                spent_micros = locked.spent_micros::bigint,
                held_micros = (locked.held_micros - coalesce(released.micros, 0))::bigint,
                last_threshold_notified = CASE WHEN locked.is_spend
                    THEN greatest(locked.last_threshold_notified, CASE {_REACHED} ELSE 0 END)
                    ELSE locked.last_threshold_notified END,
                updated_at = now()
            FROM locked LEFT JOIN released ON released.budget_id = locked.id
            WHERE b.id = locked.id
            RETURNING b.id
        ), announced AS (
            -- A threshold is the doing of one record of the batch, by the order of ids: its trace, what was spent then.
            INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload, metadata)
            SELECT 'budget', locked.id, 'budget.threshold_crossed',
                jsonb_build_object(
                    'scope', CASE WHEN locked.project_id IS NOT NULL THEN 'project' ELSE 'session' END,
                    'scopeId', coalesce(locked.project_id, locked.session_id),
                    'threshold', threshold.percent, 'spentMicros', crossing.spent_micros,
                    'limitMicros', locked.limit_micros),
                jsonb_strip_nulls(
                    jsonb_build_object('traceparent', crossing.traceparent, 'arming', nullif(locked.armings, 0)))
            FROM locked
            JOIN unnest(ARRAY[{", ".join(map(str, THRESHOLDS_PERCENT))}]) AS threshold (percent)
                ON threshold.percent > locked.last_threshold_notified
                AND {_reaches("locked.spent_micros", "threshold.percent")}
            CROSS JOIN LATERAL (
                SELECT running.traceparent, running.spent_micros::bigint AS spent_micros
                FROM (
                    SELECT w.id, w.traceparent,
                        locked.spent_before_micros + sum(w.cost_micros) OVER (ORDER BY w.id) AS spent_micros
                    FROM written w
                    WHERE locked.id IN (w.moved_project_budget_id, w.moved_session_budget_id)
                ) running
                WHERE {_reaches("running.spent_micros", "threshold.percent")}
                ORDER BY running.id LIMIT 1
            ) crossing
            ORDER BY locked.id, threshold.percent
            RETURNING id
        ), area_shares AS (
            SELECT moved_area_id AS area_id, sum(cost_micros) AS cost FROM written
            WHERE moved_area_id IS NOT NULL AND (SELECT count(*) FROM moved_budgets) >= 0
            GROUP BY moved_area_id
        ), locked_areas AS (
            SELECT a.id, a.spent_micros + area_shares.cost AS spent_micros
            FROM agent_areas a JOIN area_shares ON area_shares.area_id = a.id
            ORDER BY a.id FOR UPDATE OF a
        ), moved_areas AS (
            UPDATE agent_areas a SET spent_micros = l.spent_micros::bigint, updated_at = now()
            FROM locked_areas l WHERE a.id = l.id
            RETURNING a.id
        )"""

_TRUTHS: Final = """
        truths AS (
            INSERT INTO usage_truths
                (usage_id, turn_id, project_id, provider, generation_id, booked_micros, created_at, ask_after)
            SELECT id, turn_id, project_id, provider::text, generation_id, cost_micros, created_at, created_at
            FROM written WHERE awaits_truth
            UNION ALL
            -- The router may have been charged, and no row will say so: what is held for it stays to be written off.
            SELECT router_usage_id, turn_id, project_id, provider, NULL, 0, ended_at, ended_at
            FROM ends JOIN ended USING (turn_id)
            WHERE router_outcome = 'unseen'
                AND EXISTS (SELECT FROM budget_holds h WHERE h.turn_id = ends.turn_id AND h.router_micros > 0)
            ON CONFLICT (usage_id) DO NOTHING
            RETURNING usage_id
        )"""

SETTLE: Final = f"""WITH {_handed(ROW_COLUMNS)}, inserted AS (
            INSERT INTO token_usage ({names(ROW_COLUMNS)}, {", ".join(_MARKS)})
            SELECT {names(ROW_COLUMNS)}, {", ".join(_MARKS)} FROM handed
            WHERE NOT EXISTS (SELECT FROM parked_usage p WHERE p.id = handed.id) ORDER BY id
            ON CONFLICT (id) DO NOTHING
            RETURNING id
        ), sessions_kept AS (
            -- Whoever deletes a session wants its budget next: without this, each would have what the other waits for.
            SELECT s.id FROM sessions s WHERE s.id IN (SELECT session_id FROM handed)
            ORDER BY s.id FOR KEY SHARE
        ), written AS (
            SELECT handed.* FROM handed JOIN inserted USING (id)
            WHERE (SELECT count(*) FROM sessions_kept) >= 0
        ),
        {_ENDED}, {_HOLD_MOVES}, {_MOVES}, {_TRUTHS}
    SELECT coalesce(json_agg(h.id), '[]')::text
    FROM handed h LEFT JOIN token_usage t ON t.id = h.id
    WHERE NOT EXISTS (SELECT FROM inserted i WHERE i.id = h.id)
        AND (t.id IS NULL OR t.cost_micros <> h.cost_micros OR t.charged_usd IS DISTINCT FROM h.charged_usd)
""".encode()
"""Takes `rows` and `ends`, JSON lists with each id once. Gives the ids of rows that were there, or may have been, with
another figure."""

PARK: Final = f"""WITH {_handed(_PARKED_COLUMNS)}, inserted AS (
            INSERT INTO parked_usage ({names(_PARKED_COLUMNS)}, record, reason, {", ".join(_MARKS)})
            SELECT {names(_PARKED_COLUMNS)}, %(record)s::jsonb, %(reason)s, {", ".join(_MARKS)} FROM handed
            WHERE NOT EXISTS (SELECT FROM token_usage t WHERE t.id = handed.id)
            ON CONFLICT (id) DO NOTHING
            RETURNING id
        ), written AS (SELECT handed.* FROM handed JOIN inserted USING (id)),
        {_ENDED}, {_HOLD_MOVES}, {_MOVES}, {_TRUTHS}
    SELECT count(*) FROM inserted
""".encode()
"""Takes one row that the ledger refuses, its whole `record`, the `reason`, and `ends`. Gives how many are new."""

CORRECT: Final = f"""WITH original AS (
            SELECT t.id, t.turn_id, s.project_id, t.session_id, t.actor_kind::text, t.actor_id, t.provider::text,
                t.model_name, t.created_at, t.cost_micros, t.charged_usd, t.estimated, {_marks_of("t")}
            FROM token_usage t JOIN sessions s ON s.id = t.session_id WHERE t.id = %(usage_id)s
            UNION ALL
            SELECT p.id, p.turn_id, p.project_id, p.session_id, p.actor_kind, p.actor_id, p.provider,
                p.model_name, p.created_at, p.cost_micros, p.charged_usd, p.estimated, {_marks_of("p")}
            FROM parked_usage p WHERE p.id = %(usage_id)s
        ), booked AS (
            SELECT count(*) AS corrections, coalesce(sum(delta_micros), 0) AS micros,
                coalesce(sum(delta_usd), 0) AS usd,
                coalesce(bool_or(source = 'provider'), false) AS has_truth,
                coalesce(bool_or(source <> 'estimate'), false) AS has_more_than_estimates,
                coalesce(bool_or(source = %(source)s AND figure_usd = %(figure_usd)s), false) AS is_known
            FROM usage_corrections WHERE usage_id = %(usage_id)s
        ), effective AS (
            SELECT o.*, b.corrections, b.has_truth, b.has_more_than_estimates, b.is_known,
                coalesce(o.charged_usd, o.cost_micros::numeric / 1000000) AS original_usd,
                o.cost_micros + b.micros AS now_micros,
                coalesce(o.charged_usd, o.cost_micros::numeric / 1000000) + b.usd AS now_usd
            FROM original o CROSS JOIN booked b
        ), decided AS (
            SELECT e.*, CASE
                    WHEN %(source)s = 'provider' AND now_usd = %(figure_usd)s AND now_micros = %(figure_micros)s
                        THEN 'equal'
                    WHEN is_known THEN 'known'
                    WHEN %(source)s <> 'provider' AND (original_usd = %(figure_usd)s OR has_truth) THEN 'known'
                    WHEN %(source)s = 'estimate' AND (NOT estimated OR has_more_than_estimates) THEN 'known'
                    ELSE 'corrected' END AS verdict
            FROM effective e
        ), inserted AS (
            INSERT INTO usage_corrections (usage_id, ordinal, figure_usd, source, delta_micros, delta_usd, turn_id,
                project_id, session_id, actor_kind, actor_id, provider, model_name, usage_created_at,
                {", ".join(_MARKS)})
            SELECT d.id, d.corrections + 1, %(figure_usd)s, %(source)s, %(figure_micros)s - d.now_micros,
                %(figure_usd)s - d.now_usd, d.turn_id, d.project_id, d.session_id, d.actor_kind, d.actor_id,
                d.provider, d.model_name, d.created_at,
                (SELECT id FROM budgets WHERE id = d.moved_project_budget_id),
                (SELECT id FROM budgets WHERE id = d.moved_session_budget_id),
                (SELECT id FROM agent_areas WHERE id = d.moved_area_id)
            FROM decided d WHERE d.verdict = 'corrected'
            -- Somebody else has booked one since: this one is to be decided again.
            ON CONFLICT DO NOTHING
            RETURNING usage_id, delta_micros, {", ".join(_MARKS)}
        ), written AS (
            SELECT usage_id AS id, delta_micros AS cost_micros, {", ".join(_MARKS)}, NULL::text AS traceparent
            FROM inserted
        ), closed AS (
            -- What corrected it stays so: who brings the same truth after that finds it equal.
            UPDATE usage_truths t SET state = d.verdict, truth_micros = %(figure_micros)s, closed_at = now()
            FROM decided d
            WHERE t.usage_id = d.id AND %(source)s = 'provider'
                AND (EXISTS (SELECT FROM inserted) OR (d.verdict = 'equal' AND t.state <> 'corrected'))
            RETURNING t.usage_id
        ), hold_moves AS (
            SELECT d.turn_id, d.id = d.turn_id AND %(is_certain)s AS frees_chat, 0 AS takes_chat,
                d.id <> d.turn_id AND %(is_certain)s AS frees_router, 0 AS takes_router,
                coalesce((SELECT sum(cost_micros) FROM written), 0) AS cost, false AS has_ended,
                false AS is_written_off
            FROM decided d
            WHERE d.turn_id IS NOT NULL
                AND (EXISTS (SELECT FROM inserted) OR (d.verdict = 'equal' AND %(is_certain)s))
        ), {_MOVES}
    SELECT d.verdict, d.now_micros, (SELECT count(*) FROM inserted) FROM decided d
""".encode()
"""Takes `usage_id`, `source`, `figure_usd`, `figure_micros` and `is_certain`. Gives the verdict, what the row came to
before, and how many corrections were booked; no row: there is no such record."""

WRITE_OFF: Final = f"""WITH closed AS (
            UPDATE usage_truths SET state = 'irreconcilable', reason = %(reason)s, closed_at = now()
            WHERE usage_id = %(usage_id)s AND state = 'open'
            RETURNING usage_id
        ), written AS (
            SELECT NULL::uuid AS id, 0::bigint AS cost_micros, NULL::uuid AS moved_project_budget_id,
                NULL::uuid AS moved_session_budget_id, NULL::uuid AS moved_area_id, NULL::text AS traceparent
            WHERE false
        ), hold_moves AS (
            SELECT %(turn_id)s::uuid AS turn_id, %(is_chat)s AS frees_chat, 0 AS takes_chat,
                %(is_router)s AS frees_router, 0 AS takes_router, 0 AS cost, false AS has_ended, true AS is_written_off
        ), {_MOVES}
    SELECT (SELECT count(*) FROM closed), (SELECT count(*) FROM moved_holds)
""".encode()
"""Takes `usage_id`, `turn_id`, `is_chat`, `is_router` and the `reason`. What a turn holds is freed by name: nobody will
ever know what it cost."""
