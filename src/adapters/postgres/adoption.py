"""Taking over a database that the existing program made, by looking at what it holds.

What the baseline needs must be there. What later revisions add may be there already, exactly as they would add it;
those columns are remembered, since what someone else created is never dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    Column,
    Connection,
    DefaultClause,
    Enum,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.sql.elements import TextClause

from adapters.postgres.tables import BASELINE, metadata, revision_of, revision_of_table

ADOPTION_TABLE: Final = "brabo_api_adoption"
"""Exists on adopted databases only: the columns of later revisions that were there before us."""

_TABLES: Final = sorted(metadata.tables)
_WRITTEN_BY_TURNS: Final = ("outbox_events", "token_usage")
_NEVER_NULL_FOR_TURNS: Final = {
    "agent_areas": {"project_id", "key", "spent_micros"},
    "budgets": {"limit_micros", "spent_micros", "policy", "last_threshold_notified"},
    "model_bindings": {"scope", "scope_id", "model_id"},
    "models": {
        "provider",
        "name",
        "input_price_per_million_micros",
        "output_price_per_million_micros",
        "supports_tool_calling",
        "availability",
    },
    "outbox_events": {"aggregate_type", "aggregate_id", "event_type", "payload", "metadata"},
    "projects": {"workspace_id"},
    "sessions": {"project_id"},
    "token_usage": {
        "session_id",
        "actor_kind",
        "actor_id",
        "provider",
        "model_name",
        "input_tokens",
        "output_tokens",
        "estimated",
        "cost_micros",
        "input_price_per_million_micros",
        "output_price_per_million_micros",
        "latency_ms",
        "created_at",
    },
    "user_credentials": {
        "user_id",
        "provider",
        "wrapped_dek",
        "dek_iv",
        "dek_auth_tag",
        "encrypted_api_key",
        "api_key_iv",
        "api_key_auth_tag",
    },
    "workspaces": {"created_by"},
}
"""Columns of the baseline that a turn reads or writes: a null there is a turn refused, or a sum that never moves."""
_SAME_AS_TEXT: Final = {"character varying": "text", "character varying[]": "text[]"}

_READ_COLUMNS: Final = text(
    """
    SELECT c.relname, a.attname, a.attnotnull AS not_null,
           -- A shorter text will do, a rounded number will not.
           format_type(a.atttypid, CASE a.atttypid WHEN 'numeric'::regtype THEN a.atttypmod END) AS type,
           pg_get_expr(d.adbin, d.adrelid) AS default,
           d.adbin IS NOT NULL OR a.attidentity <> '' AS filled_by_server,
           ARRAY(SELECT enumlabel::text FROM pg_enum WHERE enumtypid = a.atttypid) AS labels
    FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relname = ANY (:tables) AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
    """
)

# Keys that ON CONFLICT can use: whole, valid, checked at once, on plain columns.
_READ_KEYS: Final = text(
    """
    SELECT c.relname,
           ARRAY(SELECT a.attname::text FROM pg_attribute a
                 WHERE a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) AS columns
    FROM pg_class c
    JOIN pg_index i ON i.indrelid = c.oid
    WHERE c.relname = ANY (:tables) AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)
      AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
    """
)


_MORE_THAN_COLUMNS: Final = frozenset({"py0004"})
"""Revisions that bring triggers and first entries too: that their columns are there does not say that those are."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a database holds of our tables, whoever made it."""

    any_table: bool
    """Whether it holds one of the baseline's tables at all."""
    there_already: frozenset[tuple[str, str]]
    """Table and column of what revisions after the baseline add and is there."""
    problems: tuple[str, ...]
    """What is missing or wrong, each named in a sentence; empty when the database can be used."""

    def stamp(self, revisions: Sequence[str]) -> str:
        """The newest of `revisions` (oldest first) up to which nothing has to be added."""
        newest = BASELINE
        for revision in revisions[1:]:
            if revision in _MORE_THAN_COLUMNS or not all(
                (column.table.name, column.name) in self.there_already for column in _added_by(revision)
            ):
                break
            newest = revision
        return newest


@dataclass(frozen=True, slots=True)
class _Found:
    type: str
    not_null: bool
    default: str | None
    filled_by_server: bool
    labels: frozenset[str]


