"""The keys of workspace owners, for what is done after a turn."""

from typing import Protocol
from uuid import UUID

from application.ports.credential_vault import SealedKey
from domain.provider import Provider


class OwnerKeys(Protocol):
    """Reads keys."""

    async def of_project(self, project_id: UUID, provider: Provider) -> SealedKey | None:
        """The key of the owner of the project's workspace; None without one. Raises DatabaseFailed."""
        ...
