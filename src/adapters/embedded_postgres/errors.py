class EmbeddedPostgresError(Exception):
    """PostgreSQL of our own cannot be used; the message says why and what to do, and holds no secret."""
