"""The GET routes: models, generation, key, credits."""

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from entrypoints.simulator.bill import Entry, Status, last_four
from entrypoints.simulator.call import Request
from entrypoints.simulator.prices import MODELS, Model, plain
from entrypoints.simulator.refusal import refused
from entrypoints.simulator.state import State

_TOTAL_CREDITS: Final = 100
_CHAT_PARAMETERS: Final = (
    "max_tokens",
    "parallel_tool_calls",
    "reasoning",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
)


def models(request: Request) -> dict[str, Any]:
    """GET /api/v1/models. Without `output_modalities` the decision models are left out, as on the real route."""
    wanted = request.query.get("output_modalities", "text")
    kinds = set(wanted.split(","))
    listed = [_model(model) for model in MODELS.values() if "all" in kinds or _modality(model) in kinds]
    try:
        offset = int(request.query.get("offset", "0"))
        limit = int(request.query.get("limit", str(len(listed))))
    except ValueError:
        raise refused(400, "offset and limit must be whole numbers") from None
    return {
        "data": listed[offset : offset + limit],
        "total_count": len(listed),
        "links": {"next": f"/api/v1/models?offset={offset + limit}&limit={limit}"}
        if offset + limit < len(listed)
        else {"next": None},
    }


def generation(state: State, request: Request) -> dict[str, Any]:
    """GET /api/v1/generation?id=: the bill's truth, once enough time has passed on the simulator's clock."""
    generation_id = request.query.get("id", "")
    entry = state.bill.find(generation_id)
    if entry is None or entry.key != request.bearer() or not _is_recorded(state, entry):
        raise refused(404, f"Generation {generation_id[:100]} not found")
    cost = entry.cost_now()
    ended_s = entry.ended_s or entry.accepted_s
    return {
        "data": {
            "id": entry.id,
            "model": entry.model.dated if entry.model else entry.model_id,
            "provider_name": entry.model.provider if entry.model else None,
            "total_cost": cost,
            "usage": cost,
            "tokens_prompt": entry.prompt_tokens,
            "tokens_completion": entry.completion_tokens,
            "native_tokens_prompt": entry.prompt_tokens,
            "native_tokens_completion": entry.completion_tokens,
            "native_tokens_cached": 0,
            "native_tokens_reasoning": 0,
            "cancelled": entry.status is Status.CANCELLED,
            "streamed": entry.streamed,
            "finish_reason": entry.finish_reason,
            "native_finish_reason": entry.native_finish_reason,
            "latency": round((ended_s - entry.accepted_s) * 1000),
            "generation_time": round((ended_s - entry.accepted_s) * 1000),
            "api_type": "decisions" if entry.id.startswith("gen-dec-") else "completions",
            "is_byok": False,
            "cache_discount": None,
            "upstream_inference_cost": None,
            "provider_responses": [],
            "session_id": None,
            "external_user": None,
            "created_at": datetime.fromtimestamp(entry.accepted_s, UTC).isoformat(),
        }
    }


def key(state: State, request: Request) -> dict[str, Any]:
    """GET /api/v1/key."""
    bearer = request.bearer() or ""
    used = _used(state.bill, bearer)
    return {
        "data": {
            "label": f"sk-or-v1-…{last_four(bearer)[1:]}",
            "limit": None,
            "limit_remaining": None,
            "limit_reset": None,
            "usage": used,
            "usage_daily": used,
            "usage_weekly": used,
            "usage_monthly": used,
            "byok_usage": 0,
            "is_free_tier": False,
            "free_model_daily_requests": {"used": 0, "limit": 50, "remaining": 50},
            "budgets": [],
            "effective_budget": None,
            "rate_limit": {"requests": -1, "interval": "10s", "note": "This field is deprecated."},
            "expires_at": None,
        }
    }


def credits(state: State, request: Request) -> dict[str, Any]:  # noqa: A001  the route's own name
    """GET /api/v1/credits. Usage lags as the records of /generation do."""
    recorded = (entry for entry in state.bill if _is_recorded(state, entry))
    return {"data": {"total_credits": _TOTAL_CREDITS, "total_usage": _used(recorded, request.bearer() or "")}}


def _used(entries: Iterable[Entry], bearer: str) -> Decimal:
    return sum((entry.cost_now() for entry in entries if entry.key == bearer), Decimal(0))


def _is_recorded(state: State, entry: Entry) -> bool:
    if entry.ended_s is None or entry.record_delay_ms is None:
        return False
    return state.clock.now_s() - entry.ended_s >= entry.record_delay_ms / 1000


def _modality(model: Model) -> str:
    return "decisions" if model.decisions else "text"


def _model(model: Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "canonical_slug": model.dated,
        "hugging_face_id": "",
        "name": model.name,
        "created": 1_747_930_371,
        "description": f"{model.name}, as simulated",
        "context_length": model.context_length,
        "architecture": {
            "modality": f"text->{_modality(model)}",
            "input_modalities": ["text"],
            "output_modalities": [_modality(model)],
            "tokenizer": "Other",
            "instruct_type": None,
        },
        "pricing": {
            "prompt": plain(model.prompt_usd),
            "completion": plain(model.completion_usd),
            "request": "0",
            "image": "0",
        },
        "top_provider": {
            "context_length": model.context_length,
            "max_completion_tokens": model.max_completion_tokens,
            "is_moderated": False,
        },
        "per_request_limits": None,
        "supported_parameters": [] if model.decisions else list(_CHAT_PARAMETERS),
        "default_parameters": {},
        "expiration_date": None,
        "links": {"details": f"/api/v1/models/{model.dated}/endpoints"},
    }
