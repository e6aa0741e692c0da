"""Asks the real decision model a few times, and says what has changed on the wire since it was written down here.

The key is OPENROUTER_TEST_KEY; without it nothing is asked. The service is at OPENROUTER_API_BASE (the real one, unless
set) and is paid 0.05 USD at most.
Exit status: 0 nothing has changed, or there is no key; 1 something has, or it did not work; 130 interrupted.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import msgspec

# Of a script only its own folder is on the path; its neighbours are modules of the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adapters.jev import decisions_url
from adapters.jev.answer import read_answer
from adapters.jev.request import MODEL, QUESTION, Request, request_for
from domain.routing import Choice, Fallback
from domain.step import Step
from entrypoints.http.wire import WireMessage, WireTool
from scripts.agent import AGENT_ID, SYSTEM_PROMPT, TOOLS

CEILING_USD: Final = Decimal("0.05")
CALLS: Final = 5
PATIENCE_S: Final = 30.0
LONGEST_SHOWN: Final = 100
OVERHEAD_TOKENS: Final = 1_000
"""Of a call, beside its own text: some three hundred were seen."""

# What the wire looked like when the adapter was written: all that this script compares with.
DATED_MODEL: Final = "typesafe/jev-1.13-20260917"
USD_PER_INPUT_TOKEN: Final = Decimal("0.000000042")
"""Nothing else is charged."""
WINDOW_TOKENS: Final = 32_000
MEDIAN_MS: Final = 317
P95_MS: Final = 449
_ANSWER: Final = f"answers.{QUESTION}"
SHAPE: Final = {
    "id": "string",
    "model": "string",
    "provider": "string",
    "answers": "object",
    _ANSWER: "object",
    f"{_ANSWER}.type": "string",
    f"{_ANSWER}.choice": "string",
    f"{_ANSWER}.confidence": "number",
    f"{_ANSWER}.probabilities": "object",
    f"{_ANSWER}.probabilities.*": "number",
    "usage": "object",
    "usage.input_tokens": "number",
    "usage.output_tokens": "number",
    "usage.cost": "number",
}
OPTIONAL: Final = {"id", "provider", f"{_ANSWER}.confidence", f"{_ANSWER}.probabilities", "usage.cost"}
"""These may be missing, and were not."""


class NotWorkingError(Exception):
    """There is nothing to compare. The text says what happened."""


@dataclass(slots=True)
class Report:
    """What was compared. Each line is printed once, however often it is found."""

    changes: list[str] = field(default_factory=list)
    _said: set[str] = field(default_factory=set)

    def compare(self, what: str, *, contract: object, seen: object) -> None:
        """A line for it, and a change unless the two are equal."""
        if seen == contract:
            self.say("as before", f"{what}: {seen}")
        else:
            self.change(f"{what}: {contract} by the contract, and now {str(seen)[:LONGEST_SHOWN]}")

    def change(self, sentence: str) -> None:
        if sentence not in self.changes:
            self.changes.append(sentence)
        self.say("CHANGED", sentence)

    def say(self, label: str, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            print(f"{label:<10} {sentence}", flush=True)


@dataclass(slots=True)
class Purse:
    """What was spent, and whether one more call could be too dear."""

    usd_per_input_token: Decimal
    spent_usd: Decimal = Decimal(0)
    _dearest_usd: Decimal = Decimal(0)

    def check(self, body: bytes) -> None:
        """Raises NotWorkingError where one more call, every byte a token, could pass the ceiling."""
        if self.spent_usd + self._reckoned_usd(body) > CEILING_USD:
            raise NotWorkingError(
                f"{plain(self.spent_usd)} USD were spent; one more call could pass the ceiling of {CEILING_USD} USD."
            )

    def pay(self, body: bytes, cost_usd: Decimal | None) -> None:
        """A cost that did not come counts as the dearest."""
        paid_usd = self._reckoned_usd(body) if cost_usd is None else cost_usd
        self.spent_usd += paid_usd
        self._dearest_usd = max(self._dearest_usd, paid_usd)

    def _reckoned_usd(self, body: bytes) -> Decimal:
        return max(self.usd_per_input_token * (len(body) + OVERHEAD_TOKENS), self._dearest_usd)


def main(environment: Mapping[str, str] = os.environ) -> int:
    key = environment.get("OPENROUTER_TEST_KEY", "").strip()
    if not key:
        print(
            "Skipped: OPENROUTER_TEST_KEY is not set. With a key of OpenRouter in it the real decision model is asked, "
            f"for {CEILING_USD} USD at most."
        )
        return 0
    base = environment.get("OPENROUTER_API_BASE") or None
    report = Report()
    try:
        with httpx.Client(headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as client:
            look(client, decisions_url(base), report)
    except (NotWorkingError, httpx.HTTPError, httpx.InvalidURL) as error:
        print(f"This did not work: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{len(report.changes) or 'No'} changes on the wire.")
    return 1 if report.changes else 0


def look(client: httpx.Client, url: str, report: Report) -> None:
    """Ask, and compare. Raises NotWorkingError, and what the client raises."""
    purse = Purse(compare_offer(client, url, report))
    request = question()
    latencies_ms = []
    try:
        for _ in range(CALLS):
            purse.check(request.body)
            latencies_ms.append(ask(client, url, request, purse, report))
    finally:
        report.say("spent", f"{plain(purse.spent_usd)} USD of {CEILING_USD}")
    compare_latency(latencies_ms, report)


def compare_offer(client: httpx.Client, url: str, report: Report) -> Decimal:
    """The price of an input token by the list of models, or the contract's where it is not there."""
    models_url = f"{url.removesuffix('/alpha/decisions')}/v1/models"
    response = client.get(models_url, params={"output_modalities": "decisions"}).raise_for_status()
    offered = next((model for model in json.loads(response.content)["data"] if model["id"] == MODEL), None)
    if offered is None:
        report.change(f"the list of models: {MODEL} by the contract, and now it is not there")
        return USD_PER_INPUT_TOKEN
    listed = Decimal(offered["pricing"]["prompt"])
    report.compare("listed USD per input token", contract=plain(USD_PER_INPUT_TOKEN), seen=plain(listed))
    report.compare("window, in tokens", contract=WINDOW_TOKENS, seen=offered["context_length"])
    return max(listed, USD_PER_INPUT_TOKEN)


