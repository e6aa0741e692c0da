"""Answers to calls that never ran, in the provider's envelope."""

from dataclasses import dataclass, field
from typing import Any

from entrypoints.simulator.reply import Reply

USER_ID = "user_simulated0000000000000"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status and body of a call that is not run. The body is any JSON value, or raw bytes."""

    status: int
    body: Any
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "application/json"

    def reply(self) -> Reply:
        """The HTTP answer."""
        return Reply(
            status=self.status,
            content_type=self.content_type,
            headers=list(self.headers),
            document=self.body,
            charge="nothing",
        )


def error_body(code: int, message: str, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """The documented error envelope."""
    error: dict[str, Any] = {"message": message, "code": code}
    if metadata is not None:
        error["metadata"] = metadata
    return {"error": error, "user_id": USER_ID}


@dataclass(slots=True)
class CallRefusedError(Exception):
    """A request the service would not run; carries the answer."""

    refusal: Refusal = field()


def refused(status: int, message: str, metadata: dict[str, Any] | None = None) -> CallRefusedError:
    """The exception for a refusal in the documented envelope."""
    return CallRefusedError(Refusal(status, error_body(status, message, metadata)))
