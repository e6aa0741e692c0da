"""Everything a first turn needs, made once: user, workspace, project, session, model, binding, budget and key."""

import re
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from typing import Final
from uuid import UUID

from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.first_steps import FirstStepsStore, FirstStepsUnit, FoundModel, NewModel
from application.ports.model_catalogue import CatalogueUnavailable, ModelCatalogue
from domain.provider import Provider
from domain.secret import Secret
from domain.usage import Prices

DEFAULT_MODEL: Final = "openai/gpt-4.1-mini"
"""Of OpenRouter."""
SESSION_NAME: Final = "First session"


class FirstStepsRefused(Exception):  # noqa: N818 - it names what happened
    """The wishes cannot be met, and nothing was changed. The text says what to wish instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the first turn is to run with. Without provider and model, a workspace that is bound stays so."""

    email: str
    user_name: str | None
    workspace: str
    project: str
    provider: Provider | None
    """None: OpenRouter."""
    model: str | None
    """None: the default one, which only OpenRouter has."""
    prices: Prices | None
    """Of a model that is new, or whose prices are both 0; None: as the provider publishes them."""
    limit_micros: int | None
    """Of a project that has no budget yet; 0 or None: no limit."""
    api_key: Secret | None
    """Of `provider`; None: the stored one, if any."""


class Change(StrEnum):
    """What became of one of the things."""

    ADDED = "added"
    REPLACED = "replaced"
    KEPT = "already there"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Step:
    """One of the things, in words for whoever asked for it."""

    thing: str
    description: str
    change: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSteps:
    """What there is now. `warnings` are sentences on what will not work, or not as expected."""

    workspace_id: UUID
    project_id: UUID
    session_id: UUID
    steps: Sequence[Step]
    warnings: Sequence[str]
    missing_key: Provider | None
    """Whose key there has to be before any turn works."""


@dataclass(slots=True)
class _Notes:
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    missing_key: Provider | None = None

    def found(self, thing: str, description: str, *, is_new: bool) -> None:
        self.steps.append(Step(thing, description, Change.ADDED if is_new else Change.KEPT))


