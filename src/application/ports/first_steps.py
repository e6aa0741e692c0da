"""What a first turn needs, found in the database or added to it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from application.ports.credential_vault import SealedKey
from domain.provider import Provider
from domain.usage import Prices


@dataclass(frozen=True, slots=True)
class Found:
    """A row, and whether this call made it."""

    id: UUID
    is_new: bool


@dataclass(frozen=True, slots=True)
class FoundWorkspace:
    """A workspace, and the user whose keys its turns use."""

    id: UUID
    owner_id: UUID
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NewModel:
    """A model as it is added when it is missing."""

    provider: Provider
    name: str
    display_name: str
    prices: Prices
    has_manual_prices: bool
    """Somebody typed them: a synchronisation with the provider leaves them alone."""
    context_window: int | None
    max_output_tokens: int | None
    supports_tool_calling: bool


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model's row; the prices are those in force, whoever set them."""

    id: UUID
    provider: str
    """As stored: it can be one that this program does not know."""
    name: str
    prices: Prices
    has_manual_prices: bool
    supports_tool_calling: bool
    is_new: bool


@dataclass(frozen=True, slots=True)
class FoundBudget:
    """A project's budget, with the limit in force; 0 is no limit."""

    id: UUID
    limit_micros: int
    is_new: bool


class FirstStepsUnit(Protocol):
    """Finds rows, and adds those that are missing; only `price`, `bind` and `keep_key` change what is found."""

    def user(self, email: str, name: str | None) -> Found:
        """The user of this address, upper and lower case being the same."""
        ...

    def workspace(self, slug: str, name: str, owner_id: UUID) -> FoundWorkspace:
        """The workspace of this slug; a new one has the owner as its member with the role `owner`."""
        ...

    def project(self, workspace_id: UUID, slug: str, name: str, creator_id: UUID) -> Found:
        """The workspace's project of this slug."""
        ...

    def session(self, project_id: UUID, name: str, creator_id: UUID) -> Found:
        """The oldest session of this name in the project that is not closed or closing."""
        ...

    def known_model(self, provider: Provider, name: str) -> FoundModel | None:
        """The model of this provider and name, or None."""
        ...

    def model(self, model: NewModel) -> FoundModel:
        """The model of this provider and name."""
        ...

    def price(self, model: FoundModel, prices: Prices, *, by_user_id: UUID | None) -> FoundModel:
        """Where both prices are 0 still, these take their place, and the change is recorded; else they stay.

        `by_user_id` is who typed them; None: the provider publishes them.
        """
        ...

    def bound_model(self, workspace_slug: str) -> FoundModel | None:
        """The model that the workspace is bound to, or None."""
        ...

    def bind(self, workspace_id: UUID, model_id: UUID, creator_id: UUID) -> None:
        """Bind the workspace to the model, whatever it was bound to."""
        ...

    def has_budget(self, workspace_slug: str, project_slug: str) -> bool:
        """Whether there is this project, with a budget."""
        ...

    def budget(self, project_id: UUID, limit_micros: int) -> FoundBudget:
        """The project's budget."""
        ...

    def sealed_key(self, user_id: UUID, provider: Provider) -> SealedKey | None:
        """The user's envelope for the provider, or None."""
        ...

    def keep_key(self, user_id: UUID, provider: Provider, sealed: SealedKey) -> None:
        """Store the envelope, over the one that is there."""
        ...


class FirstStepsStore(Protocol):
    """Opens units of first steps."""

    def begin(self) -> AbstractContextManager[FirstStepsUnit]:
        """A unit that is committed when the block ends, and undone when it raises. Units run one after the other.

        Entering, each method and the commit may raise DatabaseFailed.
        """
        ...
