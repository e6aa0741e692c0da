"""POST /api/alpha/decisions: checks the questions and answers each from the words of the state."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from entrypoints.simulator.agent import fitness, words
from entrypoints.simulator.answer import ScriptedReply
from entrypoints.simulator.bill import Entry
from entrypoints.simulator.call import Call, texts_of
from entrypoints.simulator.chat import EXPOSED_HEADERS
from entrypoints.simulator.prices import Model, find_model
from entrypoints.simulator.refusal import refused
from entrypoints.simulator.reply import Reply

MOST_OPTIONS: Final = 255
_OVERHEAD_TOKENS: Final = 240  # what a request costs before its own text


def decisions_model(body: dict[str, Any]) -> Model:
    """The decisions model a body names. CallRefusedError when there is none."""
    named = body.get("model")
    model = find_model(named) if isinstance(named, str) else None
    if model is None and isinstance(named, str):
        raise refused(400, f"Model {named} does not exist")
    if model is None:
        raise refused(400, _issues([_issue(["model"], "Invalid input: expected string")]))
    if not model.decisions:
        raise refused(
            400, f"{named} is not a decisions model. Use the /api/v1/chat/completions endpoint instead."
        )
    return model


def check_decisions(body: dict[str, Any], model: Model) -> None:
    """Refuses a body the schema does not allow, or over the model's window (CallRefusedError)."""
    issues = []
    if not isinstance(body.get("state"), str | dict | list):
        issues.append(_issue(["state"], "Invalid input: expected string, object or array"))
    questions = body.get("questions")
    if not isinstance(questions, dict):
        issues.append(_issue(["questions"], "Invalid input: expected record"))
    else:
        for name, question in questions.items():
            issues.extend(
                _issue(["questions", name, *path], text) for path, text in _question_problems(question)
            )
    if issues:
        raise refused(400, _issues(issues))
    if input_tokens(body) > model.context_length:
        raw = msgspec.json.encode({"error": "max_tokens_exceeded"}).decode()
        raise refused(400, "Provider returned error", {"raw": raw, "provider_name": model.provider})