def examine(connection: Connection) -> Findings:
    """Compare the database with our tables. Reads the catalogue only, and takes no lock on a table."""
    found: dict[str, dict[str, _Found]] = {}
    for row in connection.execute(_READ_COLUMNS, {"tables": _TABLES}):
        type_name = str(_SAME_AS_TEXT.get(row.type, row.type))
        found.setdefault(row.relname, {})[row.attname] = _Found(
            type_name, row.not_null, row.default, row.filled_by_server, frozenset(row.labels)
        )
    keys = {
        (row.relname, frozenset(row.columns)) for row in connection.execute(_READ_KEYS, {"tables": _TABLES})
    }

    there_already: set[tuple[str, str]] = set()
    problems: list[str] = []
    for name in _TABLES:
        table = metadata.tables[name]
        came_with = revision_of_table(table)
        if name not in found:
            if came_with == BASELINE:
                problems.append(f"table {name} is missing")
            continue
        columns = found[name]
        for column in table.columns:
            if column.name in columns:
                wanted_type = column.type.compile(dialect=connection.dialect).lower()
                problems += _differences(column, wanted_type, columns[column.name])
                if revision_of(column) != BASELINE:
                    there_already.add((name, column.name))
            elif revision_of(column) == came_with:
                problems.append(f"column {column} is missing")
        problems += _missing_keys(table, keys, columns)
        if name in _WRITTEN_BY_TURNS:
            problems += [
                f"column {name}.{other} is NOT NULL without a default, and this program does not know it"
                for other, theirs in sorted(columns.items())
                if other not in table.columns and theirs.not_null and not theirs.filled_by_server
            ]
    any_table = any(revision_of_table(metadata.tables[name]) == BASELINE for name in found)
    return Findings(any_table, frozenset(there_already), tuple(problems))


def remember(connection: Connection, there_already: frozenset[tuple[str, str]]) -> None:
    """Mark the database as adopted, and those of these columns that stand in its own tables as not ours to drop."""
    connection.execute(
        text(
            f"""
            CREATE TABLE IF NOT EXISTS {ADOPTION_TABLE} (
                table_name text, column_name text, PRIMARY KEY (table_name, column_name)
            )
            """
        )
    )
    for table_name, column_name in sorted(there_already):
        if revision_of_table(metadata.tables[table_name]) != BASELINE:
            continue  # a table of ours is ours, whenever it came
        connection.execute(
            text(f"INSERT INTO {ADOPTION_TABLE} VALUES (:table_name, :column_name) ON CONFLICT DO NOTHING"),  # noqa: S608 - a constant
            {"table_name": table_name, "column_name": column_name},
        )


def _added_by(revision: str) -> list[Column[object]]:
    return [
        column
        for table in metadata.tables.values()
        for column in table.columns
        if revision_of(column) == revision
    ]


def _differences(column: Column[object], wanted_type: str, found: _Found) -> list[str]:
    differences: list[str] = []
    if found.type != wanted_type:
        return [f"column {column} is {found.type}, not {wanted_type}"]
    if isinstance(column.type, Enum):
        missing = [label for label in column.type.enums if label not in found.labels]
        if missing:
            differences.append(f"enum {wanted_type} lacks {', '.join(missing)} (column {column})")
    if column.nullable and found.not_null:
        differences.append(f"column {column} is NOT NULL and must allow null")
    is_of_baseline = revision_of(column) == BASELINE
    may_be_null = column.nullable or (
        is_of_baseline and column.name not in _NEVER_NULL_FOR_TURNS.get(column.table.name, ())
    )
    if not may_be_null and not found.not_null:
        differences.append(f"column {column} allows null and must be NOT NULL")
    if is_of_baseline:
        # Any default will do: gen_random_uuid() and uuid_generate_v4() serve alike.
        if column.server_default is not None and found.not_null and not found.filled_by_server:
            differences.append(f"column {column} has no default")
        return differences
    wanted_default = _default_of(column)
    if found.default != wanted_default:
        differences.append(f"column {column} has {_worded(found.default)}, not {_worded(wanted_default)}")
    return differences


def _missing_keys(
    table: Table, keys: set[tuple[str, frozenset[str]]], columns: dict[str, _Found]
) -> list[str]:
    missing: list[str] = []
    for constraint in table.constraints:
        if not isinstance(constraint, PrimaryKeyConstraint | UniqueConstraint):
            continue
        names = [column.name for column in constraint.columns]
        if (table.name, frozenset(names)) not in keys and all(name in columns for name in names):
            missing.append(f"table {table.name} has no unique key over ({', '.join(names)})")
    return sorted(missing)


def _default_of(column: Column[object]) -> str | None:
    if column.server_default is None:
        return None
    assert isinstance(column.server_default, DefaultClause)
    assert isinstance(column.server_default.arg, TextClause)
    return column.server_default.arg.text


def _worded(default: str | None) -> str:
    return "no default" if default is None else f"default {default}"
