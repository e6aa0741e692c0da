"""The owners' switch over HTTP: who may, what it answers, and that every process knows at once."""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
import structlog

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_member
from tests.support.database_proxy import DatabaseProxy, free_port
from tests.support.engine import http_client, request_body, take_turn
from tests.support.live import HEADERS, SERVICE_TOKEN, LiveApi, environment, live_api
from tests.support.owners import add_user, assert_problem, bearer
from tests.support.recordings import RECORDINGS
from tests.support.served import served_api

VECTORS = "spec/vectors/access_tokens.json"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WEB_APP = "https://app.example.com"
NO_WORKSPACE = ["not-a-uuid", "%00", "00000000-0000-0000-0000-00000000000g", str(uuid4())]

BAD_BODIES = {
    b"": "truncated",
    b"{": "truncated",
    b"[]": "Expected `object`",
    b"{}": "missing required field `enabled`",
    b'{"enabled": null}': "Expected `bool`, got `null` - at `$.enabled`",
    b'{"enabled": "false"}': "Expected `bool`, got `str`",
    b'{"enabled": 0}': "Expected `bool`, got `int`",
    b'{"enable": true}': "missing required field `enabled`",
    b'{"enabled": true': "truncated",
    b'{"enabled": true} x': "malformed",
    b'{"enabled": NaN}': "malformed",
    b'{"enabled": "\xff"}': "it is not UTF-8",
    b'\xef\xbb\xbf{"enabled": false}': "malformed",
    b'{"a": ' + b"[" * 20_000 + b"]" * 20_000 + b', "enabled": true}': "nests too deep",
}
"""With what the answer must say of it."""


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
async def api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, WEB_ORIGIN=f"{WEB_APP}/")
    async with live_api(database_url, environ) as running:
        yield running


@pytest.fixture
async def client(api: LiveApi) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(base_url=api.url, timeout=30) as client:
        yield client


def path(workspace_id: object) -> str:
    return f"/workspaces/{workspace_id}/tool-router"


def is_on(connection: psycopg.Connection, world: World) -> bool:
    row = connection.execute(
        "SELECT tool_router_enabled FROM workspaces WHERE id = %s", (world.workspace_id,)
    ).fetchone()
    assert row is not None
    return bool(row[0])


def switches(connection: psycopg.Connection) -> list[Any]:
    return connection.execute(
        "SELECT workspace_id, by_user_id, was_enabled, is_enabled FROM brabo_api_router_switches ORDER BY created_at"
    ).fetchall()


