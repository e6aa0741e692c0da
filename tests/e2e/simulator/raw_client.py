"""A client that sees what HTTP libraries hide: how the bytes came, and how the connection ended."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

KEY = "sk-or-v1-0123456789abcdef"
CHAT = "/v1/chat/completions"
DECISIONS = "/alpha/decisions"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file from the project",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path", "limit"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "search_web", "description": "Search the web for a phrase"},
    },
]


def chat_body(text: str = "Olá", *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    body = {"model": "openai/gpt-4.1-mini", "messages": [{"role": "user", "content": text}], "stream": stream}
    return body | fields


def decisions_body(state: Any = "Read the file src/app.py", **criteria: str) -> dict[str, Any]:
    question = {
        "type": "choice",
        "instructions": "Which tool now?",
        "criteria": criteria
        or {"search_web": "Search the web", "read_file": "Read a file", "none": "Answer"},
    }
    return {"model": "typesafe/jev-1.13", "state": state, "questions": {"tool": question}}


@dataclass
class Answer:
    """One exchange, raw. `ending` is complete, closed, reset, or silent (nothing more came in time)."""

    raw: bytes = b""
    segments: int = 0
    ending: Literal["complete", "closed", "reset", "silent"] = "silent"
    elapsed_s: float = 0.0
    body: bytes = b""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def parse(self) -> None:
        head, separator, rest = self.raw.partition(b"\r\n\r\n")
        if not separator or not head.startswith(b"HTTP/1.1 "):
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = dict(line.split(": ", 1) for line in lines)
        self.body = rest
        if "content-length" in self.headers:
            if len(rest) == int(self.headers["content-length"]):
                self.ending = "complete"
            return
        self.body, ended = unchunked(rest)
        if ended:
            self.ending = "complete"

    def json(self) -> Any:
        return json.loads(self.body)

    def data(self) -> list[str]:
        """The data of each event, by the rules of server-sent events."""
        text = self.body.decode().replace("\r\n", "\n")
        events = []
        for block in text.split("\n\n"):
            lines = [line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")]
            if lines:
                events.append("\n".join(lines))
        return events

    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(data) for data in self.data() if data != "[DONE]"]

    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks() for choice in chunk["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas if delta)

    def usage(self) -> Any:
        return [chunk["usage"] for chunk in self.chunks() if chunk.get("usage")][-1]


def unchunked(data: bytes) -> tuple[bytes, bool]:
    """The payload of a chunked body as far as it came, and whether it was ended."""
    body = b""
    while data:
        size_text, separator, data = data.partition(b"\r\n")
        if not separator:
            return body, False
        size = int(size_text, 16)
        if size == 0:
            return body, True
        body += data[:size]
        data = data[size + 2 :]
    return body, False


async def exchange(
    base_url: str,
    path: str,
    body: Any = None,
    *,
    fault: str | None = None,
    key: str | None = KEY,
    patience_s: float = 0.5,
    leave_after: int | None = None,
    headers: Sequence[tuple[str, str]] = (),
) -> Answer:
    """One request on a connection of its own. Leaves when the body is whole, when nothing comes for `patience_s`,
    or when at least `leave_after` bytes have come."""
    target = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(target.hostname, target.port)
    started = time.perf_counter()
    answer = Answer()
    try:
        writer.write(request_bytes(target.path + path, body, fault, key, headers))
        while answer.ending != "complete":
            if leave_after is not None and len(answer.raw) >= leave_after:
                break
            data = await asyncio.wait_for(reader.read(65536), patience_s)
            if not data:
                answer.ending = "closed"
                break
            answer.raw += data
            answer.segments += 1
            answer.parse()
    except TimeoutError:
        answer.ending = "silent"
    except ConnectionResetError:
        answer.ending = "reset"
    finally:
        answer.elapsed_s = time.perf_counter() - started
        writer.transport.abort()
        await asyncio.sleep(0)
    return answer


def request_bytes(
    path: str, body: Any, fault: str | None, key: str | None, headers: Sequence[tuple[str, str]] = ()
) -> bytes:
    payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
        "host: simulator",
        f"content-length: {len(payload)}",
    ]
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    if fault is not None:
        lines.append(f"x-simulator-fault: {fault}")
    lines.extend(f"{name}: {value}" for name, value in headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + payload
