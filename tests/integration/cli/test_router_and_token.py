"""`brabo router` and `brabo token`, on a real database."""

import re
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
import pytest

from adapters.security.user_token import Ed25519UserTokens
from adapters.system.clock import SystemClock
from application.ports.users import User
from domain.secret import Secret
from tests.support.brabo import environment, run, run_process
from tests.support.brabo_data import World, create_world, insert

JWT_SECRET = "jwt-secret-of-the-tests"


@pytest.fixture
def world(database_url: str) -> World:
    return create_world(database_url)


@pytest.fixture
def environ(database_url: str, tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "data", DATABASE_URL=database_url, AUTH_JWT_SECRET=JWT_SECRET)


def router(database_url: str, world: World) -> tuple[str, bool]:
    """The workspace's slug, and whether its router is on."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT slug, tool_router_enabled FROM workspaces WHERE id = %s", (world.workspace_id,)
        ).fetchone()
    assert row is not None
    return row


def switches(database_url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database_url) as connection:
        return connection.execute(
            "SELECT workspace_id, by_user_id, was_enabled, is_enabled FROM brabo_api_router_switches"
            " ORDER BY created_at"
        ).fetchall()


def test_the_router_is_switched_by_slug_and_by_id_and_each_change_recorded(
    environ: dict[str, str], world: World, database_url: str
) -> None:
    slug, was_on = router(database_url, world)
    off = run_process(["router", "off", "--workspace", slug], environ)
    after_off = router(database_url, world)[1]
    again = run(["router", "off", "--workspace", slug], environ)
    on = run(["router", "on", "--workspace", str(world.workspace_id).upper()], environ)

    assert [ran.returncode for ran in (off, again, on)] == [0, 0, 0], off.stderr + again.stderr + on.stderr
    assert off.stdout == again.stdout == f"workspace {slug}: the tool router is off\n"
    assert on.stdout == f"workspace {slug}: the tool router is on\n"
    assert (was_on, after_off, router(database_url, world)[1]) == (True, False, True)
    assert switches(database_url) == [
        (world.workspace_id, None, True, False),
        (world.workspace_id, None, False, True),
    ]


def test_a_slug_can_look_like_an_id(environ: dict[str, str], world: World, database_url: str) -> None:
    slug = uuid4().hex
    with psycopg.connect(database_url) as connection:
        insert(connection, "workspaces", name="Odd", slug=slug, created_by=world.user_id)

    ran = run(["router", "off", "--workspace", slug], environ)

    assert (ran.returncode, ran.stdout) == (0, f"workspace {slug}: the tool router is off\n")
    assert router(database_url, world)[1] is True


@pytest.mark.parametrize("named", ["nothing", "", "11111111-1111-4111-8111-111111111111", "Workspace"])
def test_an_unknown_workspace_is_named(
    environ: dict[str, str], world: World, database_url: str, named: str
) -> None:
    ran = run(["router", "off", "--workspace", named], environ)

    assert ran.returncode == 1
    assert f"no workspace with the id or slug {named!r}" in ran.stderr
    assert switches(database_url) == []


@pytest.mark.parametrize(
    "arguments",
    [["router"], ["router", "off"], ["router", "maybe", "--workspace", "x"], ["token"], ["token", "--user", "ana"],
     ["token", "--user", "11111111-1111-4111-8111-111111111111", "--email", "ana@example.com"]],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_2(environ: dict[str, str], arguments: list[str]) -> None:
    ran = run(arguments, environ)

    assert ran.returncode == 2
    assert f"usage: brabo {arguments[0]}" in ran.stderr


@pytest.mark.parametrize("by", ["email", "user"])
def test_a_token_names_the_user_and_stands_alone_on_the_standard_output(
    environ: dict[str, str], world: World, by: str
) -> None:
    named = world.user_email.upper() if by == "email" else str(world.user_id)
    ran = run(["token", f"--{by}", named], environ)

    assert ran.returncode == 0, ran.stderr
    assert re.fullmatch(r"[\w-]+\.[\w-]+\.[\w-]+\n", ran.stdout)
    tokens = Ed25519UserTokens(Secret(JWT_SECRET), None, now=SystemClock().now)
    assert tokens.verify(ran.stdout.strip()) == User(world.user_id, world.user_email)
    assert ran.stderr == ""


@pytest.mark.parametrize("option", [["--email", "nobody@example.com"], ["--user", str(UUID(int=1))]])
def test_a_user_who_is_not_there_is_named(environ: dict[str, str], world: World, option: list[str]) -> None:
    ran = run(["token", *option], environ)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "there is no user" in ran.stderr
    assert option[1] in ran.stderr


@pytest.mark.parametrize("variable", ["BRABO_ENV", "NODE_ENV"])
def test_in_production_there_is_no_token(environ: dict[str, str], world: World, variable: str) -> None:
    ran = run(["token", "--user", str(world.user_id)], {**environ, variable: "production"})

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "In production no tokens" in ran.stderr


def test_without_a_secret_there_is_no_token(environ: dict[str, str], world: World) -> None:
    del environ["AUTH_JWT_SECRET"]
    ran = run(["token", "--user", str(world.user_id)], environ)

    assert (ran.returncode, ran.stdout) == (1, "")
    assert "AUTH_JWT_SECRET is missing" in ran.stderr


@pytest.mark.parametrize("command", [["router", "off", "--workspace", "main"], ["token", "--email", "a@b.c"]])
def test_a_database_that_is_not_current_or_not_there_is_said(
    environ: dict[str, str], empty_database_url: str, command: list[str]
) -> None:
    empty = run(command, {**environ, "DATABASE_URL": empty_database_url})
    away = run(command, {**environ, "DATABASE_URL": "postgresql://u:hush-hush@127.0.0.1:1/x"})

    assert (empty.returncode, away.returncode) == (1, 1)
    assert "not migrated" in empty.stderr
    assert "run `brabo migrate`" in empty.stderr
    assert away.stderr.startswith("brabo: ")
    assert "connection refused" in away.stderr.lower()
    assert "Traceback" not in away.stderr
    assert "hush-hush" not in away.stderr
