"""`brabo report spend`, on a real database."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from domain.usage import TokenCounts, TokenUsage, implicit_cost
from tests.support.brabo import environment, run, run_process
from tests.support.brabo_data import create_project, create_session, create_world, insert
from tests.support.ledger_worlds import postgres_world, row_of, usage_of

DECISIONS = 10_000
WRITTEN_TOGETHER = 500


@pytest.fixture
def environ(database_url: str, tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "data", DATABASE_URL=database_url)


def add_row(database_url: str, session_id: object, cost_micros: int, **columns: object) -> None:
    values: dict[str, object] = {
        "actor_kind": "agent",
        "actor_id": "dev-api",
        "provider": "openrouter",
        "model_name": "maker/model",
        "input_tokens": 1,
        "output_tokens": 1,
        "latency_ms": 1,
        **columns,
    }
    with psycopg.connect(database_url) as connection:
        insert(connection, "token_usage", session_id=session_id, cost_micros=cost_micros, **values)


def report(environ: dict[str, str], *options: str) -> Any:
    ran = run(["report", "spend", "--json", *options], environ)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


async def test_ten_thousand_decisions_add_up_exactly(database_url: str, environ: dict[str, str]) -> None:
    """Each is less than half a micro-USD, so that no counter in micro-USD sees any of them."""
    cost = implicit_cost(TokenCounts(1, 0), Decimal("0.00000042"))

    async with postgres_world(database_url) as world:

        def decision() -> TokenUsage:
            return usage_of(world, cost=cost, model_name="typesafe/jev-1.13", created_at=datetime.now(UTC))

        for _ in range(DECISIONS // WRITTEN_TOGETHER):
            written = await asyncio.gather(
                *(world.recorder.record(row_of(decision())) for _ in range(WRITTEN_TOGETHER))
            )
            assert all(written)
    found = await asyncio.to_thread(run_process, ["report", "spend", "--json", "--days", "2"], environ)

    assert found.returncode == 0, found.stderr
    said = json.loads(found.stdout)
    assert said["total"] == {"calls": DECISIONS, "usd": "0.0042"}
    assert said["models"] == [{"provider": "openrouter", "model": "typesafe/jev-1.13", **said["total"]}]
    assert said["actors"] == [{"actorKind": "agent", "actorId": "escriba", **said["total"]}]
    assert sum(Decimal(day["usd"]) for day in said["days"]) == Decimal("0.0042")


def test_the_table_says_the_same_as_the_document(database_url: str, environ: dict[str, str]) -> None:
    world = create_world(database_url)
    today = datetime.now(UTC)
    add_row(database_url, world.session_id, 12_500_000, created_at=today)
    add_row(
        database_url,
        world.session_id,
        0,
        created_at=today - timedelta(days=2),
        charged_usd=Decimal("4.2E-7"),
        model_name="typesafe/jev-1.13",
        actor_id="bel\x1b[31m\nl",
    )
    days = [(today - timedelta(days=ago)).date().isoformat() for ago in (2, 1, 0)]

    table = run(["report", "spend", "--days", "3"], environ)
    document = report(environ, "--days", "3")

    assert table.returncode == 0
    assert table.stdout.splitlines() == [
        "day (UTC)   calls  USD",
        f"{days[0]}      1   0.00000042",
        f"{days[1]}      0   0",
        f"{days[2]}      1  12.5",
        "total           2  12.50000042",
        "",
        "model                         calls  USD",
        "openrouter maker/model            1  12.5",
        "openrouter typesafe/jev-1.13      1   0.00000042",
        "",
        "actor                 calls  USD",
        "agent dev-api             1  12.5",
        "agent bel\\x1b[31m\\nl      1   0.00000042",
    ]
    assert document == {
        "from": days[0],
        "to": days[2],
        "total": {"calls": 2, "usd": "12.50000042"},
        "days": [
            {"day": days[0], "calls": 1, "usd": "0.00000042"},
            {"day": days[1], "calls": 0, "usd": "0"},
            {"day": days[2], "calls": 1, "usd": "12.5"},
        ],
        "models": [
            {"provider": "openrouter", "model": "maker/model", "calls": 1, "usd": "12.5"},
            {"provider": "openrouter", "model": "typesafe/jev-1.13", "calls": 1, "usd": "0.00000042"},
        ],
        "actors": [
            {"actorKind": "agent", "actorId": "dev-api", "calls": 1, "usd": "12.5"},
            {"actorKind": "agent", "actorId": "bel\x1b[31m\nl", "calls": 1, "usd": "0.00000042"},
        ],
    }


def test_without_a_row_every_day_is_there_and_says_nothing(environ: dict[str, str]) -> None:
    said = report(environ)
    table = run(["report", "spend", "--days", "1"], environ)

    assert len(said["days"]) == 30
    assert said["days"][-1]["day"] == said["to"]
    assert {(day["calls"], day["usd"]) for day in said["days"]} == {(0, "0")}
    assert (said["total"], said["models"], said["actors"]) == ({"calls": 0, "usd": "0"}, [], [])
    assert [line.split() for line in table.stdout.splitlines()[1:]] == [
        [said["to"], "0", "0"],
        ["total", "0", "0"],
    ]


def test_a_workspace_by_id_or_slug_a_project_or_all(database_url: str, environ: dict[str, str]) -> None:
    here, there = create_world(database_url), create_world(database_url)
    with psycopg.connect(database_url) as connection:
        project = create_project(connection, here.workspace_id, here.user_id)
        session = create_session(connection, project, here.user_id)
        row = connection.execute("SELECT slug FROM workspaces WHERE id = %s", (here.workspace_id,)).fetchone()
    assert row is not None
    for session_id, micros in ((here.session_id, 1), (session, 10), (there.session_id, 100)):
        add_row(database_url, session_id, micros)

    totals = [
        report(environ, *options)["total"]["usd"]
        for options in (
            (),
            ("--workspace", str(here.workspace_id)),
            ("--workspace", f" {row[0]} "),
            ("--project", str(here.project_id).upper()),
            ("--project", str(project)),
        )
    ]

    assert totals == ["0.000111", "0.000011", "0.000011", "0.000001", "0.00001"]


def test_the_days_are_those_of_utc_whatever_the_zone_of_the_database_is(
    database_url: str, environ: dict[str, str]
) -> None:
    world = create_world(database_url)
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    add_row(database_url, world.session_id, 1, created_at=midnight)
    add_row(database_url, world.session_id, 10, created_at=midnight - timedelta(microseconds=1))
    with psycopg.connect(database_url, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET timezone = 'Asia/Tokyo'").format(name))

    one, two = report(environ, "--days", "1"), report(environ, "--days", "2")

    assert [day["usd"] for day in one["days"]] == ["0.000001"]
    assert [day["usd"] for day in two["days"]] == ["0.00001", "0.000001"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workspace", "nothing"), "no workspace with the id or slug 'nothing'"),
        (("--workspace", ""), "no workspace with the id or slug ''"),
        (("--project", "11111111-1111-4111-8111-111111111111"), "no project with the id 11111111"),
    ],
)
def test_who_is_unknown_is_named(
    environ: dict[str, str], options: tuple[str, ...], said: str, database_url: str
) -> None:
    create_world(database_url)
    ran = run(["report", "spend", *options], environ)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in ran.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--days", "0"),
        ("--days", "181"),
        ("--days", "-1"),
        ("--days", "1.5"),
        ("--days", "٣"),
        ("--project", "main"),
        ("--project", "11111111-1111-4111-8111-111111111111", "--workspace", "main"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(environ: dict[str, str], options: tuple[str, ...]) -> None:
    ran = run(["report", "spend", *options], environ)

    assert ran.returncode == 2
    assert "usage: brabo report spend" in ran.stderr


def test_without_a_report_the_usage_is_said(environ: dict[str, str]) -> None:
    ran = run(["report"], environ)

    assert ran.returncode == 2
    assert "usage: brabo report" in ran.stderr


def test_a_database_that_is_not_current_or_not_there_is_said(
    environ: dict[str, str], empty_database_url: str
) -> None:
    empty = run(["report", "spend"], {**environ, "DATABASE_URL": empty_database_url})
    away = run(["report", "spend"], {**environ, "DATABASE_URL": "postgresql://u:hush-hush@127.0.0.1:1/x"})

    assert (empty.returncode, away.returncode) == (1, 1)
    assert "run `brabo migrate`" in empty.stderr
    assert "connection refused" in away.stderr.lower()
    assert "hush-hush" not in away.stderr
