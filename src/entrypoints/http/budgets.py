"""The routes of budgets and areas."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

import msgspec
from litestar import Response, get, put
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from msgspec import UNSET, UnsetType

from application.ports.agent_areas import AgentArea
from application.ports.budgets import BudgetOwner, CannotBeStrict, OwnedBudget
from domain.budget import LIMIT_MICROS_MAX, BudgetPolicy
from domain.usage import to_micros
from entrypoints.container import Container
from entrypoints.http.openapi import (
    LimitAgentAreaOperation,
    ReadAgentAreasOperation,
    ReadProjectBudgetOperation,
    ReadSessionBudgetOperation,
    SetProjectBudgetOperation,
    SetSessionBudgetOperation,
)
from entrypoints.http.owners_requests import AnyRequest, caller_of, decoded, id_of
from entrypoints.http.wire import BadBody

_BUDGET_LIKE: Final = '{"limitUsd": 2.5, "policy": "block"} or {"limitMicros": 2500000}'
_AREA_LIKE: Final = '{"limitUsd": 2.5}, {"limitMicros": 2500000} or {"limitUsd": null}'
_LIMIT_USD_MAX: Final = LIMIT_MICROS_MAX // 1_000_000
_HOLDS_NOTHING: Final = (
    "A strict budget needs a limit above 0 and the policy `block`, since it holds what turns may cost: send such a "
    'limit and `"policy": "block"`, or `"strict": false`.'
)
_NOT_STORED: Final = {"Cache-Control": "no-store"}

_Micros = Annotated[int, msgspec.Meta(ge=0, le=LIMIT_MICROS_MAX)]


class WireExcess(msgspec.Struct, frozen=True):
    """Turns that came to more than was held for them, and how many micro-USD more in all."""

    turns: int
    micros: int


class WireBudget(msgspec.Struct, frozen=True, rename="camel"):
    """A budget, in micro-USD."""

    limit_micros: int
    spent_micros: int
    policy: BudgetPolicy
    last_threshold_notified: int
    strict: bool
    held_micros: int
    excess: WireExcess


class WireArea(msgspec.Struct, frozen=True, rename="camel"):
    """An area, in micro-USD."""

    key: str
    limit_micros: int | None
    spent_micros: int


class WireAreas(msgspec.Struct, frozen=True):
    """A project's areas."""

    items: list[WireArea]


