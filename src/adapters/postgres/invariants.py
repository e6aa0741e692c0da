"""What must hold in the books, as SQL that anyone can run: each statement gives the rows that break it."""

from dataclasses import dataclass
from typing import Final

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


def _marked(mark: str) -> str:
    """Everything whose mark names a counter."""
    return f"""SELECT counter_id, sum(micros) AS micros FROM (
            SELECT {mark} AS counter_id, cost_micros AS micros FROM token_usage
            UNION ALL SELECT {mark}, delta_micros FROM usage_corrections
            UNION ALL SELECT {mark}, cost_micros FROM parked_usage
        ) moves WHERE counter_id IS NOT NULL GROUP BY counter_id"""


_SUM: Final = "coalesce(o.opening_micros, 0) + coalesce(u.micros, 0) + coalesce(m.micros, 0)"
_SUM_DETAIL: Final = f"""format('counter %s, sum %s: opening %s, rows of other programs %s, ours %s', c.spent_micros,
            {_SUM}, coalesce(o.opening_micros::text, 'missing'), coalesce(u.micros, 0), coalesce(m.micros, 0))"""

_PRICED_OUT: Final = """
        CASE WHEN price_implicit THEN
            CASE WHEN input_tokens + output_tokens = 0 THEN input_price_per_million_micros <> 0
                    OR output_price_per_million_micros <> 0
                ELSE input_price_per_million_micros <> output_price_per_million_micros
                    OR abs(round((input_tokens::numeric + output_tokens) * input_price_per_million_micros / 1000000)
                        - cost_micros)
                    > CASE WHEN input_tokens::bigint + output_tokens <= 1000000 THEN 0
                        ELSE ceil((input_tokens::numeric + output_tokens) / 2000000) END END
        ELSE round(input_tokens::numeric * input_price_per_million_micros / 1000000)
            + round(output_tokens::numeric * output_price_per_million_micros / 1000000) <> cost_micros END"""

