"""Runs the revisions on the connection that `adapters.postgres.migrate` hands over, one transaction each."""

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection

from adapters.postgres.tables import VERSION_TABLE

connection = context.config.attributes.get("connection")
if not isinstance(connection, Connection):
    raise CommandError(
        "Run `brabo migrate`: it takes the lock and adopts existing databases, alembic alone does not."
    )

context.configure(
    connection=connection,
    version_table=VERSION_TABLE,
    transaction_per_migration=True,
    on_version_apply=context.config.attributes["on_version_apply"],
)
with context.begin_transaction():
    context.run_migrations()