async def test_an_owner_switches_it_off_and_on_and_each_change_is_recorded_once(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    answers = []
    for enabled in (False, False, True):
        answers.append(await client.put(path(world.workspace_id), json={"enabled": enabled}, headers=token))
        answers.append(await client.get(path(world.workspace_id), headers=token))

    slug = connection.execute("SELECT slug FROM workspaces").fetchone()
    assert slug is not None
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [answer.json() for answer in answers] == [
        {"id": str(world.workspace_id), "name": "Workspace", "slug": slug[0], "toolRouterEnabled": enabled}
        for enabled in (False, False, False, False, True, True)
    ]
    assert switches(connection) == [
        (world.workspace_id, world.user_id, True, False),
        (world.workspace_id, world.user_id, False, True),
    ]


@pytest.mark.parametrize(
    ("role", "may_read", "may_write"),
    [
        ("owner", 200, 200),
        ("maintainer", 200, 403),
        ("developer", 200, 403),
        ("viewer", 200, 403),
        (None, 403, 403),
    ],
)
async def test_roles(
    api: LiveApi,
    client: httpx.AsyncClient,
    world: World,
    connection: psycopg.Connection,
    role: str | None,
    may_read: int,
    may_write: int,
) -> None:
    token = bearer(api, add_user(connection, world.workspace_id, role))

    read = await client.get(path(world.workspace_id), headers=token)
    written = await client.put(path(world.workspace_id), json={"enabled": False}, headers=token)

    assert (read.status_code, written.status_code) == (may_read, may_write)
    assert is_on(connection, world) is (may_write != 200)
    assert len(switches(connection)) == (1 if may_write == 200 else 0)


async def test_a_role_that_is_taken_away_is_gone_at_once(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    before = await client.put(path(world.workspace_id), json={"enabled": False}, headers=token)
    connection.execute("DELETE FROM workspace_members")
    after = [
        await client.put(path(world.workspace_id), json={"enabled": True}, headers=token),
        await client.get(path(world.workspace_id), headers=token),
    ]

    assert before.status_code == 200
    for answer in after:  # they made the workspace, which is no role
        assert_problem(answer, 403)
    assert is_on(connection, world) is False


async def test_who_is_no_member_is_told_the_same_of_every_workspace_and_of_none(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, add_user(connection, world.workspace_id, None))
    read, written = set(), set()
    for workspace_id in (world.workspace_id, *NO_WORKSPACE):
        read.add((await client.get(path(workspace_id), headers=token)).content)
        written.add((await client.put(path(workspace_id), json={"enabled": True}, headers=token)).content)

    assert len(read) == len(written) == 1
    assert json.loads(read.pop())["status"] == json.loads(written.pop())["status"] == 403


async def test_without_a_token_that_counts_nothing_opens(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    orphan = add_user(connection, world.workspace_id, "owner")
    orphaned = bearer(api, orphan)
    connection.execute("DELETE FROM workspace_members WHERE user_id = %s", (orphan,))
    connection.execute("DELETE FROM users WHERE id = %s", (orphan,))
    sound = bearer(api, world.user_id)["Authorization"].removeprefix("Bearer ")
    refused: list[dict[str, str]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": f"Bearer {sound[:-8]}"},
        {"Authorization": f"Bearer {sound} {sound}"},
        {"Authorization": f"Basic {sound}"},
        {"Authorization": sound},
        {"Cookie": f"token={sound}"},
        {"X-Brabo-Service-Token": SERVICE_TOKEN},
        {"Authorization": f"Bearer {SERVICE_TOKEN}"},
        bearer(api, world.user_id, minutes=-1),
        orphaned,
    ]
    for headers in refused:
        for workspace_id in (world.workspace_id, NO_WORKSPACE[0]):
            answers = [
                await client.get(path(workspace_id), headers=headers),
                await client.put(path(workspace_id), json={"enabled": False}, headers=headers),
                await client.put(path(workspace_id), content=b"{", headers=headers),
            ]
            for answer in answers[: 2 if headers is orphaned else 3]:
                detail = assert_problem(answer, 401)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert sound not in detail
                assert SERVICE_TOKEN not in detail
    assert is_on(connection, world)

    lower_case = await client.get(path(world.workspace_id), headers={"authorization": f"bearer  {sound}"})
    assert lower_case.status_code == 200


@pytest.mark.skipif(RECORDINGS.folder is None, reason="the folder `shared` is not here")
async def test_every_recorded_token_is_answered_as_recorded(
    database_url: str, world: World, connection: psycopg.Connection, tmp_path: Path
) -> None:
    cases = json.loads(RECORDINGS.read_bytes(VECTORS))["cases"]
    connection.execute(
        "INSERT INTO users (id, email) VALUES (%s, 'owner@example.com')", (cases[0]["claims"]["sub"],)
    )
    create_member(connection, world.workspace_id, UUID(cases[0]["claims"]["sub"]), "owner")
    (current,) = {case["secret"] for case in cases if not case["expect"].startswith("accepted when")}
    (previous,) = {case["secret"] for case in cases} - {current}

    statuses = []
    for secrets in (
        {"AUTH_JWT_SECRET": current},
        {"AUTH_JWT_SECRET": current, "AUTH_JWT_SECRET_PREVIOUS": previous},
    ):
        async with (
            live_api(database_url, environment(tmp_path, **secrets)) as api,
            http_client(base_url=api.url) as client,
        ):
            for case in cases:
                token = {"Authorization": f"Bearer {case['token']}"}
                statuses.append((await client.get(path(world.workspace_id), headers=token)).status_code)
            keys = (await client.get("/.well-known/jwks.json")).json()["keys"]

    expected = [{"accepted": 200, "401": 401}.get(case["expect"]) for case in cases]
    assert statuses == [status or 401 for status in expected] + [status or 200 for status in expected]
    published = {(key["kid"], key["x"]) for key in keys}
    assert published == {(case["kid"], case["public_x"]) for case in cases if "kid" in case}


async def test_a_body_that_does_not_decode_is_explained(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    headers = {**bearer(api, world.user_id), "Content-Type": "application/json"}
    for body, said in BAD_BODIES.items():
        answer = await client.put(path(world.workspace_id), content=body, headers=headers)
        detail = assert_problem(answer, 400)
        assert detail.startswith('The body must be {"enabled": true} or {"enabled": false}: ')
        assert said in detail, body
    assert is_on(connection, world)


async def test_a_body_over_the_limit_is_413_and_other_methods_are_405(
    api: LiveApi, client: httpx.AsyncClient, world: World
) -> None:
    token = bearer(api, world.user_id)
    huge = b'{"a": "' + b"x" * 70_000 + b'", "enabled": false}'

    assert_problem(await client.put(path(world.workspace_id), content=huge, headers=token), 413)
    for method in ("POST", "DELETE", "PATCH"):
        assert_problem(await client.request(method, path(world.workspace_id), headers=token), 405)


async def test_fields_that_are_not_known_are_ignored(
    api: LiveApi, client: httpx.AsyncClient, world: World
) -> None:
    answer = await client.put(
        path(world.workspace_id),
        content=b'{"enabled": false, "why": "a try"}',
        headers=bearer(api, world.user_id),
    )

    assert answer.json()["toolRouterEnabled"] is False


async def test_a_refusal_is_logged_with_route_and_peer_and_without_the_token(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    stranger = bearer(api, add_user(connection, world.workspace_id, None))
    expired = bearer(api, world.user_id, minutes=-1)
    with structlog.testing.capture_logs() as lines:
        for headers in (expired, stranger, {}):
            await client.get(path(world.workspace_id), headers={**headers, "traceparent": TRACEPARENT})

    refused = [line for line in lines if line["event"] == "owner_refused"]
    assert [line["status"] for line in refused] == [401, 403, 401]
    assert "expired" in refused[0]["reason"]
    for line in refused:
        assert (line["path"], line["peer"]) == (path(world.workspace_id), "127.0.0.1")
        assert line["trace_id"] == TRACEPARENT.split("-")[1]
        assert line["request_id"]
    for headers in (expired, stranger):
        assert headers["Authorization"].rpartition(".")[2] not in str(lines)


async def test_a_users_token_opens_no_engine_route(
    api: LiveApi, client: httpx.AsyncClient, world: World, simulator: Simulator
) -> None:
    sound = bearer(api, world.user_id)
    token = sound["Authorization"].removeprefix("Bearer ")
    for headers in (sound, {"X-Brabo-Service-Token": token}, {"X-Brabo-Service-Token": f"Bearer {token}"}):
        for stream in (False, True):
            url = api.turn_url(world.session_id, stream=stream)
            assert_problem(await client.post(url, json=request_body(world), headers=headers), 403)
    assert simulator.requests() == []


async def test_a_second_process_sees_the_switch_at_once(
    api: LiveApi, client: httpx.AsyncClient, world: World, database_url: str, tmp_path: Path
) -> None:
    token = bearer(api, world.user_id)
    async with (
        served_api(tmp_path / "second", DATABASE_URL=database_url) as second,
        http_client(base_url=second.url) as other,
    ):
        seen = []
        for at in range(20):
            switcher, reader = (client, other) if at % 2 else (other, client)
            await switcher.put(path(world.workspace_id), json={"enabled": at % 3 == 0}, headers=token)
            seen.append((await reader.get(path(world.workspace_id), headers=token)).json())

    assert [body["toolRouterEnabled"] for body in seen] == [at % 3 == 0 for at in range(20)]


async def test_scripts_of_the_web_app_may_call_the_owners_routes_and_no_engine_route(
    api: LiveApi, client: httpx.AsyncClient, world: World
) -> None:
    asked = {
        "Origin": WEB_APP,
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "authorization,content-type,traceparent",
    }
    preflight = await client.options(path(world.workspace_id), headers=asked)
    answers = [
        await client.get(path(world.workspace_id), headers={"Origin": WEB_APP, **bearer(api, world.user_id)}),
        await client.get(path(world.workspace_id), headers={"Origin": WEB_APP}),
        await client.put(
            path(world.workspace_id), headers={"Origin": WEB_APP, **bearer(api, world.user_id)}, content=b"{"
        ),
    ]
    elsewhere = [
        await client.options(path(world.workspace_id), headers={**asked, "Origin": f"{WEB_APP}.evil.com"}),
        await client.get(path(world.workspace_id), headers={"Origin": "null", **bearer(api, world.user_id)}),
        await client.get(path(world.workspace_id), headers=bearer(api, world.user_id)),
        await client.options(
            api.turn_url(world.session_id), headers={**asked, "Access-Control-Request-Method": "POST"}
        ),
        await client.post(
            api.turn_url(world.session_id), json=request_body(world), headers={"Origin": WEB_APP, **HEADERS}
        ),
    ]

    assert preflight.status_code == 204
    assert {name.strip() for name in preflight.headers["access-control-allow-headers"].split(",")} == {
        "Authorization",
        "Content-Type",
        "traceparent",
    }
    assert "PUT" in preflight.headers["access-control-allow-methods"]
    assert [answer.status_code for answer in answers] == [200, 401, 400]
    for answer in (preflight, *answers):
        assert answer.headers.get_list("access-control-allow-origin") == [WEB_APP]
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers
    assert not any(name.startswith("access-control") for answer in elsewhere for name in answer.headers)
    assert all("Origin" in answer.headers["vary"] for answer in elsewhere[:3])


async def test_without_a_web_origin_no_script_is_let_in(
    database_url: str, world: World, tmp_path: Path
) -> None:
    async with (
        live_api(database_url, environment(tmp_path)) as api,
        http_client(base_url=api.url) as client,
    ):
        headers = {"Origin": WEB_APP, "Access-Control-Request-Method": "PUT"}
        preflight = await client.options(path(world.workspace_id), headers=headers)

    assert not any(name.startswith("access-control") for name in preflight.headers)


async def test_the_keys_are_published(api: LiveApi, client: httpx.AsyncClient) -> None:
    answer = await client.get("/.well-known/jwks.json")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"keys": api.container.user_tokens().jwks()}
    assert all(set(key) == {"crv", "kty", "x", "kid", "alg", "use"} for key in answer.json()["keys"])


async def test_a_database_that_does_not_answer_is_a_503_and_dead_connections_cost_nothing(
    world: World, database_url: str, tmp_path: Path, connection: psycopg.Connection
) -> None:
    proxy = DatabaseProxy(database_url, free_port())
    await proxy.start()
    async with (
        live_api(f"{proxy.url}?sslmode=disable&gssencmode=disable", environment(tmp_path)) as api,
        http_client(base_url=api.url, timeout=30) as client,
    ):
        token = bearer(api, world.user_id)
        assert (await client.get(path(world.workspace_id), headers=token)).status_code == 200
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        after_a_loss = await client.put(path(world.workspace_id), json={"enabled": False}, headers=token)
        await proxy.stop()
        while_away = await client.put(path(world.workspace_id), json={"enabled": True}, headers=token)

    assert after_a_loss.status_code == 200
    assert_problem(while_away, 503)
    assert int(while_away.headers["retry-after"]) > 0
    assert is_on(connection, world) is False


async def test_a_database_that_falls_silent_is_a_503_within_seconds(
    world: World, database_url: str, tmp_path: Path
) -> None:
    proxy = DatabaseProxy(database_url, free_port())
    await proxy.start()
    try:
        async with (
            live_api(f"{proxy.url}?sslmode=disable&gssencmode=disable", environment(tmp_path)) as api,
            http_client(base_url=api.url, timeout=30) as client,
        ):
            token = bearer(api, world.user_id)
            assert (await client.get(path(world.workspace_id), headers=token)).status_code == 200
            proxy.fall_silent()
            started_s = time.monotonic()
            silent = await client.get(path(world.workspace_id), headers=token)
            took_s = time.monotonic() - started_s
            proxy.talk()
            again = await client.get(path(world.workspace_id), headers=token)
    finally:
        await proxy.stop()

    assert_problem(silent, 503)
    assert took_s < 6
    assert again.status_code == 200


async def test_a_workspace_that_somebody_else_has_locked_is_a_503_and_turns_go_on(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection, database_url: str
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT id FROM workspaces FOR UPDATE")
        switched = await client.put(
            path(world.workspace_id), json={"enabled": False}, headers=bearer(api, world.user_id)
        )
        turn = await take_turn(api, world)

    assert_problem(switched, 503)
    assert (turn.status, turn.answer["error"]) == (200, None)
    assert is_on(connection, world)
    assert switches(connection) == []


async def test_the_description_names_both_kinds_of_token(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/schema/openapi.json")).json()

    schemes = schema["components"]["securitySchemes"]
    assert (schemes["userToken"]["scheme"], schemes["userToken"]["bearerFormat"]) == ("bearer", "JWT")
    operations = schema["paths"]["/workspaces/{workspace_id}/tool-router"]
    for method, statuses in (
        ("get", {"200", "401", "403", "431", "503"}),
        ("put", {"200", "400", "401", "403", "413", "431", "503"}),
    ):
        assert operations[method]["security"] == [{"userToken": []}]
        assert set(operations[method]["responses"]) == statuses
        assert operations[method]["responses"]["200"]["content"]["application/json"]["examples"]
    assert operations["put"]["requestBody"]["content"]["application/json"]["examples"]
    keys = schema["paths"]["/.well-known/jwks.json"]["get"]
    assert "security" not in keys
    assert keys["responses"]["200"]["content"]["application/json"]["examples"]
