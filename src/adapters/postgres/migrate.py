"""Bringing a database to the revision this program needs, and back.

Everything happens on one connection that holds an advisory lock, so any number of processes may start at once. No
revision waits long for a lock on a table, since those who come after would wait behind it: it gives up and tries again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from adapters.postgres.adoption import ADOPTION_TABLE, examine, remember
from adapters.postgres.one_command import engine_of
from adapters.postgres.pool import conninfo_of
from adapters.postgres.tables import HEAD, READ_VERSION, VERSION_TABLE, metadata
from adapters.postgres.trouble import trouble_in

FIRST_OF_OURS: Final = "py0001"
"""The oldest revision that is not also the existing program's; an adopted database does not go below it."""

# Half of the 2 s within which a turn's settlement must be taken: it may queue behind us, and still be in time.
_LOCK_TIMEOUT_MS: Final = 1_000
_RETRY_DELAYS_S: Final = (0.5, 1, 2, 4, 8, 15, 15, 15, 15, 15, 15)
_WAIT_FOR_OTHERS_S: Final = 600
_ADVISORY_LOCK: Final = int.from_bytes(b"brabo-db")

Say = Callable[[str], None]


class MigrationError(Exception):
    """The database is not where it should be. The message says why and what to do, and holds no secret."""


class AdoptionRefused(MigrationError):  # noqa: N818 - it reads as what happened
    """A database made by another program does not fit; nothing was changed.

    `problems` names every object that is missing or wrong.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        listed = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(
            f"This database holds some of Brabo's tables and cannot be adopted:\n{listed}\n"
            "Nothing was changed. If it is a Brabo database, bring it to 0065 or later with the program that made "
            "it, and mend what is listed; otherwise name another database in DATABASE_URL."
        )


@dataclass(frozen=True, slots=True)
class MigrationState:
    """Where a database is. `current` is None before the first migration; `pending` lists oldest first."""

    current: str | None
    head: str
    adopted: bool
    pending: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What an upgrade did. `applied` lists the revisions that ran; `adopted` says that this run adopted."""

    before: str | None
    after: str
    applied: tuple[str, ...]
    adopted: bool


def _say_nothing(_: str) -> None:
    pass


def where(url: str) -> MigrationState:
    """Where the database is; changes nothing and waits for no one. Raises MigrationError."""
    with _connected(url) as connection:
        return _state(connection)


def require_current(url: str) -> None:
    """Raise MigrationError, with what to do, unless the database answers and is at HEAD. Changes nothing."""
    state = where(url)
    if state.pending:
        at = f"at {state.current}" if state.current else "not migrated"
        raise MigrationError(
            f"The database is {at} and lacks {', '.join(state.pending)}: run `brabo migrate`."
        )


def upgrade(url: str, say: Say = _say_nothing) -> MigrationReport:
    """Bring the database to HEAD, adopting it where another program made it. `say` is told each step.

    Raises AdoptionRefused, and MigrationError for everything else that can go wrong.
    """
    with _connected(url) as connection:
        _wait_for_our_turn(connection, say)
        before = _state(connection)
        adopted = False
        if before.pending and (before.current is None or before.adopted):
            adopted = _adopt(connection, before, say)
        pending = _state(connection).pending
        connection.rollback()
        if pending:
            _run(connection, command.upgrade, HEAD, say)
        return MigrationReport(before.current, HEAD, pending, adopted)


def downgrade(url: str, revision: str, say: Say = _say_nothing) -> None:
    """Go back to `revision`, or to `base`, which is before the first. Drops data with the columns and tables.

    Raises MigrationError, also where the database was adopted and `revision` is older than what we added.
    """
    revisions = _revisions()
    if revision != "base" and revision not in revisions:
        raise MigrationError(f"There is no revision {revision!r}; there are base, {', '.join(revisions)}.")
    with _connected(url) as connection:
        _wait_for_our_turn(connection, say)
        state = _state(connection)
        if state.current is None:
            raise MigrationError("This database was never migrated by this program: there is no way back.")
        position = -1 if revision == "base" else revisions.index(revision)
        if position > revisions.index(state.current):
            raise MigrationError(
                f"The database is at {state.current}, below {revision}: there is no way down to it."
            )
        if state.adopted and position < revisions.index(FIRST_OF_OURS):
            raise MigrationError(
                f"This database was made by another program and adopted: it cannot go below {FIRST_OF_OURS}, since "
                "what is older belongs to that program."
            )
        connection.rollback()
        _run(connection, command.downgrade, revision, say)