class _LimitBody(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly one of both. The dollars keep their text: a binary float would not be what was sent."""

    limit_usd: msgspec.Raw | UnsetType = UNSET
    limit_micros: _Micros | UnsetType | None = UNSET


class _BudgetBody(_LimitBody, frozen=True, rename="camel"):
    policy: BudgetPolicy | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class _AreaBody(_LimitBody, frozen=True, rename="camel"):
    strict: msgspec.Raw | UnsetType = UNSET
    """Of no area: a ceiling holds nothing."""


def budget_routes(container: Container) -> list[HTTPRouteHandler]:
    """The routes over these parts."""
    tokens = container.user_tokens()
    read_budget = container.read_budget()
    set_budget = container.set_budget()
    read_agent_areas = container.read_agent_areas()
    limit_agent_area = container.limit_agent_area()

    async def written(request: AnyRequest, owner: BudgetOwner) -> Response[WireBudget]:
        user_id = caller_of(request, tokens)
        wanted = decoded(await request.body(), _BudgetBody, like=_BUDGET_LIKE)
        limit_micros = _limit_of(wanted, like=_BUDGET_LIKE)
        if limit_micros is None:
            raise BadBody(f"The body must be {_BUDGET_LIKE}: a limit is a number; 0 is no limit.")
        try:
            budget = await set_budget(
                user_id,
                owner,
                limit_micros=limit_micros,
                policy=None if wanted.policy is UNSET else wanted.policy,
                is_strict=None if wanted.strict is UNSET else wanted.strict,
            )
        except CannotBeStrict:
            raise BadBody(_HOLDS_NOTHING) from None
        return _budget(budget)

    @get(
        "/projects/{project_id:str}/budget",
        operation_class=ReadProjectBudgetOperation,
        summary="Read a project's budget",
        tags=["owners"],
    )
    async def read_of_project(request: AnyRequest, project_id: FromPath[str]) -> Response[WireBudget]:
        """The project's budget, and what was spent of it."""
        return _budget(await read_budget(caller_of(request, tokens), BudgetOwner(id_of(project_id))))

    @put(
        "/projects/{project_id:str}/budget",
        operation_class=SetProjectBudgetOperation,
        summary="Set a project's budget",
        tags=["owners"],
    )
    async def set_of_project(request: AnyRequest, project_id: FromPath[str]) -> Response[WireBudget]:
        """Set the project's budget, or make it, from the next turn on."""
        return await written(request, BudgetOwner(id_of(project_id)))

    @get(
        "/projects/{project_id:str}/sessions/{session_id:str}/budget",
        operation_class=ReadSessionBudgetOperation,
        summary="Read a session's budget",
        tags=["owners"],
    )
    async def read_of_session(
        request: AnyRequest, project_id: FromPath[str], session_id: FromPath[str]
    ) -> Response[WireBudget]:
        """The session's budget, and what was spent of it."""
        owner = BudgetOwner(id_of(project_id), id_of(session_id))
        return _budget(await read_budget(caller_of(request, tokens), owner))

    @put(
        "/projects/{project_id:str}/sessions/{session_id:str}/budget",
        operation_class=SetSessionBudgetOperation,
        summary="Set a session's budget",
        tags=["owners"],
    )
    async def set_of_session(
        request: AnyRequest, project_id: FromPath[str], session_id: FromPath[str]
    ) -> Response[WireBudget]:
        """Set the session's budget, or make it, from the next turn on."""
        return await written(request, BudgetOwner(id_of(project_id), id_of(session_id)))

    @get(
        "/projects/{project_id:str}/agent-areas",
        operation_class=ReadAgentAreasOperation,
        summary="List a project's areas",
        tags=["owners"],
    )
    async def read_areas(request: AnyRequest, project_id: FromPath[str]) -> Response[WireAreas]:
        """The areas of the project's agents, with their ceilings and what they have spent."""
        areas = await read_agent_areas(caller_of(request, tokens), id_of(project_id))
        return Response(WireAreas([_wire_area(area) for area in areas]), headers=_NOT_STORED)

    @put(
        "/projects/{project_id:str}/agent-areas/{key:str}/budget",
        operation_class=LimitAgentAreaOperation,
        summary="Set an area's ceiling",
        tags=["owners"],
    )
    async def limit_area(
        request: AnyRequest, project_id: FromPath[str], key: FromPath[str]
    ) -> Response[WireArea]:
        """Set what the area may spend, or take its ceiling away, from the next turn on."""
        user_id = caller_of(request, tokens)
        wanted = decoded(await request.body(), _AreaBody, like=_AREA_LIKE)
        if wanted.strict is not UNSET and bytes(wanted.strict).strip() != b"false":
            raise BadBody(f"The body must be {_AREA_LIKE}: an area's ceiling cannot be `strict`.")
        limit_micros = _limit_of(wanted, like=_AREA_LIKE)
        area = await limit_agent_area(user_id, id_of(project_id), key, limit_micros=limit_micros)
        return Response(_wire_area(area), headers=_NOT_STORED)

    return [read_of_project, set_of_project, read_of_session, set_of_session, read_areas, limit_area]


def _limit_of(body: _LimitBody, *, like: str) -> int | None:
    """Micro-USD; None for a null. Raises BadBody."""
    if (body.limit_usd is UNSET) is (body.limit_micros is UNSET):
        raise BadBody(f"The body must be {like}: it takes one of `limitUsd` and `limitMicros`, and not both.")
    if body.limit_usd is UNSET:
        assert body.limit_micros is not UNSET
        return body.limit_micros
    text = bytes(body.limit_usd).decode().strip()
    if text == "null":
        return None
    usd = _number(text)
    if usd is None or not 0 <= usd <= _LIMIT_USD_MAX:
        raise BadBody(f"The body must be {like}: `limitUsd` is a number from 0 to {_LIMIT_USD_MAX}.")
    micros = to_micros(usd)
    if usd and not micros:
        raise BadBody(
            f"The body must be {like}: `limitUsd` is less than a micro-USD, and 0 would be no limit at all."
        )
    return micros


def _number(text: str) -> Decimal | None:
    """The JSON number, exactly; None for anything else, or an exponent that has no meaning."""
    if text[:1] not in "-0123456789":
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _budget(budget: OwnedBudget) -> Response[WireBudget]:
    body = WireBudget(
        budget.limit_micros,
        budget.spent_micros,
        budget.policy,
        budget.last_threshold_notified,
        budget.is_strict,
        budget.held_micros,
        WireExcess(budget.excess_turns, budget.excess_micros),
    )
    return Response(body, headers=_NOT_STORED)


def _wire_area(area: AgentArea) -> WireArea:
    return WireArea(area.key, area.limit_micros, area.spent_micros)
