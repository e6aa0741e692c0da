"""What `brabo init` makes and `brabo doctor` looks at, in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar
from uuid import UUID, uuid4

from application.ports.credential_vault import SealedKey
from application.ports.diagnosis import Diagnosis, StoredBinding, StoredKey
from application.ports.first_steps import (
    FirstStepsStore,
    FirstStepsUnit,
    Found,
    FoundBudget,
    FoundModel,
    FoundWorkspace,
    NewModel,
)
from application.ports.model_catalogue import CatalogueUnavailable, ModelCatalogue, OfferedModel
from domain.binding import BindingScope
from domain.provider import Provider
from domain.usage import Prices

_Key = TypeVar("_Key")


@dataclass(slots=True)
class InMemoryInstallation(FirstStepsStore, FirstStepsUnit, Diagnosis):
    """One world of rows, which may be read and changed directly."""

    users: dict[str, UUID] = field(default_factory=dict)
    """By address, in lower case."""
    workspaces: dict[str, FoundWorkspace] = field(default_factory=dict)
    """By slug."""
    projects: dict[tuple[UUID, str], UUID] = field(default_factory=dict)
    sessions: dict[tuple[UUID, str], UUID] = field(default_factory=dict)
    """Those that are open, by project and name."""
    models: dict[tuple[str, str], FoundModel] = field(default_factory=dict)
    """By provider and name."""
    unavailable: set[UUID] = field(default_factory=set)
    """Models that the provider no longer offers."""
    bound: dict[tuple[str, str], UUID] = field(default_factory=dict)
    """Models, by scope and what the binding is of."""
    budgets: dict[UUID, FoundBudget] = field(default_factory=dict)
    """By project."""
    sealed: dict[tuple[UUID, str], SealedKey] = field(default_factory=dict, repr=False)
    """By user and provider."""
    names: dict[UUID, str | None] = field(default_factory=dict)
    """Of users, workspaces, projects and sessions."""
    creators: dict[UUID, UUID] = field(default_factory=dict)
    """Who made a workspace, project or session, and who bound a workspace last."""

    @contextmanager
    def begin(self) -> Iterator[FirstStepsUnit]:
        before = {part.name: deepcopy(getattr(self, part.name)) for part in fields(self)}
        try:
            yield self
        except BaseException:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def user(self, email: str, name: str | None) -> Found:
        return self._find_or_add(self.users, email.lower(), name)

    def workspace(self, slug: str, name: str, owner_id: UUID) -> FoundWorkspace:
        if slug in self.workspaces:
            return self.workspaces[slug]
        new = FoundWorkspace(uuid4(), owner_id, is_new=True)
        self.names[new.id], self.creators[new.id] = name, owner_id
        self.workspaces[slug] = FoundWorkspace(new.id, owner_id, is_new=False)
        return new

    def project(self, workspace_id: UUID, slug: str, name: str, creator_id: UUID) -> Found:
        return self._find_or_add(self.projects, (workspace_id, slug), name, creator_id)

    def session(self, project_id: UUID, name: str, creator_id: UUID) -> Found:
        return self._find_or_add(self.sessions, (project_id, name), name, creator_id)

    def known_model(self, provider: Provider, name: str) -> FoundModel | None:
        return self.models.get((provider, name))

    def model(self, model: NewModel) -> FoundModel:
        known = self.known_model(model.provider, model.name)
        if known is not None:
            return known
        new = FoundModel(
            uuid4(),
            model.provider,
            model.name,
            model.prices,
            model.has_manual_prices,
            model.supports_tool_calling,
            is_new=True,
        )
        self.models[model.provider, model.name] = replace(new, is_new=False)
        return new

    def price(self, model: FoundModel, prices: Prices, *, by_user_id: UUID | None) -> FoundModel:
        known = self.models[model.provider, model.name]
        if known.prices == Prices(0, 0):
            known = replace(known, prices=prices, has_manual_prices=by_user_id is not None)
            self.models[model.provider, model.name] = known
        return known

    def bound_model(self, workspace_slug: str) -> FoundModel | None:
        workspace = self.workspaces.get(workspace_slug)
        bound = self.bound.get((BindingScope.WORKSPACE, str(workspace.id))) if workspace else None
        return next((model for model in self.models.values() if model.id == bound), None)

    def bind(self, workspace_id: UUID, model_id: UUID, creator_id: UUID) -> None:
        self.bound[BindingScope.WORKSPACE, str(workspace_id)] = model_id
        self.creators[workspace_id] = creator_id

    def has_budget(self, workspace_slug: str, project_slug: str) -> bool:
        workspace = self.workspaces.get(workspace_slug)
        project_id = self.projects.get((workspace.id, project_slug)) if workspace else None
        return project_id in self.budgets

    def budget(self, project_id: UUID, limit_micros: int) -> FoundBudget:
        if project_id in self.budgets:
            return self.budgets[project_id]
        new = FoundBudget(uuid4(), limit_micros, is_new=True)
        self.budgets[project_id] = FoundBudget(new.id, limit_micros, is_new=False)
        return new

    def sealed_key(self, user_id: UUID, provider: Provider) -> SealedKey | None:
        return self.sealed.get((user_id, provider))

    def keep_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None:
        self.sealed[user_id, provider] = sealed

    def keys(self) -> Sequence[StoredKey]:
        emails = {user_id: email for email, user_id in self.users.items()}
        found = [
            StoredKey(emails[user_id], str(provider), sealed)
            for (user_id, provider), sealed in self.sealed.items()
        ]
        return sorted(found, key=lambda key: (key.owner_email, key.provider))

    def bindings(self) -> Sequence[StoredBinding]:
        models = {model.id: model for model in self.models.values()}
        return [
            StoredBinding(
                str(scope),
                scope_id,
                str(models[model_id].provider),
                models[model_id].name,
                model_id not in self.unavailable,
            )
            for (scope, scope_id), model_id in sorted(self.bound.items())
        ]

    def _find_or_add(
        self, known: dict[_Key, UUID], key: _Key, name: str | None, creator_id: UUID | None = None
    ) -> Found:
        if key in known:
            return Found(known[key], is_new=False)
        known[key] = new_id = uuid4()
        self.names[new_id] = name
        if creator_id is not None:
            self.creators[new_id] = creator_id
        return Found(new_id, is_new=True)


@dataclass(slots=True)
class InMemoryCatalogue(ModelCatalogue):
    """Lists by provider; a provider without one does not answer. `asked` says who was, in order."""

    lists: dict[Provider, Mapping[str, OfferedModel] | None] = field(default_factory=dict)
    asked: list[Provider] = field(default_factory=list)

    def offered(self, provider: Provider) -> Mapping[str, OfferedModel] | None:
        self.asked.append(provider)
        if provider not in self.lists:
            raise CatalogueUnavailable(f"{provider} cannot be reached.")
        return self.lists[provider]
