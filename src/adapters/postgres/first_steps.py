"""First steps in PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection, Executable, FromClause, Select, Table, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.types import Text

from adapters.postgres.one_command import transaction
from adapters.postgres.tables import (
    budgets,
    model_bindings,
    model_price_changes,
    models,
    projects,
    sessions,
    user_credentials,
    users,
    workspace_members,
    workspaces,
)
from application.ports.credential_vault import SealedKey
from application.ports.first_steps import (
    FirstStepsStore,
    FirstStepsUnit,
    Found,
    FoundBudget,
    FoundModel,
    FoundWorkspace,
    NewModel,
)
from domain.binding import BindingScope
from domain.provider import Provider
from domain.usage import Prices

_ADVISORY_LOCK: Final = int.from_bytes(b"brabo-1s")

_MODEL_COLUMNS: Final = (
    models.c.id,
    cast(models.c.provider, Text).label("provider"),
    models.c.name,
    models.c.input_price_per_million_micros,
    models.c.output_price_per_million_micros,
    models.c.manual_pricing,
    models.c.supports_tool_calling,
)
_SEALED_COLUMNS: Final = (
    user_credentials.c.wrapped_dek,
    user_credentials.c.dek_iv,
    user_credentials.c.dek_auth_tag,
    user_credentials.c.encrypted_api_key,
    user_credentials.c.api_key_iv,
    user_credentials.c.api_key_auth_tag,
)


class PostgresFirstSteps(FirstStepsStore):
    """Opens a connection a unit."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    @contextmanager
    def begin(self) -> Iterator[FirstStepsUnit]:
        with transaction(self._database_url) as connection:
            connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            yield _Unit(connection)


