"""The body of a chat request, encoded without holding the event loop."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import msgspec

from adapters.openai_compatible.profiles import ProviderProfile
from adapters.openai_compatible.tool_calls import new_call_id
from application.ports.llm_provider import ChatCall
from domain.step import Message, OpenCalls, ToolCall

_NO_RESULT: Final = "(sem resultado)"
_NAMELESS_TOOL: Final = "ferramenta"

_SLICE: Final = 128 * 1024
"""Characters encoded at once: about half a millisecond of prose."""
_BLOCK_BYTES: Final = 64 * 1024
_BREATH_BYTES: Final = 512 * 1024
_ENTRY_BYTES: Final = 512
"""What an entry counts for beside its text, so that many small ones make room for others too."""

_ARGUMENT_CHARACTERS: Final = 16
"""What an argument counts for beside its text."""
_MANY: Final = 100
"""Messages encoded at once."""

_encode: Final = msgspec.json.Encoder().encode


async def request_body(call: ChatCall, profile: ProviderProfile) -> Sequence[bytes]:
    """The request as blocks of bytes, linear in messages and tools."""
    body = _Body()
    body.put(
        b'{"model":'
        + _encode(call.model)
        + b',"stream":true,"stream_options":{"include_usage":true},"messages":['
    )
    await _put_messages(body, call.messages)
    body.put(b"]")
    if call.tools:
        for position, tool in enumerate(call.tools):
            function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            body.put(
                (b"," if position else b',"tools":[')
                + await _json({"type": "function", "function": function})
            )
            await body.breathe()
        body.put(b"]")
    extras = {**profile.body, **_bounds(call, profile)}
    body.put((b"," + _encode(extras)[1:-1] if extras else b"") + b"}")
    return body.blocks()


def _bounds(call: ChatCall, profile: ProviderProfile) -> Mapping[str, Any]:
    """How long the answer may be, and who may give it."""
    bounds: dict[str, Any] = {}
    upstream: dict[str, Any] = {}
    if profile.takes_sort and call.routing_preference is not None:
        upstream["sort"] = call.routing_preference.value
    if profile.holds_prices and call.max_output_tokens is not None:
        bounds["max_tokens"] = call.max_output_tokens
    if profile.holds_prices and call.max_prices is not None:
        upstream["max_price"] = {
            "prompt": _usd(call.max_prices.input_per_million_micros),
            "completion": _usd(call.max_prices.output_per_million_micros),
        }
    if upstream:
        bounds["provider"] = upstream
    return bounds


def _usd(micros: int) -> msgspec.Raw:
    """A JSON number that is exactly so many micro-USD."""
    return msgspec.Raw(f"{Decimal(micros).scaleb(-6):f}".encode())


@dataclass(slots=True, repr=False)
class _WireCall:
    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(slots=True, repr=False)
class _WireMessage:
    role: str
    content: str
    calls: list[_WireCall] = field(default_factory=list)
    call_id: str | None = None


class _Block:
    """An assistant's message and the results that follow it at once: providers refuse one without the other."""

    def __init__(self, content: str, calls: Sequence[ToolCall]) -> None:
        self._assistant = _WireMessage("assistant", content)
        self._results: list[_WireMessage] = []
        self._open: OpenCalls[str] = OpenCalls()
        seen: set[str] = set()
        for call in calls:
            wire_id = call.id if call.id and call.id not in seen else new_call_id()
            seen.add(wire_id)
            self._assistant.calls.append(_WireCall(wire_id, call.name, call.arguments))
        self._open.open(zip(calls, (call.id for call in self._assistant.calls), strict=True))

    def add_result(self, message: Message) -> None:
        """A result of one of the calls; a result without its call brings one along."""
        wire_id = self._open.close(message)
        if wire_id is None:
            wire_id = new_call_id()
            self._assistant.calls.append(_WireCall(wire_id, message.name or _NAMELESS_TOOL, {}))
        self._results.append(_WireMessage("tool", message.content, call_id=wire_id))

    def messages(self) -> Iterator[_WireMessage]:
        """The message, its results, and a word for each call that has none."""
        yield self._assistant
        yield from self._results
        for wire_id in self._open:
            yield _WireMessage("tool", _NO_RESULT, call_id=wire_id)


def _wire_messages(messages: Sequence[Message]) -> Iterator[_WireMessage]:
    block: _Block | None = None
    for message in messages:
        if message.role == "tool":
            block = block or _Block("", ())
            block.add_result(message)
            continue
        if block is not None:
            yield from block.messages()
            block = None
        if message.role == "assistant":
            block = _Block(message.content, message.tool_calls)
        else:
            yield _WireMessage(message.role, message.content)
    if block is not None:
        yield from block.messages()


async def _put_messages(body: "_Body", messages: Sequence[Message]) -> None:
    """Small ones many at a time, which costs a fifth; what is long goes slice by slice."""
    batch: list[dict[str, Any]] = []
    characters = 0

    async def put_batch() -> None:
        nonlocal characters
        if batch:
            body.put_entry(_encode(batch)[1:-1])
            await body.breathe(len(batch))
            batch.clear()
            characters = 0

    for message in _wire_messages(messages):
        encodable = _encodable(message)
        if encodable is None:
            await put_batch()
            await asyncio.sleep(0)  # a large value may have been encoded to see that it is one
            body.put_entry(b"")
            await _put_message(body, message)
            continue
        entry, entry_characters = encodable
        if characters + entry_characters > _SLICE or len(batch) >= _MANY:
            await put_batch()
        batch.append(entry)
        characters += entry_characters
    await put_batch()


