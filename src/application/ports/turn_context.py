"""What a turn has to know before anything is sent: one read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from application.ports.credential_vault import SealedKey
from domain.binding import Bindings
from domain.budget import Budget
from domain.provider import Provider


class ContextUnavailable(Exception):  # noqa: N818 - it names what happened
    """The context cannot be read: fail-closed, nothing may be sent to a provider."""


@dataclass(frozen=True, slots=True)
class TurnContext:
    """All that one read brings. `sealed_keys` are the workspace owner's, by provider."""

    workspace_id: UUID
    bindings: Bindings
    budgets: Sequence[Budget]
    """Those that exist of the project, the session and the agent's area, in this order."""
    sealed_keys: Mapping[Provider, SealedKey] = field(repr=False)


class TurnContexts(Protocol):
    """Reads contexts."""

    async def read(self, session_id: UUID, project_id: UUID, agent: str | None) -> TurnContext | None:
        """The context as committed now; None when there is no such session in that project.

        An area without a ceiling brings no budget. Raises ContextUnavailable when the database is out of reach,
        or has no connection free within 2 s.
        """
        ...