def _folder() -> Path:
    """The revisions: inside the package when installed from a wheel, else at the top of the checkout."""
    packaged = Path(__file__).with_name("migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "migrations"


def _revisions() -> list[str]:
    """All revisions, oldest first."""
    return [script.revision for script in ScriptDirectory(str(_folder())).walk_revisions()][::-1]


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    try:
        engine = engine_of(url)
    except ValueError as error:
        raise MigrationError(f"{error}.") from None
    try:
        with engine.connect() as connection:
            yield connection
    except DBAPIError as error:
        trouble = trouble_in(error.orig) if error.orig and error.statement is None else None
        if trouble:
            named = conninfo_to_dict(conninfo_of(url))
            address = f"{named.get('host', 'the local socket')}:{named.get('port', 5432)}"
            raise MigrationError(f"The database at {address} is not to be had, {trouble}.") from error
        raise MigrationError(f"PostgreSQL refused: {str(error.orig).strip()}") from error


def _wait_for_our_turn(connection: Connection, say: Say) -> None:
    """Take the lock that ends with the connection. Asks again and again: a waiting query would hold a snapshot."""
    give_up_at = time.monotonic() + _WAIT_FOR_OTHERS_S
    waiting = False
    while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _ADVISORY_LOCK}):
        connection.rollback()
        if time.monotonic() > give_up_at:
            raise MigrationError(
                f"Another migration of this database has been running for over {_WAIT_FOR_OTHERS_S} s: see the "
                "advisory lock in pg_locks, and end that session if it is stuck."
            )
        if not waiting:
            say("another process is migrating this database: waiting for it")
            waiting = True
        time.sleep(0.1)
    connection.execute(text(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}"))
    connection.commit()


def _state(connection: Connection) -> MigrationState:
    tables_there = text(
        "SELECT to_regclass(:version_table) IS NOT NULL, to_regclass(:adoption_table) IS NOT NULL"
    )
    versioned, adopted = connection.execute(
        tables_there, {"version_table": VERSION_TABLE, "adoption_table": ADOPTION_TABLE}
    ).one()
    current: str | None = connection.scalar(text(READ_VERSION)) if versioned else None
    revisions = _revisions()
    if current is not None and current not in revisions:
        raise MigrationError(
            f"The database is at {current}, which this program (up to {HEAD}) does not know: it was migrated by a "
            "newer one. Run that one."
        )
    done = 0 if current is None else revisions.index(current) + 1
    return MigrationState(current, HEAD, adopted, tuple(revisions[done:]))


def _adopt(connection: Connection, state: MigrationState, say: Say) -> bool:
    """Refuse a database that another program made, or remember what it holds. True when it is adopted just now."""
    findings = examine(connection)
    if not (findings.any_table or state.adopted):
        return False
    if findings.problems:
        raise AdoptionRefused(findings.problems)
    remember(connection, findings.there_already)
    if state.current is None:
        stamp = findings.stamp(_revisions())
        say(f"adopting an existing Brabo database at {stamp}")
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        context.stamp(ScriptDirectory(str(_folder())), stamp)
    connection.commit()
    return state.current is None


def _run(connection: Connection, step: Callable[[Config, str], None], revision: str, say: Say) -> None:
    """Run the revisions up or down to `revision`, one transaction each; those done stay done when it tries again."""

    def on_version_apply(*, step: Any, **_: Any) -> None:  # Any: alembic declares it so
        say(f"{'applying' if step.is_upgrade else 'taking back'} {step.up_revision_id}")

    config = Config()
    config.set_main_option("script_location", str(_folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(connection=connection, on_version_apply=on_version_apply)
    for delay_s in (*_RETRY_DELAYS_S, None):
        try:
            step(config, revision)
        except DBAPIError as error:
            connection.rollback()
            if not isinstance(error.orig, psycopg.errors.LockNotAvailable | psycopg.errors.DeadlockDetected):
                raise
            holders = _holders(connection)
            if delay_s is None:
                raise MigrationError(
                    f"The tables were in use at each of {len(_RETRY_DELAYS_S) + 1} attempts, in the end by {holders}. "
                    "Run this again when those transactions have ended, or end them; what was done stays done."
                ) from error
            say(f"the tables are in use by {holders}: trying again in {delay_s} s")
            time.sleep(delay_s)
        else:
            return


def _holders(connection: Connection) -> str:
    """Who holds locks on our tables, the longest first, in words. No query texts: they hold data."""
    rows = connection.execute(
        text(
            """
            SELECT a.pid, coalesce(nullif(a.application_name, ''), 'no application name'), coalesce(a.state, 'unknown'),
                   coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::int
            FROM pg_stat_activity a
            WHERE a.pid <> pg_backend_pid() AND a.pid IN (
                SELECT l.pid FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                WHERE l.granted AND c.relname = ANY (:tables) AND pg_table_is_visible(c.oid)
            )
            ORDER BY a.xact_start LIMIT 3
            """
        ),
        {"tables": sorted(metadata.tables)},
    ).all()
    connection.rollback()
    return ", ".join(
        f"session {pid} ({name}, {state}, for {age_s} s)" for pid, name, state, age_s in rows
    ) or ("sessions that have just ended")
