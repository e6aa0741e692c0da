"""A small agent, as an engine runs one: it takes turns through the api and runs the tools that the model calls."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

AGENT_ID: Final = "dev-api"
SYSTEM_PROMPT: Final = (
    "You are a careful assistant with a small folder of text files. Say in one short sentence what you are about to "
    "do, then call one tool at a time; when the task is done, answer in one sentence without a tool."
)
_TEXT: Final = {"type": "string"}


def _tool(name: str, description: str, **properties: dict[str, str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": parameters}


TOOLS: Final = [
    _tool("list_files", "Lists the files of the folder, one a line"),
    _tool("read_file", "Reads a text file of the folder", path=_TEXT),
    _tool(
        "write_file", "Writes a text file of the folder, in place of what it held", path=_TEXT, content=_TEXT
    ),
    _tool("append_file", "Adds text to the end of a text file of the folder", path=_TEXT, content=_TEXT),
    _tool("count_words", "Counts the words of a text file of the folder", path=_TEXT),
]


class TurnRefusedError(Exception):
    """The api answered with a status: it was not a turn. The text holds the status and the api's reason."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn; `answer` is what the api answered, or the final frame."""

    is_streamed: bool
    answer: Mapping[str, Any]

    @property
    def turn_id(self) -> str:
        return str(self.answer["turnId"])

    @property
    def cost_micros(self) -> int:
        cost: int = self.answer["usage"]["costMicros"]
        return cost

    @property
    def is_metered(self) -> bool:
        """Whether it has a row: a turn that ended before the provider was called has none."""
        usage = self.answer["usage"]
        return not usage["estimated"] or usage["inputTokens"] > 0

    @property
    def error(self) -> str | None:
        error: str | None = self.answer["error"]
        return error

    @property
    def routing(self) -> Mapping[str, Any] | None:
        """What the answer says of the step's menu; None where the tool router had no part in it."""
        return self.answer.get("toolRouting")

    @property
    def router_cost_micros(self) -> int:
        """What the decision on the menu cost, beside `cost_micros`."""
        cost: int = self.routing["custoMicros"] if self.routing else 0
        return cost

    @property
    def calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = self.answer["message"]["toolCalls"]
        return calls


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The tools, on one folder and nothing outside it. What cannot be done is told to the model, as text."""

    folder: Path

    def run(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the tool says."""
        try:
            match name, arguments:
                case "list_files", _:
                    return "\n".join(sorted(path.name for path in self.folder.iterdir()))
                case "read_file", {"path": str(path)}:
                    return self._inside(path).read_text(encoding="utf-8")
                case "write_file", {"path": str(path), "content": str(content)}:
                    self._inside(path).write_text(content, encoding="utf-8")
                    return f"{path} written, {len(content)} characters"
                case "append_file", {"path": str(path), "content": str(content)}:
                    with self._inside(path).open("a", encoding="utf-8") as file:
                        file.write(content)
                    return f"{len(content)} characters added to {path}"
                case "count_words", {"path": str(path)}:
                    return f"{len(self._inside(path).read_text(encoding='utf-8').split())} words"
                case _:
                    return f"error: there is no tool {name} with these arguments"
        except (OSError, ValueError) as error:
            return f"error: {type(error).__name__}"

    def _inside(self, path: str) -> Path:
        place = (self.folder / path).resolve()
        if not place.is_relative_to(self.folder.resolve()):
            raise PermissionError(path)
        return place


@dataclass(slots=True)
class Conversation:
    """One session with the api: the messages so far, and the next turn on request."""

    client: httpx.Client
    session_url: str
    project_id: str
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": SYSTEM_PROMPT}]
    )

    def ask(self, request: str) -> None:
        """Say what the user wants."""
        self.messages.append({"role": "user", "content": request})

    def next_body(self) -> bytes:
        """The request of the next turn."""
        body = {
            "projectId": self.project_id,
            "agentId": AGENT_ID,
            "messages": self.messages,
            "tools": TOOLS,
        }
        return json.dumps(body, ensure_ascii=False).encode()

    def take_turn(
        self, *, streamed: bool, on_text: Callable[[str], None], on_routing: Callable[[], None]
    ) -> Turn:
        """One turn; `on_text` gets the answer's text, streamed in pieces as they come. Raises TurnRefusedError.

        `on_routing` is called where a stream says that the tool router is about to be asked.
        """
        answer = self._stream(on_text, on_routing) if streamed else self._post(on_text)
        if answer["error"] is None:
            self.messages.append(answer["message"])
        return Turn(streamed, answer)

    def run_tools(self, turn: Turn, sandbox: Sandbox) -> Iterator[tuple[str, Mapping[str, Any], str]]:
        """Run what the turn calls, call by call: name, arguments, and what the tool said."""
        for call in turn.calls:
            name, arguments = call["name"], call["arguments"]
            result = sandbox.run(name, arguments)
            self.messages.append({"role": "tool", "toolCallId": call["id"], "name": name, "content": result})
            yield name, arguments, result

    def _post(self, on_text: Callable[[str], None]) -> dict[str, Any]:
        response = self.client.post(f"{self.session_url}/llm-turn", content=self.next_body())
        if not response.is_success:
            raise _refusal(response)
        answer: dict[str, Any] = response.json()
        on_text(answer["message"]["content"])
        return answer

    def _stream(self, on_text: Callable[[str], None], on_routing: Callable[[], None]) -> dict[str, Any]:
        url = f"{self.session_url}/llm-turn-stream"
        with self.client.stream("POST", url, content=self.next_body()) as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            answer: dict[str, Any] = {}
            for frame in _frames(response.iter_raw()):
                if frame["type"] == "tool_routing_started":
                    on_routing()
                elif frame["type"] == "delta":
                    on_text(frame["text"])
                elif frame["type"] == "final":
                    answer = frame
        if not answer:
            raise TurnRefusedError("The stream ended without its final frame.")
        return answer


def _frames(pieces: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The frames of a stream, cut where two LF stand, as engines do."""
    waiting = b""
    for piece in pieces:
        *blocks, waiting = (waiting + piece).split(b"\n\n")
        for block in blocks:
            if block.startswith(b"data: "):
                yield json.loads(block.removeprefix(b"data: "))


def _refusal(response: httpx.Response) -> TurnRefusedError:
    return TurnRefusedError(f"The api answered {response.status_code}: {response.text[:500]}")