def input_tokens(body: dict[str, Any]) -> int:
    """Tokens of a decisions request by the simulator's own count."""
    sent = msgspec.json.encode([body["state"], body["questions"]])
    return _OVERHEAD_TOKENS + -(-len(sent.decode()) // 4)


def decisions_reply(call: Call, entry: Entry, delay_ms: float) -> Reply:
    """The answers on the wire, with their charge entered. Faults are not applied yet."""
    model, script = entry.model, call.script or ScriptedReply()
    assert model is not None
    usage: dict[str, Any] = {
        "input_tokens": input_tokens(call.body),
        "output_tokens": _output_tokens(call.body),
    }
    usage.update(script.usage)
    entry.prompt_tokens = usage["input_tokens"]
    entry.all_completion_tokens = usage["output_tokens"]
    entry.full_cost = script.cost if script.cost is not None else model.cost(entry.prompt_tokens, 0)
    usage["cost"] = script.usage.get("cost", entry.full_cost)
    answers = script.answers
    if answers is None:
        state = "\n".join(texts_of(call.body["state"]))
        said = set(texts_of(call.body["state"]))
        answers = {name: _answer(question, state, said) for name, question in call.body["questions"].items()}
        for answer in answers.values():
            if answer["type"] == "choice":
                _follow_script(answer, script)
    return Reply(
        entry=entry,
        headers=[("x-generation-id", entry.id), ("x-provider-name", model.provider), EXPOSED_HEADERS],
        document={
            "model": model.dated,
            "answers": answers,
            "usage": usage,
            "id": entry.id,
            "provider": model.provider,
        },
        headers_wait_ms=delay_ms if script.first_token_ms is None else script.first_token_ms,
        billed_cost=script.billed_cost,
        stops_when_left=False,
        charge="full",
    )


def rounded(value: float) -> float | int:
    """Two decimals, and a whole number without any, as on the wire."""
    short = round(value, 2)
    return int(short) if short == int(short) else short


def _question_problems(question: Any) -> list[tuple[list[str], str]]:
    match question:
        case {"type": "choice" | "score" | "noul" | "box"} if not isinstance(
            question.get("instructions"), str | dict | list
        ):
            return [(["instructions"], "Invalid input: expected string, object or array")]
        case {"type": "choice", "criteria": dict(criteria)}:
            if not 1 <= len(criteria) <= MOST_OPTIONS:
                return [(["criteria"], f"Invalid input: expected 1 to {MOST_OPTIONS} options")]
            return [
                (["criteria", label], "Invalid input: expected string, object, array or null")
                for label, text in criteria.items()
                if not isinstance(text, str | dict | list | None)
            ]
        case {"type": "score", "criteria": list(levels)} if levels and all(
            isinstance(level, str | dict | list) for level in levels
        ):
            return []
        case {"type": "choice" | "score"}:
            return [(["criteria"], "Invalid input")]
        case {"type": "noul"}:
            criteria = question.get("criteria", {"true": "", "false": ""})
            if isinstance(criteria, dict) and {"true", "false"} <= criteria.keys():
                return []
            return [(["criteria"], "Invalid input: expected true and false")]
        case {"type": "box"}:
            return []
        case _:
            return [(["type"], "Invalid discriminator value")]


def _issue(path: Sequence[str], message: str) -> dict[str, Any]:
    return {"code": "invalid_type", "path": list(path), "message": message}


def _issues(issues: list[dict[str, Any]]) -> str:
    return msgspec.json.format(msgspec.json.encode(issues), indent=2).decode()


def _output_tokens(body: dict[str, Any]) -> int:
    return sum(8 + 3 * len(question.get("criteria") or ()) for question in body["questions"].values())


def _answer(question: dict[str, Any], state: str, said: set[str]) -> dict[str, Any]:
    match question["type"]:
        case "choice":
            return _choice(question["criteria"], state, said)
        case "score":
            return _score(question["criteria"], state)
        case "noul":
            asked = words("\n".join(texts_of(question["instructions"])))
            return {
                "type": "noul",
                "noul": rounded(0.02 + 0.96 * len(asked & words(state)) / (len(asked) or 1)),
            }
        case _:
            box = {"top": 0.1, "bottom": 0.9, "left": 0.1, "right": 0.9}
            return {"type": "box", "box": box, "confidence": 0.8}


def _choice(criteria: dict[str, Any], state: str, said: set[str]) -> dict[str, Any]:
    labels = list(criteria)
    scores = fitness(state, [f"{label} {' '.join(texts_of(criteria[label]))}"[:2_000] for label in labels])
    # A label that stands in the state as a value of its own has had its turn.
    scores = [score / 8 if label in said else score for label, score in zip(labels, scores, strict=True)]
    probabilities = _shares(scores)
    best = probabilities.index(max(probabilities))
    return {
        "type": "choice",
        "choice": labels[best],
        # Not in the order of the request, as on the wire.
        "probabilities": {label: rounded(p) for label, p in sorted(zip(labels, probabilities, strict=True))},
        "confidence": _concentration(probabilities),
    }


def _score(levels: list[Any], state: str) -> dict[str, Any]:
    probabilities = _shares(fitness(state, [" ".join(texts_of(level)) for level in levels]))
    return {
        "type": "score",
        "score": rounded(sum(at * p for at, p in enumerate(probabilities))),
        "legend": {str(at): level for at, level in enumerate(levels)},
        "probabilities": {str(at): rounded(p) for at, p in enumerate(probabilities)},
        "confidence": _concentration(probabilities),
    }


def _shares(scores: list[float]) -> list[float]:
    weights = [(score + 0.25) ** 2 for score in scores]
    return [weight / sum(weights) for weight in weights]


def _concentration(probabilities: list[float]) -> float | int:
    count = len(probabilities)
    return rounded(1.0 if count == 1 else (max(probabilities) - 1 / count) / (1 - 1 / count))


def _follow_script(answer: dict[str, Any], script: ScriptedReply) -> None:
    if script.choice is not None:
        answer["choice"] = script.choice
        labels = answer["probabilities"]
        others = [label for label in labels if label != script.choice]
        answer["probabilities"] = {label: rounded(0.1 / len(others)) for label in others} | {
            script.choice: 0.9
        }
    if script.confidence is not None:
        answer["confidence"] = script.confidence
    if script.probabilities is not None:
        answer["probabilities"] = script.probabilities
