"""What operators are told of turns."""

from typing import Protocol
from uuid import UUID

from domain.failure import FailureCode
from domain.settlement import TurnStart
from domain.usage import ReportedUsage


class TurnTelemetry(Protocol):
    """Counts and logs. Nothing it is given holds a message's content or a key."""

    def turn_ended(self, turn_id: UUID, *, failure: FailureCode | None, duration_s: float) -> None:
        """A turn has its answer."""
        ...

    def turn_left(self, turn_id: UUID, *, duration_s: float) -> None:
        """The engine went away before the answer."""
        ...

    def credential_unreadable(self, turn_id: UUID, *, workspace_id: UUID) -> None:
        """The owner's key could not be opened: a master key is missing, or the row is damaged."""
        ...

    def settlement_cut(
        self, start: TurnStart, *, usage: ReportedUsage | None, generation_id: str | None
    ) -> None:
        """The process ended before a call that may be charged was handed to the recorder: another one settles it.

        `usage` and `generation_id` are the provider's own, by which the charge can be found there.
        """
        ...

    def internal_failure(self, turn_id: UUID | None, error: BaseException) -> None:
        """A fault of ours, in a turn or outside of one; the error's type and place may be told, its text may not."""
        ...