INVARIANTS: Final = (
    Invariant(
        "project-counters",
        "What a project's budget says was spent is its opening and all that moved it since.",
        f"""SELECT c.id::text AS id, {_SUM_DETAIL} AS detail
        FROM budgets c LEFT JOIN counter_openings o ON o.counter_id = c.id
        LEFT JOIN (
            SELECT s.project_id, sum(t.cost_micros) AS micros FROM token_usage t JOIN sessions s ON s.id = t.session_id
            WHERE t.turn_id IS NULL GROUP BY s.project_id
        ) u ON u.project_id = c.project_id
        LEFT JOIN ({_marked("moved_project_budget_id")}) m ON m.counter_id = c.id
        WHERE c.project_id IS NOT NULL AND (o.counter_id IS NULL OR c.spent_micros <> {_SUM})""",
    ),
    Invariant(
        "session-counters",
        "What a session's budget says was spent is its opening and all that moved it since.",
        f"""SELECT c.id::text AS id, {_SUM_DETAIL} AS detail
        FROM budgets c LEFT JOIN counter_openings o ON o.counter_id = c.id
        LEFT JOIN (
            SELECT session_id, sum(cost_micros) AS micros FROM token_usage WHERE turn_id IS NULL GROUP BY session_id
        ) u ON u.session_id = c.session_id
        LEFT JOIN ({_marked("moved_session_budget_id")}) m ON m.counter_id = c.id
        WHERE c.session_id IS NOT NULL AND (o.counter_id IS NULL OR c.spent_micros <> {_SUM})""",
    ),
    Invariant(
        "area-counters",
        "What an area says was spent is its opening and all that moved it since.",
        f"""SELECT c.id::text AS id, {_SUM_DETAIL} AS detail
        FROM agent_areas c LEFT JOIN counter_openings o ON o.counter_id = c.id
        LEFT JOIN (
            SELECT s.project_id, brabo_api_area_of(t.actor_id) AS key, sum(t.cost_micros) AS micros
            FROM token_usage t JOIN sessions s ON s.id = t.session_id
            WHERE t.turn_id IS NULL AND t.actor_kind = 'agent' GROUP BY 1, 2
        ) u ON u.project_id = c.project_id AND u.key = c.key
        LEFT JOIN ({_marked("moved_area_id")}) m ON m.counter_id = c.id
        WHERE o.counter_id IS NULL OR c.spent_micros <> {_SUM}""",
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
        "A turn that has ended holds nothing but what nobody knows the cost of.",
        """SELECT h.turn_id::text AS id, format('still open in budget %s', h.budget_id) AS detail
        FROM budget_holds h JOIN turn_starts s ON s.turn_id = h.turn_id
        WHERE s.ended_at IS NOT NULL AND h.state = 'open'""",
    ),
    Invariant(
        "prices",
        "Tokens times the row's own prices are its cost.",
        f"""SELECT id::text AS id, format('%s + %s tokens at %s and %s are not %s', input_tokens, output_tokens,
            input_price_per_million_micros, output_price_per_million_micros, cost_micros) AS detail
        FROM token_usage WHERE created_at >= {SINCE} AND ({_PRICED_OUT})""",
    ),
    Invariant(
        "charges",
        "A row's cost is the provider's exact figure, rounded half up.",
        f"""SELECT id::text AS id, format('%s USD are not %s', charged_usd, cost_micros) AS detail
        FROM token_usage
        WHERE created_at >= {SINCE} AND charged_usd IS NOT NULL AND round(charged_usd * 1000000) <> cost_micros""",
    ),
    Invariant(
        "corrections",
        "A correction is of a row of ours or a parked one, and no row is corrected below zero.",
        f"""SELECT c.usage_id::text AS id,
            CASE WHEN o.id IS NULL THEN 'corrects no row' ELSE format('comes to %s', o.cost_micros + c.micros) END
                AS detail
        FROM (
            SELECT usage_id, session_id, sum(delta_micros) AS micros FROM usage_corrections
            WHERE created_at >= {SINCE} GROUP BY usage_id, session_id
        ) c LEFT JOIN (
            SELECT id, cost_micros FROM token_usage UNION ALL SELECT id, cost_micros FROM parked_usage
        ) o ON o.id = c.usage_id
        WHERE (o.id IS NULL AND EXISTS (SELECT FROM sessions s WHERE s.id = c.session_id))
            OR o.cost_micros + c.micros < 0""",
    ),
    Invariant(
        "truths",
        "A row whose true cost is known comes to just that, with its corrections.",
        f"""SELECT t.usage_id::text AS id, format('comes to %s, truth %s', o.cost_micros + coalesce(c.micros, 0),
            t.truth_micros) AS detail
        FROM usage_truths t
        JOIN (SELECT id, cost_micros FROM token_usage UNION ALL SELECT id, cost_micros FROM parked_usage) o
            ON o.id = t.usage_id
        LEFT JOIN (SELECT usage_id, sum(delta_micros) AS micros FROM usage_corrections GROUP BY usage_id) c
            ON c.usage_id = t.usage_id
        WHERE t.created_at >= {SINCE} AND t.state IN ('equal', 'corrected')
            AND o.cost_micros + coalesce(c.micros, 0) <> t.truth_micros""",
    ),
    Invariant(
        "thresholds",
        "A threshold is announced once an arming, and counts as announced from then on.",
        f"""SELECT e.aggregate_id::text AS id, format('%s percent: %s events of arming %s', e.threshold, e.events,
            e.arming) AS detail
        FROM (
            SELECT aggregate_id, (payload ->> 'threshold')::int AS threshold,
                coalesce((metadata ->> 'arming')::int, 0) AS arming, count(*) AS events, max(created_at) AS last_at
            FROM outbox_events WHERE event_type = 'budget.threshold_crossed' GROUP BY 1, 2, 3
        ) e JOIN budgets b ON b.id = e.aggregate_id
        WHERE e.last_at >= {SINCE}
            AND (e.events > 1 OR (e.arming = b.armings AND e.threshold > b.last_threshold_notified))""",
    ),
    Invariant(
        "ends",
        "Every start has one end, in time and with its outcome; every row of ours is of a turn that began.",
        f"""SELECT s.turn_id::text AS id, 'has begun and not ended' AS detail FROM turn_starts s
        WHERE s.started_at >= {SINCE} AND s.ended_at IS NULL AND s.due_at + {RECOVERY} < now()
        UNION ALL
        SELECT s.turn_id::text, 'ended without an outcome, or the other way round' FROM turn_starts s
        WHERE s.started_at >= {SINCE} AND (s.ended_at IS NULL) <> (s.outcome IS NULL)
        UNION ALL
        SELECT t.id::text, 'is a row of a turn that never began' FROM token_usage t
        WHERE t.created_at >= {SINCE} AND t.turn_id IS NOT NULL AND t.created_at + {RECOVERY} < now()
            AND NOT EXISTS (SELECT FROM turn_starts s WHERE s.turn_id = t.turn_id)
        UNION ALL
        SELECT t.id::text, 'is the chat row of a turn that has not ended' FROM token_usage t
        JOIN turn_starts s ON s.turn_id = t.turn_id
        WHERE t.created_at >= {SINCE} AND t.id = t.turn_id AND s.ended_at IS NULL""",
    ),
    Invariant(
        "not-negative",
        "Nothing that is counted is below zero.",
        f"""SELECT id::text AS id, 'budget: spent or held' AS detail FROM budgets
        WHERE spent_micros < 0 OR held_micros < 0
        UNION ALL SELECT id::text, 'area: spent' FROM agent_areas WHERE spent_micros < 0
        UNION ALL SELECT id::text, 'row: tokens, cost, prices or latency' FROM token_usage
        WHERE created_at >= {SINCE} AND least(input_tokens, output_tokens, cost_micros, latency_ms,
            input_price_per_million_micros, output_price_per_million_micros, coalesce(charged_usd, 0)) < 0
        UNION ALL SELECT turn_id::text, 'hold' FROM budget_holds
        WHERE least(chat_micros, router_micros, granted_micros, settled_micros) < 0""",
    ),
)
"""All of them; a database that is at this program's revision has everything they name."""