class _Unit(FirstStepsUnit):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def user(self, email: str, name: str | None) -> Found:
        known = select(users.c.id).where(func.lower(users.c.email) == func.lower(email))
        return self._find(known) or self._add(users, email=email, name=name)

    def workspace(self, slug: str, name: str, owner_id: UUID) -> FoundWorkspace:
        row = self._connection.execute(
            select(workspaces.c.id, workspaces.c.created_by).where(workspaces.c.slug == slug)
        ).one_or_none()
        if row is not None:
            return FoundWorkspace(row.id, row.created_by, is_new=False)
        added = self._add(workspaces, slug=slug, name=name, created_by=owner_id)
        self._connection.execute(
            insert(workspace_members).values(workspace_id=added.id, user_id=owner_id, role="owner")
        )
        return FoundWorkspace(added.id, owner_id, is_new=True)

    def project(self, workspace_id: UUID, slug: str, name: str, creator_id: UUID) -> Found:
        known = select(projects.c.id).where(projects.c.workspace_id == workspace_id, projects.c.slug == slug)
        return self._find(known) or self._add(
            projects,
            workspace_id=workspace_id,
            slug=slug,
            name=name,
            workspace_dir_name=f"{slug}-{workspace_id.hex}",
            created_by=creator_id,
        )

    def session(self, project_id: UUID, name: str, creator_id: UUID) -> Found:
        known = (
            select(sessions.c.id)
            .where(
                sessions.c.project_id == project_id,
                sessions.c.name == name,
                sessions.c.status.in_(("created", "active")),
            )
            .order_by(sessions.c.created_at, sessions.c.id)
            .limit(1)
        )
        return self._find(known) or self._add(
            sessions, project_id=project_id, name=name, created_by=creator_id
        )

    def known_model(self, provider: Provider, name: str) -> FoundModel | None:
        return self._model(
            select(*_MODEL_COLUMNS).where(models.c.provider == provider.value, models.c.name == name)
        )

    def model(self, model: NewModel) -> FoundModel:
        known = self.known_model(model.provider, model.name)
        if known is not None:
            return known
        added = self._add(
            models,
            provider=model.provider.value,
            name=model.name,
            display_name=model.display_name,
            input_price_per_million_micros=model.prices.input_per_million_micros,
            output_price_per_million_micros=model.prices.output_per_million_micros,
            manual_pricing=model.has_manual_prices,
            context_window=model.context_window,
            max_output_tokens=model.max_output_tokens,
            supports_tool_calling=model.supports_tool_calling,
        )
        return FoundModel(
            added.id,
            model.provider,
            model.name,
            model.prices,
            model.has_manual_prices,
            model.supports_tool_calling,
            is_new=True,
        )

    def price(self, model: FoundModel, prices: Prices, *, by_user_id: UUID | None) -> FoundModel:
        is_manual = by_user_id is not None
        priced = self._connection.execute(
            update(models)
            .values(
                input_price_per_million_micros=prices.input_per_million_micros,
                output_price_per_million_micros=prices.output_per_million_micros,
                manual_pricing=is_manual,
                updated_at=func.now(),
            )
            .where(
                models.c.id == model.id,
                models.c.input_price_per_million_micros == 0,
                models.c.output_price_per_million_micros == 0,
            )
        )
        if priced.rowcount:
            self._add(
                model_price_changes,
                model_id=model.id,
                input_before_micros=0,
                input_after_micros=prices.input_per_million_micros,
                output_before_micros=0,
                output_after_micros=prices.output_per_million_micros,
                source="manual" if is_manual else "sync",
                changed_by=by_user_id,
            )
        return self._model(select(*_MODEL_COLUMNS).where(models.c.id == model.id)) or model

    def bound_model(self, workspace_slug: str) -> FoundModel | None:
        of_workspace = (model_bindings.c.scope == BindingScope.WORKSPACE.value) & (
            model_bindings.c.scope_id == cast(workspaces.c.id, Text)
        )
        bound: FromClause = workspaces.join(model_bindings, of_workspace).join(
            models, models.c.id == model_bindings.c.model_id
        )
        return self._model(
            select(*_MODEL_COLUMNS).select_from(bound).where(workspaces.c.slug == workspace_slug)
        )

    def bind(self, workspace_id: UUID, model_id: UUID, creator_id: UUID) -> None:
        new = upsert(model_bindings).values(
            scope=BindingScope.WORKSPACE.value,
            scope_id=str(workspace_id),
            model_id=model_id,
            created_by=creator_id,
        )
        self._connection.execute(
            new.on_conflict_do_update(
                index_elements=["scope", "scope_id"],
                set_={"model_id": new.excluded.model_id, "updated_at": func.now()},
            )
        )

    def has_budget(self, workspace_slug: str, project_slug: str) -> bool:
        known = (
            select(budgets.c.id)
            .join(projects, projects.c.id == budgets.c.project_id)
            .join(workspaces, workspaces.c.id == projects.c.workspace_id)
            .where(workspaces.c.slug == workspace_slug, projects.c.slug == project_slug)
        )
        return self._find(known) is not None

    def budget(self, project_id: UUID, limit_micros: int) -> FoundBudget:
        row = self._connection.execute(
            select(budgets.c.id, budgets.c.limit_micros).where(budgets.c.project_id == project_id)
        ).one_or_none()
        if row is not None:
            return FoundBudget(row.id, row.limit_micros, is_new=False)
        added = self._add(budgets, project_id=project_id, limit_micros=limit_micros)
        return FoundBudget(added.id, limit_micros, is_new=True)

    def sealed_key(self, user_id: UUID, provider: Provider) -> SealedKey | None:
        row = self._connection.execute(
            select(*_SEALED_COLUMNS).where(
                user_credentials.c.user_id == user_id, user_credentials.c.provider == provider.value
            )
        ).one_or_none()
        return None if row is None else SealedKey(*row)

    def keep_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None:
        parts = {column.name: getattr(sealed, column.name) for column in _SEALED_COLUMNS}
        values = update(user_credentials).values(**parts, key_id=None, updated_at=func.now())
        replaced = self._connection.execute(
            values.where(user_credentials.c.user_id == user_id, user_credentials.c.provider == provider.value)
        )
        if not replaced.rowcount:
            self._add(user_credentials, user_id=user_id, provider=provider.value, **parts)

    def _find(self, query: Select[Any]) -> Found | None:
        known = self._connection.scalar(query)
        return None if known is None else Found(known, is_new=False)

    def _add(self, table: Table, **values: object) -> Found:
        made = insert(table).values(**values).returning(table.c.id)
        return Found(self._connection.execute(made).scalar_one(), is_new=True)

    def _model(self, query: Executable) -> FoundModel | None:
        row = self._connection.execute(query).one_or_none()
        if row is None:
            return None
        prices = Prices(row.input_price_per_million_micros, row.output_price_per_million_micros)
        return FoundModel(
            row.id,
            row.provider,
            row.name,
            prices,
            row.manual_pricing,
            row.supports_tool_calling,
            is_new=False,
        )
