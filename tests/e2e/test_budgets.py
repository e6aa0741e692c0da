"""The owners' budgets and areas over HTTP: who may, what is taken and answered, and that turns go by it at once."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World, create_project, create_session
from tests.support.engine import http_client, take_turn
from tests.support.live import SERVICE_TOKEN, LiveApi, environment, live_api
from tests.support.owners import add_user, assert_problem, bearer

WEB_APP = "https://app.example.com"
NO_ID = ["not-a-uuid", "%00", "00000000-0000-0000-0000-00000000000g", str(uuid4())]

LIMITS = {
    '{"limitUsd": 2.5}': 2_500_000,
    '{"limitUsd": 0.1}': 100_000,
    '{"limitUsd": 1e1}': 10_000_000,
    '{"limitUsd": 0}': 0,
    '{"limitUsd": -0.0}': 0,
    '{"limitUsd": 0.0000005}': 1,
    '{"limitUsd": 0.0000014999999999999999999999999999999999}': 1,
    '{"limitUsd": 4503599.627370495500000000000001}': 4_503_599_627_370,
    '{"limitUsd": 0.29999949999999999999999999999999999999}': 299_999,
    '{"limitUsd": 1000000000}': 10**15,
    '{ "limitUsd" : 5 , "policy":"allow" }': 5_000_000,
    '{"limitMicros": 0}': 0,
    '{"limitMicros": 1}': 1,
    '{"limitMicros": 1000000000000000}': 10**15,
    '{"limitMicros": 7, "why": "a try"}': 7,
}
"""Bodies and what they set."""

BAD_LIMITS = {
    "": "truncated",
    "[]": "Expected `object`",
    "{}": "takes one of `limitUsd` and `limitMicros`",
    '{"limitUsd": 1, "limitMicros": 1000000}': "and not both",
    '{"limitUsd": "2.5"}': "a number from 0 to 1000000000",
    '{"limitUsd": true}': "a number from 0 to 1000000000",
    '{"limitUsd": [1]}': "a number from 0 to 1000000000",
    '{"limitUsd": -0.01}': "a number from 0 to 1000000000",
    '{"limitUsd": 1000000000.000001}': "a number from 0 to 1000000000",
    '{"limitUsd": 1e400}': "a number from 0 to 1000000000",
    '{"limitUsd": 1e99999999999999999999}': "a number from 0 to 1000000000",
    '{"limitUsd": 0.0000004}': "less than a micro-USD",
    '{"limitUsd": 1e-30000}': "less than a micro-USD",
    '{"limitUsd": NaN}': "malformed",
    '{"limitUsd": Infinity}': "malformed",
    '{"limitUsd": 01}': "malformed",
    '{"limitUsd": 1.}': "malformed",
    '{"limitMicros": -1}': "Expected `int` >= 0",
    '{"limitMicros": 1000000000000001}': "Expected `int` <= 1000000000000000",
    '{"limitMicros": 1.5}': "Expected `int | null`",
    '{"limitMicros": "5"}': "Expected `int | null`",
    '{"limitMicros": true}': "Expected `int | null`",
    '{"limitMicros": 9' + "9" * 30 + "}": "Expected `int` <= 1000000000000000",
    '{"a": ' + "[" * 20_000 + "]" * 20_000 + ', "limitMicros": 1}': "nests too deep",
}
"""With what the answer must say of it."""

BAD_BUDGETS = {
    **BAD_LIMITS,
    '{"limitUsd": null}': "a limit is a number",
    '{"limitMicros": null}': "a limit is a number",
    '{"policy": "allow"}': "takes one of",
    '{"limitMicros": 5, "policy": null}': "at `$.policy`",
    '{"limitMicros": 5, "policy": "warn"}': "Invalid enum value",
    '{"limitMicros": 5, "strict": null}': "at `$.strict`",
    '{"limitMicros": 5, "strict": "true"}': "at `$.strict`",
}


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(database_url, autocommit=True)) as connection:
        yield connection


@pytest.fixture
async def api(database_url: str, simulator: Simulator, tmp_path: Path) -> AsyncIterator[LiveApi]:
    environ = environment(tmp_path, OPENROUTER_API_BASE=simulator.base_url, WEB_ORIGIN=WEB_APP)
    async with live_api(database_url, environ) as running:
        yield running


@pytest.fixture
async def client(api: LiveApi) -> AsyncIterator[httpx.AsyncClient]:
    async with http_client(base_url=api.url, timeout=30) as client:
        yield client


def of_project(project_id: object) -> str:
    return f"/projects/{project_id}/budget"


def of_session(project_id: object, session_id: object) -> str:
    return f"/projects/{project_id}/sessions/{session_id}/budget"


def of_area(project_id: object, key: object) -> str:
    return f"/projects/{project_id}/agent-areas/{key}/budget"


def areas_of(project_id: object) -> str:
    return f"/projects/{project_id}/agent-areas"


def budgets(connection: psycopg.Connection) -> dict[UUID, tuple[int, str]]:
    """Limits and policies, by project or session."""
    rows = connection.execute(
        "SELECT coalesce(project_id, session_id), limit_micros, policy::text FROM budgets"
    ).fetchall()
    return {owner_id: (limit, policy) for owner_id, limit, policy in rows}


async def test_a_budget_is_made_read_and_set_again(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    connection.execute("DELETE FROM budgets")
    for path in (of_project(world.project_id), of_session(world.project_id, world.session_id)):
        none = await client.get(path, headers=token)
        made = await client.put(path, headers=token, json={"limitUsd": 2.5, "policy": "allow"})
        connection.execute("UPDATE budgets SET spent_micros = 1900000, last_threshold_notified = 70")
        read = await client.get(path, headers=token)
        again = await client.put(path, headers=token, json={"limitMicros": 3_000_000})

        assert "has no budget" in assert_problem(none, 404)
        assert [answer.status_code for answer in (made, read, again)] == [200] * 3
        fields = {
            "limitMicros": 2_500_000,
            "policy": "allow",
            "strict": False,
            "heldMicros": 0,
            "excess": {"turns": 0, "micros": 0},
        }
        assert made.json() == {**fields, "spentMicros": 0, "lastThresholdNotified": 0}
        assert read.json() == {**fields, "spentMicros": 1_900_000, "lastThresholdNotified": 70}
        assert again.json() == {**read.json(), "limitMicros": 3_000_000, "lastThresholdNotified": 0}
        assert made.headers["cache-control"] == read.headers["cache-control"] == "no-store"

    assert budgets(connection) == dict.fromkeys((world.project_id, world.session_id), (3_000_000, "allow"))


async def test_dollars_are_read_as_the_decimals_they_are(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    for body, micros in LIMITS.items():
        for path in (of_project(world.project_id), of_area(world.project_id, "qa")):
            answer = await client.put(path, content=body, headers=token)
            assert (answer.status_code, answer.json()["limitMicros"]) == (200, micros), body
        assert budgets(connection)[world.project_id][0] == micros


async def test_a_body_that_does_not_decode_is_explained_and_sets_nothing(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    paths: list[tuple[str, dict[str, str]]] = [
        (of_project(world.project_id), BAD_BUDGETS),
        (of_session(world.project_id, world.session_id), BAD_BUDGETS),
        (of_area(world.project_id, "qa"), BAD_LIMITS),
    ]
    before = budgets(connection), areas(connection)
    for path, bodies in paths:
        for body, said in bodies.items():
            detail = assert_problem(await client.put(path, content=body, headers=token), 400)
            assert detail.startswith('The body must be {"limitUsd": 2.5'), body
            assert said in detail, body
        for broken in (b'{"limitUsd": "\xff"}', b'{"a": "\xff", "limitMicros": 5}'):
            detail = assert_problem(await client.put(path, content=broken, headers=token), 400)
            assert "UTF-8" in detail
        huge = b'{"a": "' + b"x" * 70_000 + b'", "limitMicros": 5}'
        assert_problem(await client.put(path, content=huge, headers=token), 413)
        for method in ("POST", "DELETE", "PATCH"):
            assert_problem(await client.request(method, path, headers=token), 405)

    assert (budgets(connection), areas(connection)) == before


def areas(connection: psycopg.Connection) -> list[Any]:
    return connection.execute(
        "SELECT key, budget_micros, spent_micros FROM agent_areas ORDER BY key"
    ).fetchall()


async def test_an_areas_ceiling_is_set_and_taken_away_and_the_list_shows_it(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    connection.execute("UPDATE agent_areas SET spent_micros = 42 WHERE key = 'qa'")
    limited = await client.put(of_area(world.project_id, "qa"), json={"limitUsd": 1}, headers=token)
    listed = await client.get(areas_of(world.project_id), headers=token)
    nothing = await client.put(of_area(world.project_id, "dev"), json={"limitMicros": 0}, headers=token)
    taken_away = [
        await client.put(of_area(world.project_id, "qa"), json={name: None}, headers=token)
        for name in ("limitUsd", "limitMicros")
    ]

    assert limited.json() == {"key": "qa", "limitMicros": 1_000_000, "spentMicros": 42}
    assert listed.json() == {
        "items": [
            {"key": "dev", "limitMicros": 5_000_000, "spentMicros": 0},
            {"key": "infra", "limitMicros": None, "spentMicros": 0},
            limited.json(),
        ]
    }
    assert nothing.json()["limitMicros"] == 0
    assert [answer.json() for answer in taken_away] == [{**limited.json(), "limitMicros": None}] * 2
    assert areas(connection) == [("dev", 0, 0), ("infra", None, 0), ("qa", None, 42)]


@pytest.mark.parametrize("of", ["workspace", "project"])
@pytest.mark.parametrize(
    ("role", "project_status", "session_status"),
    [
        ("owner", 200, 200),
        ("maintainer", 200, 200),
        ("developer", 403, 200),
        ("viewer", 403, 403),
        (None, 403, 403),
    ],
)
async def test_roles(
    api: LiveApi,
    client: httpx.AsyncClient,
    world: World,
    connection: psycopg.Connection,
    of: str,
    role: str | None,
    project_status: int,
    session_status: int,
) -> None:
    """A role in the project counts, whatever the one in the workspace is."""
    if of == "workspace" or role is None:
        user_id = add_user(connection, world.workspace_id, role)
    else:
        in_workspace = "owner" if role in ("developer", "viewer") else "viewer"
        user_id = add_user(connection, world.workspace_id, in_workspace, in_project=(world.project_id, role))
    token = bearer(api, user_id)
    session = of_session(world.project_id, world.session_id)

    statuses = [
        (await client.put(of_project(world.project_id), json={"limitUsd": 1}, headers=token)).status_code,
        (await client.get(of_project(world.project_id), headers=token)).status_code,
        (await client.get(areas_of(world.project_id), headers=token)).status_code,
        (await client.put(of_area(world.project_id, "qa"), json={"limitUsd": 1}, headers=token)).status_code,
        (await client.put(session, json={"limitUsd": 1}, headers=token)).status_code,
        (await client.get(session, headers=token)).status_code,
    ]

    assert statuses == [project_status] * 4 + [session_status] * 2
    assert (budgets(connection)[world.project_id][0] == 1_000_000) is (project_status == 200)
    assert (world.session_id in budgets(connection)) is (session_status == 200)


async def test_who_has_no_part_in_a_project_is_told_the_same_of_every_one_and_of_none(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, add_user(connection))
    told: dict[str, set[bytes]] = {}
    for project_id in (world.project_id, *NO_ID):
        for name, path in (
            ("project", of_project(project_id)),
            ("session", of_session(project_id, world.session_id)),
            ("no session", of_session(project_id, uuid4())),
            ("areas", areas_of(project_id)),
            ("area", of_area(project_id, "qa")),
            ("no area", of_area(project_id, "none")),
        ):
            answers = [] if "area" in name and name != "areas" else [await client.get(path, headers=token)]
            if name != "areas":
                answers.append(await client.put(path, json={"limitUsd": 1}, headers=token))
            for answer in answers:
                assert_problem(answer, 403)
                told.setdefault(name.removeprefix("no "), set()).add(answer.content)

    assert {name: len(bodies) for name, bodies in told.items()} == dict.fromkeys(told, 1)


async def test_a_session_of_another_project_is_as_unknown_as_none(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    other_project = create_project(connection, world.workspace_id, world.user_id)
    elsewhere = create_session(connection, other_project, world.user_id)
    before = budgets(connection)
    read, written = set(), set()
    for session_id in (elsewhere, world.project_id, *NO_ID):
        path = of_session(world.project_id, session_id)
        read.add((await client.get(path, headers=token)).content)
        written.add((await client.put(path, json={"limitUsd": 1}, headers=token)).content)
    keys = set()
    for key in ("none", "%00", "QA", "q%2Fa", "%F0%9F%98%80", "x" * 5_000):
        answer = await client.put(of_area(world.project_id, key), json={"limitUsd": 1}, headers=token)
        keys.add((answer.status_code, answer.headers["content-type"]))

    assert len(read | written) == 1
    assert json.loads(read.pop())["status"] == 404
    assert keys == {(404, "application/problem+json")}
    assert budgets(connection) == before


async def test_without_a_token_that_counts_nothing_opens(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    orphan = add_user(connection)
    orphaned = bearer(api, orphan)
    connection.execute("DELETE FROM users WHERE id = %s", (orphan,))
    before = budgets(connection)
    refused: list[dict[str, str]] = [
        {},
        {"Authorization": f"Bearer {SERVICE_TOKEN}"},
        {"X-Brabo-Service-Token": SERVICE_TOKEN},
        bearer(api, world.user_id, minutes=-1),
        orphaned,
    ]
    session = of_session(world.project_id, world.session_id)
    for headers in refused:
        for path in (of_project(world.project_id), session, areas_of(world.project_id)):
            assert_problem(await client.get(path, headers=headers), 401)
        for path in (of_project(world.project_id), session, of_area(world.project_id, "qa")):
            assert_problem(await client.put(path, json={"limitUsd": 1}, headers=headers), 401)

    assert budgets(connection) == before


async def test_turns_go_by_a_new_limit_at_once(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    connection.execute("UPDATE budgets SET spent_micros = 100, last_threshold_notified = 0")
    seen = []
    for body in (
        {"limitMicros": 100},
        {"limitMicros": 100, "policy": "allow"},
        {"limitMicros": 100, "policy": "block"},
        {"limitMicros": 0},
        {"limitMicros": 10},
        {"limitMicros": 10_000_000},
    ):
        await client.put(of_project(world.project_id), json=body, headers=token)
        seen.append((await take_turn(api, world)).answer.get("errorCode"))

    refused = "budget_exhausted"
    assert seen == [refused, None, refused, None, refused, None]
    thresholds = connection.execute(
        "SELECT payload->>'limitMicros', (payload->>'threshold')::int FROM outbox_events ORDER BY 2"
    ).fetchall()
    assert thresholds == [("100", 70), ("100", 90), ("100", 100)]


async def test_a_budget_that_somebody_else_has_locked_is_a_503(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection, database_url: str
) -> None:
    token = bearer(api, world.user_id)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT id FROM budgets FOR UPDATE")
        answer = await client.put(of_project(world.project_id), json={"limitMicros": 5}, headers=token)
        read = await client.get(of_project(world.project_id), headers=token)

    assert_problem(answer, 503)
    assert int(answer.headers["retry-after"]) > 0
    assert read.status_code == 200
    assert budgets(connection)[world.project_id][0] != 5


async def test_scripts_of_the_web_app_may_call(api: LiveApi, client: httpx.AsyncClient, world: World) -> None:
    headers = {"Origin": WEB_APP, **bearer(api, world.user_id)}
    asked = {"Origin": WEB_APP, "Access-Control-Request-Method": "PUT"}
    for path in (of_project(world.project_id), of_area(world.project_id, "qa")):
        for answer in (
            await client.options(path, headers=asked),
            await client.put(path, json={"limitUsd": 1}, headers=headers),
            await client.put(path, content=b"{", headers=headers),
        ):
            assert answer.headers.get_list("access-control-allow-origin") == [WEB_APP]


async def test_a_budget_is_made_strict_and_shows_what_is_held_and_what_went_beyond(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    for path in (of_project(world.project_id), of_session(world.project_id, world.session_id)):
        strict = await client.put(path, headers=token, json={"limitUsd": 2.5, "strict": True})
        kept = await client.put(path, headers=token, json={"limitUsd": 2})
        connection.execute("UPDATE budgets SET held_micros = 70")
        for turn, settled in ((1, 60), (2, 130), (3, 101)):
            connection.execute(
                "INSERT INTO budget_holds (turn_id, budget_id, granted_micros, chat_micros, router_micros,"
                " settled_micros) SELECT %s, id, 100, 0, 0, %s FROM budgets",
                (UUID(int=turn), settled),
            )
        read = await client.get(path, headers=token)
        relaxed = await client.put(path, headers=token, json={"limitUsd": 0, "strict": False})
        connection.execute("DELETE FROM budget_holds")

        assert [answer.json()["strict"] for answer in (strict, kept, read, relaxed)] == [
            True,
            True,
            True,
            False,
        ]
        assert read.json()["heldMicros"] == relaxed.json()["heldMicros"] == 70
        assert read.json()["excess"] == relaxed.json()["excess"] == {"turns": 2, "micros": 31}


async def test_a_budget_with_nothing_to_hold_is_not_made_strict_and_an_area_never_is(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, world.user_id)
    before = budgets(connection), areas(connection)
    path = of_project(world.project_id)
    for body in (
        {"limitMicros": 0, "strict": True},
        {"limitUsd": 5, "policy": "allow", "strict": True},
    ):
        detail = assert_problem(await client.put(path, headers=token, json=body), 400)
        assert "a limit above 0 and the policy `block`" in detail
    for value in (True, None, "no", 1):
        area = await client.put(
            of_area(world.project_id, "qa"), headers=token, json={"limitUsd": 5, "strict": value}
        )
        assert "cannot be `strict`" in assert_problem(area, 400)
    assert (budgets(connection), areas(connection)) == before

    await client.put(path, headers=token, json={"limitMicros": 5, "strict": True})
    for body in ({"limitMicros": 0}, {"limitMicros": 5, "policy": "allow"}):
        assert_problem(await client.put(path, headers=token, json=body), 400)
    assert budgets(connection)[world.project_id] == (5, "block")


async def test_who_may_not_set_a_budget_is_not_told_what_it_lacks(
    api: LiveApi, client: httpx.AsyncClient, world: World, connection: psycopg.Connection
) -> None:
    token = bearer(api, add_user(connection, world.workspace_id, "viewer"))

    answer = await client.put(
        of_project(world.project_id), headers=token, json={"limitMicros": 0, "strict": True}
    )

    assert_problem(answer, 403)


async def test_the_description_has_every_route_with_examples(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/schema/openapi.json")).json()["paths"]
    both = {"200", "401", "403", "431", "503"}
    write = both | {"400", "413"}
    for path, method, statuses in (
        ("/projects/{project_id}/budget", "get", both | {"404"}),
        ("/projects/{project_id}/budget", "put", write),
        ("/projects/{project_id}/sessions/{session_id}/budget", "get", both | {"404"}),
        ("/projects/{project_id}/sessions/{session_id}/budget", "put", write | {"404"}),
        ("/projects/{project_id}/agent-areas", "get", both),
        ("/projects/{project_id}/agent-areas/{key}/budget", "put", write | {"404"}),
    ):
        operation = paths[path][method]
        assert operation["security"] == [{"userToken": []}]
        assert set(operation["responses"]) == statuses
        media = operation["responses"]["200"]["content"]["application/json"]
        assert set(media["examples"]["usual"]["value"]) == set(media["schema"]["properties"])
        if method == "put":
            examples = operation["requestBody"]["content"]["application/json"]["examples"]
            assert len(examples) == 2
            assert all(example["value"] for example in examples.values())
    ceiling = paths["/projects/{project_id}/agent-areas/{key}/budget"]["put"]["requestBody"]
    examples = ceiling["content"]["application/json"]["examples"]
    assert [example["value"] for example in examples.values()] == [{"limitUsd": 2.5}, {"limitUsd": None}]
