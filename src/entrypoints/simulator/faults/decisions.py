"""Faults of a decision's answers. All of them are charged, for the provider did its work."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from entrypoints.simulator.faults.fault import DECISIONS, Fault, Parameters
from entrypoints.simulator.reply import Reply

Change = Callable[[dict[str, Any], Parameters], None]


def _each_choice(change: Change) -> Callable[[Reply, Parameters], None]:
    """A hook that changes every answer of type choice."""

    def apply(reply: Reply, p: Parameters) -> None:
        for answer in reply.document["answers"].values():
            if answer["type"] == "choice":
                change(answer, p)

    return apply


def _without(*names: str) -> Change:
    def change(answer: dict[str, Any], _p: Parameters) -> None:
        for name in names:
            answer.pop(name, None)

    return change


def _with(**fields: Any) -> Change:
    def change(answer: dict[str, Any], _p: Parameters) -> None:
        answer.update(fields)

    return change


def _outside(answer: dict[str, Any], p: Parameters) -> None:
    answer["choice"] = p["choice"]
    answer["probabilities"] = {**answer["probabilities"], p["choice"]: 0.9}


def _spread(answer: dict[str, Any], head: float, others: float) -> None:
    """The choice gets `head`, one other option `others`, the rest nothing."""
    labels = [label for label in answer["probabilities"] if label != answer["choice"]]
    shares: dict[str, float] = dict.fromkeys(labels, 0)
    if labels:
        shares[labels[0]] = others
    answer["probabilities"] = {**shares, answer["choice"]: head}


def _shares(head: float, others: float) -> Change:
    return lambda answer, _p: _spread(answer, head, others)


def _raw_probabilities(value: bytes) -> Change:
    def change(answer: dict[str, Any], _p: Parameters) -> None:
        answer["probabilities"] = dict.fromkeys(answer["probabilities"], msgspec.Raw(value))

    return change


def _unknown_types(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"].update(
        unknown_box={"type": "box", "box": {"top": 0, "bottom": 1, "left": 0, "right": 1}},
        unknown_refusal={"type": "refusal", "refusal": "no"},
        unknown_kind={"type": "vector", "vector": [0.1, 0.2]},
        unknown_null=None,
    )


def _answers_list(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"] = list(reply.document["answers"].values())


def _drop_answers(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"] = {}


def _other_id(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"] = {f"{name}_x": answer for name, answer in reply.document["answers"].items()}


def _null_answers(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"] = dict.fromkeys(reply.document["answers"])


def _as_noul(reply: Reply, _p: Parameters) -> None:
    reply.document["answers"] = {name: {"type": "noul", "noul": 0.5} for name in reply.document["answers"]}


def _drop_field(name: str) -> Callable[[Reply, Parameters], None]:
    def apply(reply: Reply, _p: Parameters) -> None:
        del reply.document[name]

    return apply


def _other_model(reply: Reply, p: Parameters) -> None:
    reply.document["model"] = p["model"]


def _duplicate_keys(reply: Reply, _p: Parameters) -> None:
    """The first `answers` is empty; most decoders keep the last."""
    reply.document = b'{"answers":{},' + reply.encoded()[1:]


def decisions_faults() -> Iterator[Fault]:
    """Every fault of this file."""

    def row(
        name: str, description: str, reply: Callable[[Reply, Parameters], None], **parameters: Any
    ) -> Fault:
        return Fault(name, "document", DECISIONS, description, parameters, reply=reply)

    # fmt: off
    yield row("choice-outside", "a choice that was not offered", _each_choice(_outside), choice="outra_ferramenta")
    yield row("choice-missing", "no choice", _each_choice(_without("choice")))
    yield row("choice-null", "choice null", _each_choice(_with(choice=None)))
    yield row("choice-number", "choice is a number", _each_choice(_with(choice=1)))
    yield row("no-confidence", "no confidence", _each_choice(_without("confidence")))
    yield row("no-probabilities", "no probabilities", _each_choice(_without("probabilities")))
    yield row("bare-choice", "neither confidence nor probabilities",
              _each_choice(_without("confidence", "probabilities")))
    yield row("null-figures", "confidence and probabilities null",
              _each_choice(_with(confidence=None, probabilities=None)))
    yield row("confidence-nan", "confidence NaN", _each_choice(_with(confidence=msgspec.Raw(b"NaN"))))
    yield row("confidence-infinite", "confidence 1e400", _each_choice(_with(confidence=msgspec.Raw(b"1e400"))))
    yield row("confidence-string", "confidence as a string", _each_choice(_with(confidence="0.9")))
    yield row("confidence-low", "confidence 0.01, the choice is as offered", _each_choice(_with(confidence=0.01)))
    yield row("tie", "two options share the highest probability", _each_choice(_shares(0.5, 0.5)))
    yield row("near-tie", "rounding puts another option above the choice", _each_choice(_shares(0.49, 0.5)))
    yield row("sum-098", "probabilities that add up to 0.98", _each_choice(_shares(0.9, 0.08)))
    yield row("sum-102", "probabilities that add up to 1.02", _each_choice(_shares(0.92, 0.1)))
    yield row("probabilities-nan", "probabilities NaN", _each_choice(_raw_probabilities(b"NaN")))
    yield row("probabilities-strings", "probabilities as strings", _each_choice(_raw_probabilities(b'"0.5"')))
    yield row("probabilities-list", "probabilities as a list", _each_choice(_with(probabilities=[0.9, 0.1])))
    yield row("unknown-answers", "answers of unknown types beside ours", _unknown_types)
    yield row("answers-list", "answers as a list", _answers_list)
    yield row("answers-empty", "no answer", _drop_answers)
    yield row("answers-missing", "no answers field", _drop_field("answers"))
    yield row("answers-null", "every answer is null", _null_answers)
    yield row("answer-of-another", "answers under other ids", _other_id)
    yield row("answer-wrong-type", "a noul where a choice was asked", _as_noul)
    yield row("no-id", "no id", _drop_field("id"))
    yield row("no-decision-provider", "no provider", _drop_field("provider"))
    yield row("no-decision-model", "no model", _drop_field("model"))
    yield row("other-model", "another dated model", _other_model, model="typesafe/jev-1.14-20261015")
    yield row("duplicate-keys", "the field answers twice", _duplicate_keys)
    # fmt: on
