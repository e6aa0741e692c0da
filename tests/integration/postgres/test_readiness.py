"""What `readyz` says of a database that restarted, and of one that is not to be had."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from urllib.parse import SplitResult, urlsplit

import psycopg
import pytest

from adapters.postgres.pool import PATIENCE_S, Pool, fetch_row, read_pool
from adapters.postgres.readiness import database_is_ready

PASSWORD = "s3cr3t-pw"


async def test_connections_that_the_server_closed_while_they_lay_idle_make_it_no_less_ready(
    database_url: str,
) -> None:
    async with read_pool(database_url) as pool:
        await pool.wait()
        with psycopg.connect(database_url, autocommit=True) as operator:
            ended = operator.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchall()
        readiness = await database_is_ready(pool)

    assert len(ended) == pool.max_size
    assert all(row == (True,) for row in ended)
    assert readiness.is_ready, readiness.reason


def with_netloc(user: str, port: int | None) -> Callable[[SplitResult], SplitResult]:
    return lambda url: url._replace(netloc=f"{user}:{PASSWORD}@{url.hostname}:{port or url.port}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_netloc("brabo", 1), "connection refused: start the server"),
        (with_netloc("someone-unknown", None), "the database refused the password: correct"),
        (lambda url: url._replace(path="/no-such-database"), "the server has no such database: create it"),
        (lambda url: url._replace(query="sslmode=require"), "no connection over TLS"),
        (lambda url: url._replace(netloc=f"u:{PASSWORD}@no-such-host.invalid"), "the host has no address"),
    ],
    ids=["refused", "password", "database", "tls", "host"],
)
async def test_the_reason_is_said_in_words_of_ours(
    database_url: str, change: Callable[[SplitResult], SplitResult], reason: str
) -> None:
    url = change(urlsplit(database_url))
    async with read_pool(url.geturl()) as pool:
        readiness = await database_is_ready(pool, patience_s=0.5)

    assert not readiness.is_ready
    assert readiness.reason.startswith(reason)
    for secret in (PASSWORD, str(url.hostname), str(url.port), str(url.username), url.path[1:]):
        assert secret not in readiness.reason


async def test_a_pool_without_a_free_connection_is_told_from_a_database_out_of_reach(
    database_url: str,
) -> None:
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(read_pool(database_url))
        for _ in range(pool.max_size):
            await stack.enter_async_context(pool.connection())
        readiness = await database_is_ready(pool, patience_s=0.3)

    assert not readiness.is_ready
    assert readiness.reason.startswith("no connection of the pool was free within 0.3 s")


async def test_a_reason_does_not_outlive_its_cause(database_url: str) -> None:
    url = urlsplit(database_url)
    async with read_pool(url._replace(netloc=f"brabo:{PASSWORD}@127.0.0.1:1").geturl()) as pool:
        await database_is_ready(pool, patience_s=0.3)
        assert pool.refusal is not None
        pool.conninfo = database_url
        assert await answers(pool)

    assert pool.refusal is None


async def answers(pool: Pool) -> bool:
    deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
    return await fetch_row(pool, b"SELECT true", None, deadline_s=deadline_s) == (True,)
