"""What must hold in the books, as SQL that anyone can run: each statement gives the rows that break it."""

from dataclasses import dataclass
from typing import Final

from domain.routing import WORST_CASE_MICROS

SINCE: Final = "'-infinity'::timestamptz"
"""What `--since` replaces: rows made before are not looked at one by one."""

RECOVERY: Final = "interval '15 minutes'"
"""After a turn is due, within which whoever settles for a dead process has settled it."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement that gives `id` and `detail` of each row that breaks it."""

    name: str
    meaning: str
    sql: str


_IN_VIEW: Final = "interval '15 minutes'"
"""After a counter was made, within which everybody sees it: the transaction that made it may take as long."""


def _counter_is_wrong(name: str, counters: str, condition: str, unmarked: str, join: str) -> str:
    """Counters that are not the sum of what is known of them; `unmarked` gives what rows without marks add up to."""
    total = "coalesce(o.micros, 0) + coalesce(u.micros, 0) + coalesce(m.micros, 0)"
    return f"""SELECT c.id::text AS id,
            format('says %s; opening %s, rows of other programs %s and ours %s are %s', c.spent_micros,
                CASE WHEN o.is_open THEN o.micros::text ELSE 'missing' END, coalesce(u.micros, 0),
                coalesce(m.micros, 0), {total}) AS detail
        FROM {counters} c
        LEFT JOIN (
            SELECT counter_id, sum(opening_micros) AS micros, bool_or(origin_id = counter_id) AS is_open
            FROM counter_openings GROUP BY counter_id
        ) o ON o.counter_id = c.id
        LEFT JOIN (
            {unmarked}
        ) u ON {join}
        LEFT JOIN (
            SELECT counter_id, sum(micros) AS micros FROM (
                SELECT {name} AS counter_id, cost_micros AS micros FROM token_usage
                UNION ALL SELECT {name}, delta_micros FROM usage_corrections
                UNION ALL SELECT {name}, cost_micros FROM parked_usage
            ) moves WHERE counter_id IS NOT NULL GROUP BY counter_id
        ) m ON m.counter_id = c.id
        WHERE {condition} AND (o.is_open IS NOT TRUE
            OR c.spent_micros <> {total})"""


_ORIGINALS: Final = """
            SELECT id, session_id, cost_micros, moved_project_budget_id, moved_session_budget_id, moved_area_id
            FROM token_usage
            UNION ALL
            SELECT id, session_id, cost_micros, moved_project_budget_id, moved_session_budget_id, moved_area_id
            FROM parked_usage"""

_PRICED_ROWS: Final = """
            SELECT id, created_at, price_implicit, input_tokens::numeric AS input, output_tokens::numeric AS output,
                input_price_per_million_micros AS input_price, output_price_per_million_micros AS output_price,
                cost_micros
            FROM token_usage
            UNION ALL
            SELECT id, created_at, (record ->> 'price_implicit')::boolean, (record ->> 'input_tokens')::numeric,
                (record ->> 'output_tokens')::numeric, (record ->> 'input_price_per_million_micros')::bigint,
                (record ->> 'output_price_per_million_micros')::bigint, cost_micros
            FROM parked_usage"""

_PRICED_OUT: Final = """
            NOT price_implicit AND round(input * input_price / 1000000) + round(output * output_price / 1000000)
                <> cost_micros
            OR price_implicit AND (
                input_price <> output_price
                OR input + output = 0 AND input_price <> 0
                OR input + output > 0 AND abs(round((input + output) * input_price / 1000000) - cost_micros)
                    > CASE WHEN input + output <= 1000000 THEN 0 ELSE ceil((input + output) / 2000000) END)"""

