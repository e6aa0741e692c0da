"""The turn's one read: session, bindings, budgets and sealed keys in one statement."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args, get_origin
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import (
    JSON,
    ColumnElement,
    Integer,
    ScalarSelect,
    Text,
    Uuid,
    and_,
    bindparam,
    cast,
    column,
    func,
    literal_column,
    or_,
    select,
)

from adapters.postgres.gathered import GatheredReads
from adapters.postgres.pool import PATIENCE_S, Pool, as_query, fetch_row_from_the_living
from adapters.postgres.tables import (
    agent_areas,
    budgets,
    model_bindings,
    models,
    projects,
    sessions,
    user_credentials,
    workspaces,
)
from application.ports.credential_vault import SealedKey
from application.ports.turn_context import ContextUnavailable, TurnContext, TurnContexts
from domain.agents import CREATIVE, area_of
from domain.binding import Bindings, BindingScope, BoundModel
from domain.budget import Budget, BudgetPolicy, BudgetScope
from domain.provider import Provider, RoutingPreference
from domain.usage import Prices


class _BindingRow(msgspec.Struct, array_like=True):
    scope: BindingScope
    scope_id: str
    routing_preference: str | None
    model_id: UUID
    provider: str
    model_name: str
    input_price: int
    output_price: int
    availability: str
    supports_tool_calling: bool
    manual_pricing: bool
    max_output_tokens: int | None


class _BudgetRow(msgspec.Struct, array_like=True):
    id: UUID
    is_of_project: bool
    limit_micros: int
    spent_micros: int
    policy: str
    strict: bool
    held_micros: int


class _AreaRow(msgspec.Struct, array_like=True):
    id: UUID
    limit_micros: int
    spent_micros: int


class _KeyRow(msgspec.Struct, array_like=True):
    provider: str
    wrapped_dek: str
    dek_iv: str
    dek_auth_tag: str
    encrypted_api_key: str
    api_key_iv: str
    api_key_auth_tag: str


class _ContextRow(msgspec.Struct, array_like=True):
    workspace_id: UUID
    bindings: list[_BindingRow]
    budgets: list[_BudgetRow]
    area: _AreaRow | None
    keys: list[_KeyRow]


class _AskedRow(msgspec.Struct):
    """One who asks, as the statement takes it: whose context, and what it is looked up by. `at` tells them apart."""

    at: int
    session_id: UUID
    project_id: UUID
    agent: str | None
    creative: str
    area: str | None
    area_key: str | None


_asked: Final = (
    func.json_to_recordset(cast(bindparam("asked", type_=Text), JSON))
    .table_valued(
        column("at", Integer),
        column("session_id", Uuid),
        column("project_id", Uuid),
        *(column(name, Text) for name in ("agent", "creative", "area", "area_key")),
    )
    .render_derived(name="asked", with_types=True)
)


def _json_rows(*columns: Any) -> ColumnElement[Any]:
    return func.coalesce(func.json_agg(func.json_build_array(*columns)), literal_column("'[]'::json"))


def _bound_to(scope: BindingScope, scope_id: ColumnElement[Any]) -> ColumnElement[bool]:
    return and_(model_bindings.c.scope == literal_column(f"'{scope}'"), model_bindings.c.scope_id == scope_id)


def _bindings() -> ScalarSelect[Any]:
    return (
        select(
            _json_rows(
                model_bindings.c.scope,
                model_bindings.c.scope_id,
                model_bindings.c.routing_preference,
                models.c.id,
                models.c.provider,
                models.c.name,
                models.c.input_price_per_million_micros,
                models.c.output_price_per_million_micros,
                models.c.availability,
                models.c.supports_tool_calling,
                models.c.manual_pricing,
                models.c.max_output_tokens,
            )
        )
        .select_from(model_bindings.join(models, models.c.id == model_bindings.c.model_id))
        .where(
            or_(
                _bound_to(BindingScope.SESSION, cast(sessions.c.id, Text)),
                _bound_to(BindingScope.AGENT, _asked.c.agent),
                _bound_to(BindingScope.AGENT, _asked.c.creative),
                _bound_to(BindingScope.AREA, _asked.c.area),
                _bound_to(BindingScope.PROJECT, cast(projects.c.id, Text)),
                _bound_to(BindingScope.WORKSPACE, cast(workspaces.c.id, Text)),
            )
        )
        .scalar_subquery()
    )


def _budgets() -> ScalarSelect[Any]:
    return (
        select(
            _json_rows(
                budgets.c.id,
                budgets.c.project_id.is_not(None),
                budgets.c.limit_micros,
                budgets.c.spent_micros,
                budgets.c.policy,
                budgets.c.strict,
                budgets.c.held_micros,
            )
        )
        .where(or_(budgets.c.project_id == projects.c.id, budgets.c.session_id == sessions.c.id))
        .scalar_subquery()
    )


def _area() -> ScalarSelect[Any]:
    return (
        select(
            func.json_build_array(agent_areas.c.id, agent_areas.c.budget_micros, agent_areas.c.spent_micros)
        )
        .where(
            agent_areas.c.project_id == projects.c.id,
            agent_areas.c.key == _asked.c.area_key,
            agent_areas.c.budget_micros.is_not(None),
        )
        .scalar_subquery()
    )


def _keys() -> ScalarSelect[Any]:
    return (
        select(
            _json_rows(
                user_credentials.c.provider,
                user_credentials.c.wrapped_dek,
                user_credentials.c.dek_iv,
                user_credentials.c.dek_auth_tag,
                user_credentials.c.encrypted_api_key,
                user_credentials.c.api_key_iv,
                user_credentials.c.api_key_auth_tag,
            )
        )
        .where(user_credentials.c.user_id == workspaces.c.created_by)
        .scalar_subquery()
    )


# JSON keeps labels that this program does not know as plain text, and every bigint exact.
_READ: Final = as_query(
    select(
        cast(
            _json_rows(
                _asked.c.at,
                func.json_build_array(workspaces.c.id, _bindings(), _budgets(), _area(), _keys()),
            ),
            Text,
        )
    ).select_from(
        _asked.join(sessions, sessions.c.id == _asked.c.session_id)
        .join(
            projects,
            and_(projects.c.id == sessions.c.project_id, projects.c.id == _asked.c.project_id),
        )
        .join(workspaces, workspaces.c.id == projects.c.workspace_id)
    )
)

_rows: Final = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]])
_decoder: Final = msgspec.json.Decoder(_ContextRow)
_encode: Final = msgspec.json.Encoder().encode

_READS_AT_ONCE: Final = 4
"""What one of them brings the next need not wait for, and connections are left for others."""

_PROVIDERS: Final = {str(provider): provider for provider in Provider}
_PREFERENCES: Final = {str(preference): preference for preference in RoutingPreference}


class PostgresTurnContexts(TurnContexts):
    """Reads contexts on a pool that somebody else opens and closes: those that are asked for together, together.

    `patience_s` bounds a read, waiting included.
    """

    def __init__(self, pool: Pool, *, patience_s: float = PATIENCE_S) -> None:
        self._pool = pool
        self._patience_s = patience_s
        self._reads = GatheredReads(self._read, at_once=_READS_AT_ONCE)

    async def read(self, session_id: UUID, project_id: UUID, agent: str | None) -> TurnContext | None:
        area = area_of(agent)
        creative = f"{project_id}:{CREATIVE}"
        asked = _AskedRow(
            at=0,
            session_id=session_id,
            project_id=project_id,
            agent=None if agent is None else f"{project_id}:{agent}",
            creative=creative,
            area=None if area is None else f"{project_id}:{area}",
            area_key=area,
        )
        deadline_s = asyncio.get_running_loop().time() + self._patience_s
        try:
            row = await self._reads.ask(asked, deadline_s=deadline_s)
        except psycopg.Error as error:
            # The server's own words are for the operator: the pool logs what keeps it from connecting.
            raise ContextUnavailable(
                f"the database did not give it within {self._patience_s:g} s "
                f"({type(error).__name__}, SQLSTATE {error.sqlstate})"
            ) from error
        if row is None:
            return None
        try:
            context = _decoder.decode(row)
        except msgspec.DecodeError as error:
            # Without its cause, whose text may quote what the database holds.
            raise ContextUnavailable(
                f"the database holds null, or no value that can be used, as {_field_of(error)}: set it"
            ) from None
        return TurnContext(
            workspace_id=context.workspace_id,
            bindings=_bindings_of(context.bindings, agent, creative),
            budgets=_budgets_of(context),
            sealed_keys=_sealed_keys_of(context.keys),
        )

    async def _read(self, asked: Sequence[_AskedRow], deadline_s: float) -> Sequence[msgspec.Raw | None]:
        for at, row in enumerate(asked):
            row.at = at
        parameters = {"asked": _encode(asked).decode()}
        found = await fetch_row_from_the_living(self._pool, _READ, parameters, deadline_s=deadline_s)
        assert found is not None, "an aggregate has a row"
        contexts = dict(_rows.decode(found[0]))
        return [contexts.get(at) for at in range(len(asked))]


def _field_of(error: msgspec.DecodeError) -> str:
    """The field that did not decode, by the names of our rows: msgspec gives its path in positions."""
    names: list[str] = []
    type_: Any = _ContextRow
    for position in re.findall(r"\[(\d+)\]", str(error).rpartition(" - at ")[2]):
        element_types = get_args(type_)  # of a list, or of a struct that may be missing
        if get_origin(type_) is list:
            (type_,) = element_types
        else:
            field = msgspec.structs.fields(element_types[0] if element_types else type_)[int(position)]
            names.append(field.name)
            type_ = field.type
    return ".".join(names) or "the whole row"


def _bindings_of(rows: Iterable[_BindingRow], agent: str | None, creative_scope_id: str) -> Bindings:
    by_scope: list[BoundModel] = []
    creative: BoundModel | None = None
    for row in rows:
        bound = _bound_model_of(row)
        if bound is None:
            continue
        if agent != CREATIVE and row.scope is BindingScope.AGENT and row.scope_id == creative_scope_id:
            creative = bound
        else:
            by_scope.append(bound)
    return Bindings(by_scope, creative)


def _bound_model_of(row: _BindingRow) -> BoundModel | None:
    """The binding; None for a provider that was added after this program was written: it serves no turn."""
    provider = _PROVIDERS.get(row.provider)
    if provider is None:
        return None
    return BoundModel(
        scope=row.scope,
        model_id=row.model_id,
        provider=provider,
        name=row.model_name,
        prices=Prices(row.input_price, row.output_price),
        is_available=row.availability != "unavailable",
        supports_tool_calling=row.supports_tool_calling,
        routing_preference=_PREFERENCES.get(row.routing_preference or ""),
        is_priced=not row.manual_pricing or row.input_price > 0 or row.output_price > 0,
        max_output_tokens=row.max_output_tokens,
    )


def _budgets_of(context: _ContextRow) -> list[Budget]:
    found = [
        Budget(
            id=row.id,
            scope=BudgetScope.PROJECT if row.is_of_project else BudgetScope.SESSION,
            limit_micros=row.limit_micros,
            spent_micros=row.spent_micros,
            policy=BudgetPolicy.ALLOW if row.policy == BudgetPolicy.ALLOW else BudgetPolicy.BLOCK,
            is_strict=row.strict,
            held_micros=row.held_micros,
        )
        for row in sorted(context.budgets, key=lambda row: not row.is_of_project)
    ]
    if (area := context.area) is not None:
        found.append(
            Budget(
                id=area.id,
                scope=BudgetScope.AREA,
                limit_micros=area.limit_micros,
                spent_micros=area.spent_micros,
            )
        )
    return found


def _sealed_keys_of(rows: Iterable[_KeyRow]) -> dict[Provider, SealedKey]:
    """By provider; the owner's keys for other things (github, gitlab, …) are no turn's."""
    return {
        _PROVIDERS[row.provider]: SealedKey(
            row.wrapped_dek,
            row.dek_iv,
            row.dek_auth_tag,
            row.encrypted_api_key,
            row.api_key_iv,
            row.api_key_auth_tag,
        )
        for row in rows
        if row.provider in _PROVIDERS
    }
