"""What a database consists of, as comparable lines."""

import psycopg

_LINES = """
    SELECT 'column ' || table_name || '.' || column_name || ' ' || udt_name || ' ' || is_nullable || ' '
           || coalesce(column_default, '-')
    FROM information_schema.columns WHERE table_schema = current_schema()
  UNION ALL
    SELECT 'constraint ' || c.relname || ' ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
    FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
    WHERE k.connamespace = current_schema()::regnamespace AND k.contype NOT IN ('n', 't')
  UNION ALL
    SELECT 'index ' || replace(indexdef, ' ON ' || schemaname || '.', ' ON ')
    FROM pg_indexes WHERE schemaname = current_schema()
  UNION ALL
    SELECT 'enum ' || t.typname || ' ' || string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder)
    FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
    WHERE t.typnamespace = current_schema()::regnamespace GROUP BY t.typname
  UNION ALL
    SELECT 'trigger ' || pg_get_triggerdef(t.oid, true) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = current_schema()::regnamespace AND NOT t.tgisinternal
  UNION ALL
    SELECT 'storage ' || relname || ' ' || reloptions::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL
"""


def dump_schema(database_url: str) -> set[str]:
    """One line for each column, constraint, index, enum, trigger and storage option.

    The version table is left out. So are the NOT NULL constraints that PostgreSQL 18 names, and constraint triggers:
    the columns and the triggers say it.
    """
    with psycopg.connect(database_url) as connection:
        lines = {line for (line,) in connection.execute(_LINES)}
    return {line for line in lines if "brabo_api_version" not in line}
