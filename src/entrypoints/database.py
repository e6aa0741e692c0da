"""The one place that knows which database a process works with."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from entrypoints.container import Container
from entrypoints.settings import Settings


@contextmanager
def open_database(settings: Settings, say: Callable[[str], None]) -> Iterator[Container]:
    """The parts of this process, with its database: that of DATABASE_URL, or the embedded one, joined meanwhile.

    `say` is told what takes time. Nothing is migrated. Raises EmbeddedPostgresError; a server named by DATABASE_URL
    is not asked for.
    """
    container = Container(settings=settings)
    if settings.database_url is not None:
        container.database_url.override(settings.database_url.reveal())
        yield container
        return
    with container.embedded_postgres(say=say).join(settings.data_dir) as membership:
        container.database_url.override(membership.url)
        yield container


def shown(database_url: str) -> str:
    """The database's address without password and parameters."""
    try:
        parts = urlsplit(database_url)
        host, port = parts.hostname or "localhost", parts.port or 5432
    except ValueError:
        return "the address in DATABASE_URL"
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}{f'[{host}]' if ':' in host else host}:{port}{parts.path}"
