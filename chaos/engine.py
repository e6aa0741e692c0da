"""Turns as an engine sends them, over a socket of its own each."""

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass

from chaos.schedule import Engine, PlannedTurn

_LONGEST_S = 20.0
TOOLS = [
    {"name": name, "description": f"{name} um arquivo", "parameters": {"type": "object"}}
    for name in ("ler", "editar", "rodar")
]


@dataclass(slots=True)
class Seen:
    """What the engine saw of a turn."""

    has_sent: bool = False
    has_head: bool = False
    is_routing: bool = False
    has_delta: bool = False
    has_final: bool = False
    status: int = 0
    has_ended: bool = False


async def take(turn: PlannedTurn, seen: Seen, port: int, token: str, project: str, session: str) -> None:
    """Take the turn as planned; connections that break are part of the plan."""
    try:
        async with asyncio.timeout(_LONGEST_S):
            await _take(turn, seen, port, token, project, session)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        pass
    finally:
        seen.has_ended = True


async def _take(turn: PlannedTurn, seen: Seen, port: int, token: str, project: str, session: str) -> None:
    document = {
        "projectId": project,
        "agentId": turn.agent,
        "messages": [
            {"role": "user", "content": f"Leia a.ts [mark:{turn.agent}]"},
            {"role": "assistant", "content": "", "toolCalls": [{"id": "c1", "name": "ler", "arguments": {}}]},
            {"role": "tool", "toolCallId": "c1", "name": "ler", "content": "nada"},
        ],
        "tools": TOOLS if turn.routed else [],
    }
    body = json.dumps(document).encode()
    path = f"/internal/sessions/{session}/llm-turn{'-stream' if turn.streamed else ''}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: api\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
        f"X-Brabo-Service-Token: {token}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        await writer.drain()
        seen.has_sent = True
        if turn.engine is Engine.LEAVES_MID_DECISION and not turn.streamed:
            await asyncio.sleep(0.05)
            return
        while line := await reader.readline():
            if line.startswith(b"HTTP/1.1 "):
                seen.status, seen.has_head = int(line.split()[1]), True
            seen.is_routing |= b"tool_routing_started" in line
            seen.has_delta |= b'"delta"' in line
            seen.has_final |= b'"final"' in line or b'"turnId"' in line
            if turn.engine is Engine.LEAVES_MID_STREAM and seen.has_delta:
                return
            if turn.engine is Engine.LEAVES_MID_DECISION and seen.is_routing:
                return
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