def question() -> Request:
    """A step as the agent of the demo has it, asked in the adapter's own words."""
    call = {"id": "call_1", "name": "list_files", "arguments": {}}
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "List the files, then read todo.md."},
        {"role": "assistant", "content": "", "toolCalls": [call]},
        {"role": "tool", "content": "notes.md\ntodo.md", "toolCallId": "call_1", "name": "list_files"},
    ]
    step = Step.read(
        AGENT_ID, msgspec.convert(messages, list[WireMessage]), msgspec.convert(TOOLS, list[WireTool])
    )
    request = request_for(step)
    assert not isinstance(request, Fallback), "a small step can be asked about"
    return request


def ask(client: httpx.Client, url: str, request: Request, purse: Purse, report: Report) -> float:
    """One call, compared and paid for; how long it took, in milliseconds."""
    started_s = time.perf_counter()
    try:
        response = client.post(url, content=request.body, headers={"Content-Type": "application/json"})
    except httpx.TransportError:
        purse.pay(request.body, None)
        raise
    latency_ms = 1000 * (time.perf_counter() - started_s)
    if response.status_code != httpx.codes.OK:
        raise NotWorkingError(f"{url} answered {response.status_code} where the contract has 200.")
    try:
        document = json.loads(response.content, parse_float=Decimal)
    except (ValueError, RecursionError):
        purse.pay(request.body, None)
        raise NotWorkingError(f"{url} answered 200 with what is not JSON.") from None
    usage = document.get("usage") if isinstance(document, dict) else None
    usage = usage if isinstance(usage, dict) else {}
    cost_usd = amount(usage.get("cost"))
    purse.pay(request.body, cost_usd)
    compare_shape(document, report)
    compare_reading(response.content, request, report)
    if isinstance(document, dict):
        report.compare("the model's dated name", contract=DATED_MODEL, seen=document.get("model"))
    tokens = amount(usage.get("input_tokens"))
    if cost_usd is not None and tokens:
        charged = plain(cost_usd / tokens)
        report.compare("charged USD per input token", contract=plain(USD_PER_INPUT_TOKEN), seen=charged)
    return latency_ms


def plain(number: Decimal) -> str:
    """Without an exponent, and without zeros at its end."""
    return f"{number.normalize():f}"


def amount(value: object) -> Decimal | None:
    """A number that can be an amount."""
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    number = Decimal(value) if is_number and isinstance(value, int | Decimal) else None
    return number if number is not None and number.is_finite() and number >= 0 else None


def compare_shape(document: Any, report: Report) -> None:
    """What is there and was not, what is not there and was, and what is of another kind."""
    seen = dict(kinds(document))
    for path, kind in SHAPE.items():
        if path in seen:
            if seen[path] != kind:
                report.change(f"shape: {path}: {kind} by the contract, and now {seen[path]}")
        elif not any(path.startswith(f"{gone}.") for gone in SHAPE if gone not in seen):
            how = "may be missing, and was not; now it is" if path in OPTIONAL else "is missing"
            report.change(f"shape: {path} {how}")
    for path in seen.keys() - SHAPE.keys() - {""}:
        report.change(f"shape: {path} is new: {seen[path]}")
    if seen[""] != "object":
        report.change(f"shape: the answer: object by the contract, and now {seen['']}")


def kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The kind of a value and of all within, by their paths. Options are not told apart, nor items of a list."""
    yield path, _KINDS[type(value)]
    if isinstance(value, dict):
        for name, inner in value.items():
            shown = "*" if path == f"{_ANSWER}.probabilities" else name
            yield from kinds(inner, f"{path}.{shown}".removeprefix("."))


_KINDS: Final[Mapping[type, str]] = {
    dict: "object",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number that JSON does not have",  # those that it has are read as the other two
    Decimal: "number",
    type(None): "null",
}


def compare_reading(body: bytes, request: Request, report: Report) -> None:
    """Whether the adapter can use it."""
    outcome = read_answer(body, request.options).outcome
    if isinstance(outcome, Choice):
        report.say(
            "as before", f"the adapter reads a choice: {outcome.option}, confidence {outcome.confidence}"
        )
    else:
        report.change(f"the adapter cannot use it: {outcome.reason} ({outcome.detail})")


def compare_latency(latencies_ms: list[float], report: Report) -> None:
    """A median above what 95 of 100 calls took is another latency; less is chance."""
    typical_ms = median(latencies_ms)
    sentence = (
        f"latency: median {MEDIAN_MS} ms and 95th percentile {P95_MS} ms by the contract, and now a median of "
        f"{typical_ms:.0f} ms in {len(latencies_ms)} calls"
    )
    if typical_ms > P95_MS:
        report.change(sentence)
    else:
        report.say("as before", sentence)


if __name__ == "__main__":
    sys.exit(main())
