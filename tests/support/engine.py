"""An engine as the api sees it: one POST a turn, frames split on two LF, the end of the body waited for."""

import json
import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
from psycopg.rows import dict_row

from tests.support.brabo_data import World
from tests.support.live import HEADERS, LiveApi

TOOLS = [
    {
        "name": "read_file",
        "description": "Reads a file of the repository",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
]


_UNUSED_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""A client makes one for itself, slowly, if it is given none."""


def http_client(**options: Any) -> httpx.AsyncClient:
    """A client for plain HTTP on loopback."""
    return httpx.AsyncClient(verify=_UNUSED_TLS, **options)


@dataclass
class Answered:
    """What came back. `answer` is the JSON answer, or the final frame without its type."""

    status: int
    answer: dict[str, Any]
    headers: httpx.Headers
    raw: bytes
    frames: list[dict[str, Any]] = field(default_factory=list)

    @property
    def deltas(self) -> list[str]:
        return [frame["text"] for frame in self.frames if frame["type"] == "delta"]


def request_body(world: World, **over: Any) -> dict[str, Any]:
    return {
        "projectId": str(world.project_id),
        "messages": [{"role": "user", "content": "Leia a.ts"}],
        **over,
    }


async def take_turn(
    api: LiveApi, world: World, *, stream: bool = False, headers: dict[str, str] | None = None, **over: Any
) -> Answered:
    """One turn, over a connection of its own."""
    content = json.dumps(request_body(world, **over)).encode()
    return await post(api.turn_url(world.session_id, stream=stream), content, headers=headers)


async def post(url: str, content: bytes, *, headers: dict[str, str] | None = None) -> Answered:
    all_headers = {
        "content-type": "application/json",
        "accept": "application/json",
        **HEADERS,
        **(headers or {}),
    }
    async with http_client(timeout=60) as client:
        response = await client.post(url, content=content, headers=all_headers)
    raw = response.content
    if response.headers["content-type"] != "text/event-stream":
        return Answered(response.status_code, json.loads(raw), response.headers, raw)
    frames = parse_frames(raw)
    final = dict(frames[-1])
    assert final.pop("type") == "final"
    return Answered(response.status_code, final, response.headers, raw, frames)


def parse_frames(raw: bytes) -> list[dict[str, Any]]:
    """The frames of a whole body, which must end with one and hold no CR."""
    assert b"\r" not in raw
    assert raw.endswith(b"\n\n")
    frames = []
    for block in raw.split(b"\n\n")[:-1]:
        assert b"\n" not in block, block
        if not block.startswith(b":"):
            assert block.startswith(b"data: "), block
            frames.append(json.loads(block[6:]))
    return frames


def ledger(database_url: str, world: World) -> list[dict[str, Any]]:
    """The session's rows, oldest first."""
    return select(
        database_url, "SELECT * FROM token_usage WHERE session_id = %s ORDER BY id", world.session_id
    )


def spent_micros(database_url: str, world: World) -> int:
    rows = select(database_url, "SELECT spent_micros FROM budgets WHERE project_id = %s", world.project_id)
    spent = rows[0]["spent_micros"]
    assert isinstance(spent, int)
    return spent


def select(database_url: str, query: str, *parameters: object) -> list[dict[str, Any]]:
    with psycopg.connect(database_url) as connection, connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()
