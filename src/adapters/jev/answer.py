"""What the decision model answers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, Literal

import msgspec

from adapters.jev.request import QUESTION
from adapters.transport.names import storable_name
from domain.routing import Choice, Fallback, FallbackReason, RunnerUp
from domain.usage import TokenCounts

LONGEST_BYTES: Final = 1024 * 1024
"""Of an answer; a longer one is none."""

_MAX_COUNT: Final = 2**31 - 1
_MAX_CHARGE_USD: Final = 1_000_000
_LONGEST_NUMBER: Final = 100
_ABSENT: Final = msgspec.Raw(b"null")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_USAGE: Final = re.compile(rb'"usage"\s*:\s*(\{[^{}]*\})')
"""In a document that is not whole, or cannot be read. A string holds no such text: its quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a decision cost, in USD. `tokens` is None where the answer does not count them."""

    usd: Decimal
    tokens: TokenCounts | None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, read as far as it can be. The names are the provider's, fit to be stored."""

    outcome: Choice | Fallback
    charge: Charge | None
    generation_id: str | None = None
    resolved_model: str | None = None


class _Document(msgspec.Struct):
    """Each part is read by itself, so that one that is wrong takes no other with it."""

    answers: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    id: msgspec.Raw = _ABSENT
    model: msgspec.Raw = _ABSENT


class _ChoiceAnswer(msgspec.Struct):
    type: Literal["choice"]
    choice: str
    confidence: float | None = None
    probabilities: dict[str, float] | None = None


class _Usage(msgspec.Struct):
    cost: msgspec.Raw = _ABSENT
    input_tokens: msgspec.Raw = _ABSENT
    output_tokens: msgspec.Raw = _ABSENT


_document: Final = msgspec.json.Decoder(_Document)
_answers: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_choice_answer: Final = msgspec.json.Decoder(_ChoiceAnswer)
_usage: Final = msgspec.json.Decoder(_Usage)


def read_answer(body: bytes, options: Sequence[str]) -> Answer:
    """The answer of a good status. `options` are those that were offered, the likelier first where they tie.

    A body that is too long or no JSON is searched for its cost all the same.
    """
    if len(body) > LONGEST_BYTES:
        return Answer(_invalid("mais de 1 MiB"), charge_within(body))
    try:
        document = _document.decode(body.removeprefix(_BYTE_ORDER_MARK))
    except (msgspec.DecodeError, RecursionError):
        return Answer(_invalid("não é um objeto JSON"), charge_within(body))
    return Answer(
        _outcome(document.answers, options),
        _charge(document.usage),
        storable_name(_text(document.id)),
        storable_name(_text(document.model)),
    )


def charge_within(body: bytes | bytearray) -> Charge | None:
    """The cost that stands in what is no whole document."""
    found = _USAGE.search(body)
    return _charge(bytes(found[1])) if found else None


def _outcome(answers: msgspec.Raw, options: Sequence[str]) -> Choice | Fallback:
    try:
        answer = _choice_answer.decode(_answers.decode(answers)[QUESTION])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return _invalid("não tem a forma de uma escolha")
    if answer.choice not in options:
        return Fallback(
            FallbackReason.CHOICE_NOT_OFFERED, f"a escolha não é nenhuma das {len(options)} opções"
        )
    return Choice(answer.choice, answer.confidence, _runner_up(answer, options))


def _runner_up(answer: _ChoiceAnswer, options: Sequence[str]) -> RunnerUp | None:
    probabilities = answer.probabilities or {}
    others = [option for option in options if option != answer.choice and option in probabilities]
    if not others:
        return None
    likeliest = max(others, key=probabilities.__getitem__)  # of equals the first
    return RunnerUp(likeliest, probabilities[likeliest])


def _charge(usage: msgspec.Raw | bytes) -> Charge | None:
    """None unless `cost` is a JSON number from 0 to a million: its text, for a binary float is not what was charged."""
    try:
        said = _usage.decode(usage)
    except (msgspec.DecodeError, RecursionError):
        return None
    usd = _number(said.cost)
    if usd is None or not 0 <= usd <= _MAX_CHARGE_USD:
        return None
    sent, made = _count(said.input_tokens), _count(said.output_tokens)
    return Charge(usd.copy_abs(), None if sent is None else TokenCounts(sent, made or 0))


def _count(raw: msgspec.Raw) -> int | None:
    number = _number(raw)
    is_count = number is not None and 0 <= number <= _MAX_COUNT and number == int(number)
    return int(number) if number is not None and is_count else None


def _number(raw: msgspec.Raw) -> Decimal | None:
    """A JSON number of a sane length; its syntax was checked when the document was read."""
    text = bytes(raw).decode("ascii", "replace").strip()
    if len(text) > _LONGEST_NUMBER or not text or text[0] not in "0123456789-":
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _text(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _invalid(detail: str) -> Fallback:
    return Fallback(FallbackReason.INVALID_ANSWER, detail)