@dataclass(frozen=True, slots=True)
class TakeFirstSteps:
    """Find what is there by address and slug, and add what is missing, in one transaction.

    What is found stays as it is, with three exceptions: a model that is wished for becomes the workspace's, prices that
    could not be had before take the place of 0, and a key that is given takes the place of another one, or of one that
    no longer opens.
    """

    store: FirstStepsStore
    vault: CredentialVault
    catalogue: ModelCatalogue
    served: Collection[Provider]
    """The providers this program can talk to."""

    def __call__(self, wishes: Wishes) -> FirstSteps:
        """Raises FirstStepsRefused, and DatabaseFailed with nothing changed."""
        notes = _Notes()
        workspace_slug, project_slug = slug_of(wishes.workspace), slug_of(wishes.project)
        model = self._choose_model(wishes, workspace_slug, notes)
        late_prices = None if isinstance(model, NewModel) else self._late_prices(model, wishes.prices, notes)
        with self.store.begin() as unit:
            user = unit.user(wishes.email, wishes.user_name)
            notes.found("user", wishes.email, is_new=user.is_new)
            workspace = unit.workspace(workspace_slug, wishes.workspace, user.id)
            if workspace.owner_id != user.id:
                raise FirstStepsRefused(
                    f"The workspace {workspace_slug} belongs to another user: name another workspace, or its owner's "
                    "address."
                )
            notes.found("workspace", f"{wishes.workspace} ({workspace_slug})", is_new=workspace.is_new)
            project = unit.project(workspace.id, project_slug, wishes.project, user.id)
            notes.found("project", f"{wishes.project} ({project_slug})", is_new=project.is_new)
            session = unit.session(project.id, SESSION_NAME, user.id)
            notes.found("session", SESSION_NAME, is_new=session.is_new)
            if late_prices is not None and not isinstance(model, NewModel):
                model = unit.price(model, late_prices, by_user_id=user.id if wishes.prices else None)
            bound = self._bind(unit, model, workspace_slug, workspace.id, user.id, notes)
            budget = unit.budget(project.id, wishes.limit_micros or 0)
            limit = f"{_usd(budget.limit_micros)} USD" if budget.limit_micros else "no limit"
            notes.found("budget", f"of the project: {limit}", is_new=budget.is_new)
            if wishes.limit_micros is not None and wishes.limit_micros != budget.limit_micros:
                notes.warnings.append(
                    f"--limit-usd {_usd(wishes.limit_micros)} was not applied: the project already has a budget "
                    f"{f'of {limit}' if budget.limit_micros else 'without a limit'}. "
                    "docs/commands.md says how to change it."
                )
            self._keep_key(unit, wishes, bound.provider, user.id, notes)
        return FirstSteps(
            workspace_id=workspace.id,
            project_id=project.id,
            session_id=session.id,
            steps=notes.steps,
            warnings=notes.warnings,
            missing_key=notes.missing_key,
        )

    def has_budget(self, workspace: str, project: str) -> bool:
        """Whether the project of this name has a budget already, which a limit that is wished for would not change.

        Raises FirstStepsRefused and DatabaseFailed.
        """
        with self.store.begin() as unit:
            return unit.has_budget(slug_of(workspace), slug_of(project))

    def _choose_model(self, wishes: Wishes, workspace_slug: str, notes: _Notes) -> FoundModel | NewModel:
        """The model to bind. A new one is looked up at the provider, who may think for seconds: in no transaction."""
        provider = wishes.provider or Provider.OPENROUTER
        name = wishes.model or (DEFAULT_MODEL if provider is Provider.OPENROUTER else None)
        with self.store.begin() as unit:
            bound = unit.bound_model(workspace_slug)
            known = unit.known_model(provider, name) if name else None
        if bound and not (wishes.provider or wishes.model):
            return bound
        if provider not in self.served:
            raise FirstStepsRefused(
                f"Models of {provider} cannot be used yet; those of {', '.join(sorted(self.served))} can."
            )
        if name is None:
            raise FirstStepsRefused(f"{provider} has no default model: name one.")
        return known or self._look_up(provider, name, wishes.prices, notes)

    def _look_up(self, provider: Provider, name: str, prices: Prices | None, notes: _Notes) -> NewModel:
        silence = f"{provider} does not say what it costs"
        try:
            offered = self.catalogue.offered(provider) or {}
        except CatalogueUnavailable as error:
            silence = str(error).removesuffix(".")
            offered = {}
        offer = offered.get(name)
        if offered and offer is None and prices is None:
            similar = get_close_matches(name, offered, n=3)
            meant = f" Did you mean {' or '.join(similar)}?" if similar else ""
            raise FirstStepsRefused(
                f"{provider} does not offer the model {name}.{meant} To add it all the same, give its prices."
            )
        published = prices or (offer.prices if offer else None)
        if published is None and provider is Provider.OPENROUTER:
            notes.warnings.append(
                f"The prices of {name} are unknown and count as 0 where OpenRouter does not name a cost: {silence}."
            )
        elif published is None and provider is not Provider.OLLAMA:
            raise FirstStepsRefused(f"The prices of {name} are unknown, so give them: {silence}.")
        return NewModel(
            provider=provider,
            name=name,
            display_name=offer.display_name if offer else name,
            prices=published or Prices(0, 0),
            has_manual_prices=prices is not None,
            context_window=offer.context_window if offer else None,
            max_output_tokens=offer.max_output_tokens if offer else None,
            # Engines send tools with nearly every turn: the provider's word against them counts, its silence does not.
            supports_tool_calling=offer is None or offer.supports_tool_calling is not False,
        )

    def _late_prices(self, model: FoundModel, given: Prices | None, notes: _Notes) -> Prices | None:
        """The prices to give to a model that was added without; in no transaction, since the provider may be asked."""
        if model.prices != Prices(0, 0):
            if given is not None and given != model.prices:
                notes.warnings.append(
                    f"--input-price and --output-price were not applied: {model.name} already has prices. "
                    "docs/commands.md says how to change them."
                )
            return None
        if given == model.prices and model.has_manual_prices:
            return None
        if given is not None or model.has_manual_prices or model.provider != Provider.OPENROUTER:
            return given
        try:
            offer = (self.catalogue.offered(Provider.OPENROUTER) or {}).get(model.name)
        except CatalogueUnavailable as error:
            silence = str(error).removesuffix(".")
        else:
            if offer is not None and offer.prices is not None:
                return None if offer.prices == model.prices else offer.prices
            silence = "OpenRouter publishes none"
        notes.warnings.append(
            f"The prices of {model.name} still count as 0 where OpenRouter does not name a cost: {silence}. Run this "
            "again when it answers, or with --input-price and --output-price."
        )
        return None

    def _bind(
        self,
        unit: FirstStepsUnit,
        chosen: FoundModel | NewModel,
        workspace_slug: str,
        workspace_id: UUID,
        user_id: UUID,
        notes: _Notes,
    ) -> FoundModel:
        model = unit.model(chosen) if isinstance(chosen, NewModel) else chosen
        prices = model.prices
        notes.found(
            "model",
            f"{model.name} of {model.provider}, {_usd(prices.input_per_million_micros)} USD in and "
            f"{_usd(prices.output_per_million_micros)} USD out per million tokens",
            is_new=model.is_new,
        )
        before = unit.bound_model(workspace_slug)
        if before is None or before.id != model.id:
            unit.bind(workspace_id, model.id, user_id)
        if before is None or before.id == model.id:
            notes.found("binding", f"of the workspace to {model.name}", is_new=before is None)
        else:
            moved = f"of the workspace to {model.name}, before to {before.name}"
            notes.steps.append(Step("binding", moved, Change.REPLACED))
        if not model.supports_tool_calling:
            notes.warnings.append(
                f"{model.name} has no tool calling: a turn that brings tools finds no model."
            )
        return model

    def _keep_key(
        self, unit: FirstStepsUnit, wishes: Wishes, provider_name: str, user_id: UUID, notes: _Notes
    ) -> None:
        try:
            provider = Provider(provider_name)
        except ValueError:
            provider = None
        if provider is None or provider not in self.served:
            notes.warnings.append(f"Models of {provider_name} cannot be used yet: name another provider.")
            return
        if not provider.needs_credential:
            return
        given = wishes.api_key if provider is (wishes.provider or Provider.OPENROUTER) else None
        sealed = unit.sealed_key(user_id, provider)
        stored: Secret | None = None
        if sealed is not None:
            try:
                stored = self.vault.open(sealed)
            except CannotOpenCredential:
                if given is None:
                    notes.warnings.append(
                        f"The stored key for {provider} does not open with this master key: give the key again."
                    )
        if given is not None and given != stored:
            unit.keep_key(user_id, provider, self.vault.seal(given))
            change = Change.REPLACED if sealed else Change.ADDED
        elif sealed is not None:
            change = Change.KEPT
        else:
            change = Change.MISSING
            notes.missing_key = provider
            notes.warnings.append(
                f"Without a key for {provider} no turn reaches a model: give it and run this again."
            )
        notes.steps.append(Step("credential", f"the key for {provider}", change))


def slug_of(name: str) -> str:
    """The name in lower-case ASCII letters, digits and single hyphens. Raises FirstStepsRefused where none is left."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-")
    if not slug:
        raise FirstStepsRefused(f"The name {name[:60]!r} needs a letter from a to z, or a digit.")
    return slug


def _usd(micros: int) -> str:
    return f"{Decimal(micros) / 1_000_000:f}"
