"""Whether the database can serve turns, for `/readyz`."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import psycopg
import psycopg_pool

from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row_from_the_living
from adapters.postgres.tables import HEAD, READ_VERSION
from adapters.postgres.trouble import trouble_in


@dataclass(frozen=True, slots=True)
class DatabaseReadiness:
    """`reason` says what is missing and what to do, and holds no secret; empty when the database is ready."""

    is_ready: bool
    reason: str = ""


_READ_VERSION: Final = READ_VERSION.encode()


async def database_is_ready(pool: Pool, *, patience_s: float = PATIENCE_S) -> DatabaseReadiness:
    """Whether the database answers, and is at the revision this program needs. Answers within `patience_s`."""
    deadline_s = asyncio.get_running_loop().time() + patience_s
    try:
        row = await fetch_row_from_the_living(pool, _READ_VERSION, None, deadline_s=deadline_s)
    except psycopg.errors.UndefinedTable:
        return DatabaseReadiness(False, "the database was never migrated: run `brabo migrate`")
    except psycopg.Error as error:
        return DatabaseReadiness(False, _why(pool, error, patience_s))
    if row is None:
        return DatabaseReadiness(False, "the database was never migrated: run `brabo migrate`")
    if not _has_ours(str(row[0])):
        return DatabaseReadiness(
            False, f"the database is at revision {row[0]}, not at {HEAD}: run `brabo migrate`"
        )
    return DatabaseReadiness(True)


def _has_ours(revision: str) -> bool:
    """Whether a database at this revision has all that this program needs: at HEAD, or at a later one of ours.

    Later ones only add. Processes of the version before go on while those of the next take their place.
    """
    ours = re.compile(r"py(\d{4})")
    theirs, needed = ours.fullmatch(revision), ours.fullmatch(HEAD)
    return theirs is not None and needed is not None and int(theirs[1]) >= int(needed[1])


def _why(pool: Pool, error: psycopg.Error, patience_s: float) -> str:
    """Short, and with nothing in it that the server said: everybody may ask."""
    if isinstance(error, psycopg_pool.PoolTimeout):
        if pool.refusal is None:
            return f"no connection of the pool was free within {patience_s:g} s: too many turns, or a slow database"
        if trouble := trouble_in(pool.refusal):
            return str(trouble)
    return f"the database did not answer within {patience_s:g} s ({type(error).__name__}): check DATABASE_URL"