INVARIANTS: Final = (
    Invariant(
        "project-counters",
        "What a project's budget says was spent is its opening and all that moved it since.",
        _counter_is_wrong(
            "moved_project_budget_id",
            "budgets",
            "c.project_id IS NOT NULL",
            """SELECT s.project_id, sum(t.cost_micros) AS micros
            FROM token_usage t JOIN sessions s ON s.id = t.session_id
            WHERE t.turn_id IS NULL GROUP BY s.project_id""",
            "u.project_id = c.project_id",
        ),
    ),
    Invariant(
        "session-counters",
        "What a session's budget says was spent is its opening and all that moved it since.",
        _counter_is_wrong(
            "moved_session_budget_id",
            "budgets",
            "c.session_id IS NOT NULL",
            "SELECT session_id, sum(cost_micros) AS micros FROM token_usage WHERE turn_id IS NULL GROUP BY session_id",
            "u.session_id = c.session_id",
        ),
    ),
    Invariant(
        "area-counters",
        "What an area says was spent is its opening and all that moved it since.",
        _counter_is_wrong(
            "moved_area_id",
            "agent_areas",
            "true",
            """SELECT s.project_id, brabo_api_area_of(t.actor_id) AS key, sum(t.cost_micros) AS micros
            FROM token_usage t JOIN sessions s ON s.id = t.session_id
            WHERE t.turn_id IS NULL AND t.actor_kind = 'agent' GROUP BY 1, 2""",
            "u.project_id = c.project_id AND u.key = c.key",
        ),
    ),
    Invariant(
        "marks",
        "A row of ours has moved the counters of its project, session and area, and a correction those of its row.",
        f"""SELECT r.id::text AS id, 'has not moved just the counters that it belongs to' AS detail
        FROM (
            SELECT t.id, t.turn_id, t.created_at, s.project_id, t.session_id, t.moved_project_budget_id,
                t.moved_session_budget_id, t.moved_area_id
            FROM token_usage t JOIN sessions s ON s.id = t.session_id
            UNION ALL
            SELECT id, turn_id, created_at, project_id, session_id, moved_project_budget_id, moved_session_budget_id,
                moved_area_id
            FROM parked_usage
        ) r
        JOIN turn_starts begun ON begun.turn_id = r.turn_id
        -- The counters that it names, if they are still there, and those that it had to name.
        LEFT JOIN budgets p ON p.id = r.moved_project_budget_id
        LEFT JOIN budgets s ON s.id = r.moved_session_budget_id
        LEFT JOIN agent_areas a ON a.id = r.moved_area_id
        LEFT JOIN budgets p_of ON p_of.project_id = r.project_id
        LEFT JOIN budgets s_of ON s_of.session_id = r.session_id
        LEFT JOIN agent_areas a_of ON a_of.project_id = r.project_id AND a_of.key = brabo_api_area_of(begun.agent)
        LEFT JOIN counter_openings p_open ON p_open.counter_id = p_of.id AND p_open.origin_id = p_of.id
        LEFT JOIN counter_openings s_open ON s_open.counter_id = s_of.id AND s_open.origin_id = s_of.id
        LEFT JOIN counter_openings a_open ON a_open.counter_id = a_of.id AND a_open.origin_id = a_of.id
        WHERE r.created_at >= {SINCE} AND (
            p.id IS NOT NULL AND p.project_id IS DISTINCT FROM r.project_id
            OR s.id IS NOT NULL AND s.session_id IS DISTINCT FROM r.session_id
            OR a.id IS NOT NULL AND a.project_id IS DISTINCT FROM r.project_id
            OR a.id IS NOT NULL AND a.key IS DISTINCT FROM brabo_api_area_of(begun.agent)
            OR p_of.id IS DISTINCT FROM r.moved_project_budget_id AND p_open.created_at + {_IN_VIEW} < r.created_at
            OR s_of.id IS DISTINCT FROM r.moved_session_budget_id AND s_open.created_at + {_IN_VIEW} < r.created_at
            OR a_of.id IS DISTINCT FROM r.moved_area_id AND a_open.created_at + {_IN_VIEW} < r.created_at)
        UNION ALL
        SELECT c.usage_id::text, 'has a correction that has not moved just what its row had moved'
        FROM usage_corrections c JOIN ({_ORIGINALS}
        ) r ON r.id = c.usage_id
        LEFT JOIN budgets p ON p.id = r.moved_project_budget_id
        LEFT JOIN budgets s ON s.id = r.moved_session_budget_id
        LEFT JOIN agent_areas a ON a.id = r.moved_area_id
        WHERE c.created_at >= {SINCE} AND (
            c.moved_project_budget_id IS DISTINCT FROM r.moved_project_budget_id
                AND num_nonnulls(c.moved_project_budget_id, p.id) > 0
            OR c.moved_session_budget_id IS DISTINCT FROM r.moved_session_budget_id
                AND num_nonnulls(c.moved_session_budget_id, s.id) > 0
            OR c.moved_area_id IS DISTINCT FROM r.moved_area_id AND num_nonnulls(c.moved_area_id, a.id) > 0)""",
    ),
    Invariant(
        "holds",
        "What a budget says is held is the sum of its holds.",
        """SELECT b.id::text AS id, format('held %s, holds %s', b.held_micros, coalesce(h.micros, 0)) AS detail
        FROM budgets b LEFT JOIN (
            SELECT budget_id, sum(chat_micros + router_micros) AS micros FROM budget_holds GROUP BY budget_id
        ) h ON h.budget_id = b.id
        WHERE b.held_micros <> coalesce(h.micros, 0)""",
    ),
    Invariant(
        "holds-end",
        "A turn that has ended holds only what nobody knows the cost of, and that until it is known or written off.",
        f"""SELECT h.turn_id::text AS id, format('is still open in budget %s', h.budget_id) AS detail
        FROM budget_holds h JOIN turn_starts s ON s.turn_id = h.turn_id
        WHERE h.state = 'open' AND s.ended_at IS NOT NULL AND greatest(s.ended_at, h.created_at) + {RECOVERY} < now()
        UNION ALL
        SELECT h.turn_id::text, format('awaits the truth, and holds %s of %s', h.chat_micros + h.router_micros,
            h.granted_micros - h.settled_micros)
        FROM budget_holds h JOIN usage_truths t ON t.usage_id = h.turn_id
        WHERE t.state = 'open'
            AND h.chat_micros + h.router_micros < h.granted_micros - h.settled_micros - {WORST_CASE_MICROS}
            AND NOT EXISTS (SELECT FROM usage_corrections c WHERE c.usage_id = h.turn_id)""",
    ),
    Invariant(
        "prices",
        "Tokens times the row's own prices are its cost.",
        f"""SELECT id::text AS id, format('%s + %s tokens at %s and %s are not %s', input, output, input_price,
            output_price, cost_micros) AS detail
        FROM ({_PRICED_ROWS}
        ) priced WHERE created_at >= {SINCE} AND ({_PRICED_OUT})""",
    ),
    Invariant(
        "charges",
        "A row's cost is the provider's exact figure, rounded half up.",
        f"""SELECT id::text AS id, format('%s USD are not %s', charged_usd, cost_micros) AS detail
        FROM (
            SELECT id, created_at, charged_usd, cost_micros FROM token_usage
            UNION ALL SELECT id, created_at, charged_usd, cost_micros FROM parked_usage
        ) charged
        WHERE created_at >= {SINCE} AND charged_usd IS NOT NULL AND round(charged_usd * 1000000) <> cost_micros""",
    ),
    Invariant(
        "corrections",
        "A correction is of a row, and no row is corrected below zero.",
        f"""SELECT c.usage_id::text AS id,
            CASE WHEN o.id IS NULL THEN 'is corrected, and is no row'
                ELSE format('comes to %s', o.cost_micros + c.micros) END AS detail
        FROM (
            SELECT usage_id, session_id, sum(delta_micros) AS micros FROM usage_corrections
            GROUP BY usage_id, session_id HAVING max(created_at) >= {SINCE}
        ) c LEFT JOIN ({_ORIGINALS}
        ) o ON o.id = c.usage_id
        -- The rows of a deleted session are gone, their corrections stay.
        WHERE (o.id IS NULL AND EXISTS (SELECT FROM sessions s WHERE s.id = c.session_id))
            OR o.cost_micros + c.micros < 0""",
    ),
    Invariant(
        "truths",
        "A row whose true cost is known comes to just that, with its corrections.",
        f"""SELECT t.usage_id::text AS id, format('comes to %s, truth %s', o.cost_micros + coalesce(c.micros, 0),
            t.truth_micros) AS detail
        FROM usage_truths t JOIN ({_ORIGINALS}
        ) o ON o.id = t.usage_id
        LEFT JOIN (SELECT usage_id, sum(delta_micros) AS micros FROM usage_corrections GROUP BY usage_id) c
            ON c.usage_id = t.usage_id
        WHERE t.created_at >= {SINCE} AND t.state IN ('equal', 'corrected')
            AND o.cost_micros + coalesce(c.micros, 0) <> t.truth_micros""",
    ),
    Invariant(
        "thresholds",
        "A threshold is announced once an arming, and counts as announced from then on.",
        f"""SELECT e.aggregate_id::text AS id, format('%s percent: %s events of arming %s, %s in all, %s armings, %s '
            'notified', e.threshold, e.events, coalesce(e.arming, '0'), e.of_all, b.armings,
            b.last_threshold_notified) AS detail
        FROM (
            SELECT aggregate_id, payload -> 'threshold' AS threshold, metadata -> 'arming' AS arming,
                count(*) AS events, sum(count(*)) OVER (PARTITION BY aggregate_id, payload -> 'threshold') AS of_all,
                max(created_at) AS last_at
            FROM outbox_events WHERE event_type = 'budget.threshold_crossed' GROUP BY 1, 2, 3
        ) e JOIN budgets b ON b.id = e.aggregate_id
        -- Events of other programs name no arming: of those only the number is known to be bounded.
        WHERE e.last_at >= {SINCE} AND (
            e.arming IS NOT NULL AND e.events > 1
            OR e.of_all > b.armings + 1
            OR e.arming > to_jsonb(b.armings)
            OR coalesce(e.arming, '0') = to_jsonb(b.armings) AND e.threshold > to_jsonb(b.last_threshold_notified))""",
    ),
    Invariant(
        "ends",
        "Every start has one end, in time and with its outcome; every row of ours is of a turn that began.",
        f"""SELECT s.turn_id::text AS id, 'has begun and not ended' AS detail FROM turn_starts s
        WHERE s.started_at >= {SINCE} AND s.ended_at IS NULL AND s.due_at + {RECOVERY} < now()
        UNION ALL
        SELECT s.turn_id::text, 'has ended without an outcome, or the other way round' FROM turn_starts s
        WHERE s.started_at >= {SINCE} AND (s.ended_at IS NULL) <> (s.outcome IS NULL)
        UNION ALL
        SELECT s.turn_id::text, 'says that its router was charged, and there is no row' FROM turn_starts s
        WHERE s.started_at >= {SINCE} AND s.router_outcome = 'charged' AND s.ended_at + {RECOVERY} < now()
            AND EXISTS (SELECT FROM sessions o WHERE o.id = s.session_id)
            AND NOT EXISTS (SELECT FROM token_usage t WHERE t.id = s.router_usage_id)
            AND NOT EXISTS (SELECT FROM parked_usage p WHERE p.id = s.router_usage_id)
        UNION ALL
        SELECT r.id::text, CASE WHEN s.turn_id IS NULL THEN 'is a row of a turn that never began'
            ELSE 'is the chat row of a turn that has not ended' END
        FROM (
            SELECT id, turn_id, created_at FROM token_usage WHERE turn_id IS NOT NULL
            UNION ALL SELECT id, turn_id, created_at FROM parked_usage
        ) r LEFT JOIN turn_starts s ON s.turn_id = r.turn_id
        -- A chat row is written with the turn's end, the router's may come before the start.
        WHERE r.created_at >= {SINCE} AND (r.id = r.turn_id AND s.ended_at IS NULL
            OR s.turn_id IS NULL AND r.created_at + {RECOVERY} < now())""",
    ),
    Invariant(
        "not-negative",
        "Nothing that is counted is below zero.",
        f"""SELECT id::text AS id, 'budget: spent or held' AS detail FROM budgets
        WHERE spent_micros < 0 OR held_micros < 0
        UNION ALL SELECT id::text, 'area: spent' FROM agent_areas WHERE spent_micros < 0
        UNION ALL SELECT id::text, 'row: tokens, cost, prices or latency' FROM token_usage
        WHERE created_at >= {SINCE} AND least(input_tokens, output_tokens, cost_micros, latency_ms,
            input_price_per_million_micros, output_price_per_million_micros, charged_usd) < 0
        UNION ALL SELECT id::text, 'parked row: cost' FROM parked_usage
        WHERE created_at >= {SINCE} AND least(cost_micros, charged_usd) < 0
        UNION ALL SELECT usage_id::text, 'correction: figure' FROM usage_corrections
        WHERE created_at >= {SINCE} AND figure_usd < 0
        UNION ALL SELECT turn_id::text, 'hold' FROM budget_holds
        WHERE least(chat_micros, router_micros, granted_micros, settled_micros) < 0""",
    ),
)
"""All of them; a database that is at this program's revision has everything they name."""
