"""What the decision model answers."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

import msgspec

from adapters.jev.request import QUESTION
from adapters.transport import figures
from adapters.transport.figures import ABSENT
from adapters.transport.names import storable_name
from domain.routing import Choice, Fallback, FallbackReason, RunnerUp
from domain.usage import TokenCounts

LONGEST_BYTES: Final = 1024 * 1024
"""Of an answer; a longer one is none."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_USAGE: Final = re.compile(r'"usage"\s*:\s*(?=\{)')
"""In a document that is not whole, or cannot be read. A string holds no such text: its quotes are escaped."""

_MOST_USAGES: Final = 100
"""That are looked into."""


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

    @property
    def is_readable(self) -> bool:
        """It came whole and has the shape of a choice."""
        return isinstance(self.outcome, Choice) or self.outcome.reason is FallbackReason.CHOICE_NOT_OFFERED


class _Document(msgspec.Struct):
    """Each part is read by itself, so that one that is wrong takes no other with it."""

    answers: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT


class _ChoiceAnswer(msgspec.Struct):
    type: Literal["choice"]
    choice: str
    confidence: float | None = None
    probabilities: dict[str, float] | None = None


class _Usage(msgspec.Struct):
    cost: msgspec.Raw = ABSENT
    input_tokens: msgspec.Raw = ABSENT
    output_tokens: msgspec.Raw = ABSENT


_document: Final = msgspec.json.Decoder(_Document)
_answers: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_choice_answer: Final = msgspec.json.Decoder(_ChoiceAnswer)
_usage: Final = msgspec.json.Decoder(_Usage)
_usage_reader: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finds the end: figures are read from the text."""


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
    """The cost that stands in what is no whole document, or not a good status's. Linear in its size."""
    text = body.decode("latin-1")  # a character a byte, and what is no text does no harm
    at = 0
    for _ in range(_MOST_USAGES):
        found = _USAGE.search(text, at)
        if found is None:
            break
        try:
            _, at = _usage_reader.raw_decode(text, found.end())
        except json.JSONDecodeError as error:
            at = max(error.pos, found.end())  # what is before it was looked through
            continue
        except RecursionError:
            return None
        if charge := _charge(text[found.end() : at].encode("latin-1")):
            return charge
    return None


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
    """None without a cost."""
    try:
        said = _usage.decode(usage)
    except (msgspec.DecodeError, RecursionError):
        return None
    usd = figures.charge(said.cost)
    if usd is None:
        return None
    sent, made = figures.count(said.input_tokens), figures.count(said.output_tokens)
    return Charge(usd, None if sent is None else TokenCounts(sent, made or 0))


def _text(raw: msgspec.Raw) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def _invalid(detail: str) -> Fallback:
    return Fallback(FallbackReason.INVALID_ANSWER, detail)
