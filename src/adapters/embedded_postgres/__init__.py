"""The PostgreSQL server that a newcomer does not have: found, started, shared and stopped by us."""

from adapters.embedded_postgres.binaries import PostgresBinaries, find_binaries
from adapters.embedded_postgres.embedded import EmbeddedPostgres, Membership
from adapters.embedded_postgres.errors import EmbeddedPostgresError

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError", "Membership", "PostgresBinaries", "find_binaries"]
