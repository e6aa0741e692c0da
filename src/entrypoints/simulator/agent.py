"""The default agent: reads the conversation, calls the offered tools sensibly, then answers. Deterministic."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from entrypoints.simulator.answer import Answer, ToolCall

MOST_CALLS_PER_REQUEST: Final = 3
_DESCRIPTION_CHARACTERS: Final = 2_000
_READ_CHARACTERS: Final = 20_000  # of a long text only this much is weighed
_QUOTED: Final = re.compile(r"[\"'«“`]([^\"'»”`]{1,200})[\"'»”`]")
_PATH: Final = re.compile(r"[\w.~-]*/[\w./-]+|\b[\w-]+\.[a-z]{1,5}\b")
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_COMMON: Final = frozenset(
    (
        "and",
        "com",
        "das",
        "del",
        "dos",
        "for",
        "from",
        "los",
        "para",
        "por",
        "que",
        "the",
        "this",
        "uma",
        "with",
    )
)
_WORD: Final = re.compile(r"[a-z0-9]{3,}")


def words(text: str) -> set[str]:
    """The telling words of a text, without case and accents; `snake_case` and `camelCase` come apart."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text[:_READ_CHARACTERS]).replace("_", " ")
    plain = unicodedata.normalize("NFKD", apart).encode("ascii", "ignore").decode("ascii")
    # Six letters of each: plurals and verb endings meet.
    return {word[:6] for word in _WORD.findall(plain.lower()) if word not in _COMMON}


def fitness(wanted: str, options: Sequence[str]) -> list[float]:
    """How well each option's text fits what is wanted; a word that few options hold weighs more."""
    wanted_words = words(wanted)
    option_words = [_option_words(option) & wanted_words for option in options]
    holders: dict[str, int] = {}
    for held in option_words:
        for word in held:
            holders[word] = holders.get(word, 0) + 1
    return [sum(1 / holders[word] for word in held) for held in option_words]


@lru_cache(maxsize=2048)
def _option_words(option: str) -> frozenset[str]:
    """The same few tools and options come with every call."""
    return frozenset(words(option))


def next_answer(messages: Sequence[Any], tools: Sequence[Any], tool_choice: Any) -> Answer:
    """What the agent says to this conversation: the most fitting tool first, a few tools in all, then text."""
    request, results, called = _read(messages)
    offered = [tool["function"] for tool in tools if _is_function(tool)]
    forced = _forced_name(tool_choice)
    if forced is not None:
        offered = [function for function in offered if function["name"] == forced]
    if tool_choice == "none" or not offered:
        return Answer(pieces=_sentences(request, results, called))
    left = [function for function in offered if function["name"] not in called]
    must = forced is not None or tool_choice == "required"
    if not results or must:
        return _call(max_by_fitness(request, left or offered), request, messages)
    if left and len(called) < MOST_CALLS_PER_REQUEST:
        best = max_by_fitness(request, left)
        if fitness(request, [_describe(best)])[0] > 0:
            return _call(best, request, messages)
    return Answer(pieces=_sentences(request, results, called))


def max_by_fitness(wanted: str, functions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The function whose name and description fit best; the first of equals."""
    scores = fitness(wanted, [_describe(function) for function in functions])
    return functions[scores.index(max(scores))]


def call_of(function: dict[str, Any], request: str, call_id: str) -> ToolCall:
    """A call of that function with arguments made from the request and the function's JSON schema."""
    arguments = _value(function.get("parameters") or {}, "", request)
    encoded = msgspec.json.encode(arguments if isinstance(arguments, dict) else {}).decode()
    return ToolCall(name=function["name"], arguments=encoded, id=call_id)


def text_of(content: Any) -> str:
    """The text of a message's content, in either form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def _read(messages: Sequence[Any]) -> tuple[str, list[str], list[str]]:
    """The last user message, the tool results after it, and the names of the tools called after it."""
    request = ""
    results: list[str] = []
    called: list[str] = []
    for message in messages:
        match message:
            case {"role": "user", "content": content}:
                request, results, called = text_of(content), [], []
            case {"role": "assistant", "tool_calls": list(calls)}:
                called.extend(call["function"]["name"] for call in calls)
            case {"role": "tool"}:
                results.append(text_of(message.get("content")))
            case _:
                pass
    return request, results, called


def _is_function(tool: Any) -> bool:
    match tool:
        case {"type": "function", "function": {"name": str()}}:
            return True
        case _:
            return False


def _forced_name(tool_choice: Any) -> str | None:
    match tool_choice:
        case {"function": {"name": str(name)}}:
            return name
        case _:
            return None


def _describe(function: dict[str, Any]) -> str:
    return f"{function['name']} {(function.get('description') or '')[:_DESCRIPTION_CHARACTERS]}"


def _call(function: dict[str, Any], request: str, messages: Sequence[Any]) -> Answer:
    call = call_of(function, request, call_id=f"call_{len(messages):04d}_{function['name'][:40]}")
    return Answer(tool_calls=[call], finish_reason="tool_calls", native_finish_reason="tool_calls")


def _sentences(request: str, results: Sequence[str], called: Sequence[str]) -> list[str]:
    if not results:
        return ["Recebi o pedido: ", f"«{request[:120]}». ", "Não há mais nada a fazer — é só isto."]
    last = results[-1][:120]
    return [
        "Está feito. ",
        f"Usei {', '.join(dict.fromkeys(called)) or 'as ferramentas'}; ",
        f"o último resultado foi «{last}».",
    ]


def _value(schema: Any, name: str, request: str, depth: int = 0) -> Any:
    """A value that the schema allows, taken from the request where it holds one."""
    if not isinstance(schema, dict) or depth > 8:
        return request[:80]
    for exact in ("const", "default"):
        if exact in schema:
            return schema[exact]
    if schema.get("enum"):
        return _named_in(schema["enum"], request)
    for union in ("anyOf", "oneOf", "allOf"):
        if schema.get(union):
            return _value(schema[union][0], name, request, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    match kind:
        case "integer" | "number":
            return _number(schema, request, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case "array":
            return [_value(schema.get("items") or {}, name, request, depth + 1)]
        case "string":
            return _string(schema, name, request)
        case _ if kind == "object" or "properties" in schema or not name:
            properties = schema.get("properties") or {}
            wanted = schema.get("required") or list(properties)
            return {key: _value(properties.get(key), key, request, depth + 1) for key in wanted}
        case _:
            return request[:80]


def _named_in(values: Iterable[Any], request: str) -> Any:
    values = list(values)
    scores = fitness(request, [str(value) for value in values])
    return values[scores.index(max(scores))]


def _number(schema: dict[str, Any], request: str, whole: bool) -> int | float:
    found = _NUMBER.search(request[:_READ_CHARACTERS])
    value = float(found.group()) if found else 1.0
    value = max(value, schema.get("minimum", value))
    value = min(value, schema.get("maximum", value))
    return int(value) if whole or value.is_integer() else value


def _string(schema: dict[str, Any], name: str, request: str) -> str:
    read = request[:_READ_CHARACTERS]
    wants_path = bool(words(name) & words("path file filename caminho arquivo ficheiro url dir directory"))
    found = (_PATH.search(read) if wants_path else None) or _QUOTED.search(read)
    value = (found.group(1) if found.re is _QUOTED else found.group()) if found else read[:80].strip() or name
    return value[: schema.get("maxLength", len(value))]