def _encodable(message: _WireMessage) -> tuple[dict[str, Any], int] | None:
    """The message as it is encoded together with others, and about how many characters it has; None where it is too
    long, or nests too deep, for that.
    """
    if _least_characters(message) > _SLICE:
        return None
    characters = len(message.content)
    if message.call_id is not None:
        return {
            "role": message.role,
            "content": message.content,
            "tool_call_id": message.call_id,
        }, characters
    if not message.calls:
        return {"role": message.role, "content": message.content}, characters
    calls = []
    for call in message.calls:
        try:
            arguments = _arguments(call.arguments, _SLICE - characters)
        except RecursionError:
            return None
        if arguments is None:
            return None
        calls.append(
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
        )
        characters += len(arguments)
    return {"role": message.role, "content": message.content or None, "tool_calls": calls}, characters


def _least_characters(message: _WireMessage) -> int:
    """What can be seen without looking into nested values, or encoding anything."""
    characters = len(message.content)
    for call in message.calls:
        characters += len(call.id) + len(call.name) + _ARGUMENT_CHARACTERS * len(call.arguments)
        if characters > _SLICE:
            break
        characters += sum(
            [
                len(key) + (len(value) if isinstance(value, str) else 0)
                for key, value in call.arguments.items()
            ]
        )
    return characters


def _arguments(arguments: Mapping[str, Any], room: int) -> str | None:
    """Their JSON. Nested values are encoded one by one; None as soon as they have more than `room`."""
    encoded: dict[str, msgspec.Raw] = {}
    for key, value in arguments.items():
        if isinstance(value, dict | list):
            nested = _encode(value)
            room -= len(nested)
            if room < 0:
                return None
            encoded[key] = msgspec.Raw(nested)
    return _encode({**arguments, **encoded} if encoded else arguments).decode()


async def _put_message(body: "_Body", message: _WireMessage) -> None:
    body.put(b'{"role":' + _encode(message.role) + b',"content":')
    if message.calls and not message.content:
        body.put(b"null")
    else:
        await body.put_text(message.content)
    if message.call_id is not None:
        body.put(b',"tool_call_id":' + _encode(message.call_id))
    for position, call in enumerate(message.calls):
        body.put(b"," if position else b',"tool_calls":[')
        body.put(
            b'{"id":' + _encode(call.id) + b',"type":"function","function":{"name":' + _encode(call.name)
        )
        body.put(b',"arguments":"')
        await _put_arguments(body, call.arguments)
        body.put(b'"}}')
    body.put(b"]}" if message.calls else b"}")
    await body.breathe()


async def _put_arguments(body: "_Body", arguments: Mapping[str, Any]) -> None:
    """JSON inside a JSON string; a long text right under the top, such as a file's, goes in slices."""
    await body.put_inner("{")
    for position, (key, value) in enumerate(arguments.items()):
        await body.put_inner(("," if position else "") + _encode(key).decode() + ":")
        if isinstance(value, str) and len(value) > _SLICE:
            await body.put_inner('"')
            for start in range(0, len(value), _SLICE):
                await body.put_inner(_encode(value[start : start + _SLICE])[1:-1].decode())
            await body.put_inner('"')
        else:
            await body.put_inner((await _json(value)).decode())
    await body.put_inner("}")


async def _json(value: object) -> bytes:
    """Values may nest 900 deep, which is more than what the caller's own depth leaves: a thread begins at none."""
    try:
        return _encode(value)
    except RecursionError:
        return await asyncio.to_thread(_encode, value)


class _Body:
    """Blocks of bytes under way, with a pause for others now and then."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._block = bytearray()
        self._since_breath = 0
        self._has_entries = False

    def put(self, encoded: bytes) -> None:
        """Add JSON as it is."""
        self._block += encoded
        self._since_breath += len(encoded)
        if len(self._block) >= _BLOCK_BYTES:
            self._blocks.append(bytes(self._block))
            self._block.clear()

    def put_entry(self, encoded: bytes) -> None:
        """Add entries of the list of messages, and the comma before them."""
        self.put(b"," + encoded if self._has_entries else encoded)
        self._has_entries = True

    async def put_text(self, text: str) -> None:
        """Add a JSON string."""
        if len(text) <= _SLICE:
            self.put(_encode(text))
            return
        self.put(b'"')
        await self.put_inner(text)
        self.put(b'"')

    async def put_inner(self, text: str) -> None:
        """Add a part of a JSON string, without quotes."""
        for start in range(0, len(text), _SLICE):
            self.put(_encode(text[start : start + _SLICE])[1:-1])
            await self.breathe()

    async def breathe(self, entries: int = 1) -> None:
        """Let the event loop turn, when there was much since the last time."""
        self._since_breath += entries * _ENTRY_BYTES
        if self._since_breath > _BREATH_BYTES:
            self._since_breath = 0
            await asyncio.sleep(0)

    def blocks(self) -> Sequence[bytes]:
        """All of it."""
        return [*self._blocks, bytes(self._block)] if self._block else self._blocks
