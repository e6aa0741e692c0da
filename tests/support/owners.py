"""Users of the owners' routes, and what these answer."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import httpx
import psycopg

from application.ports.users import User
from tests.support.brabo_data import create_member, create_project_member, insert
from tests.support.live import LiveApi


def bearer(api: LiveApi, user_id: UUID, *, minutes: int = 5) -> dict[str, str]:
    """The header with a token of the user's."""
    expires_at = datetime.now(UTC) + timedelta(minutes=minutes)
    token = api.container.user_tokens().issue(User(user_id, "ana@example.com"), expires_at)
    return {"Authorization": f"Bearer {token}"}


def add_user(
    connection: psycopg.Connection,
    workspace_id: UUID | None = None,
    role: str | None = None,
    *,
    in_project: tuple[UUID, str] | None = None,
) -> UUID:
    """A user with this role in the workspace, if any, and perhaps one of their own in a project."""
    user_id = insert(connection, "users", email=f"{uuid4().hex}@example.com")
    if workspace_id is not None and role is not None:
        create_member(connection, workspace_id, user_id, role)
    if in_project is not None:
        create_project_member(connection, in_project[0], user_id, in_project[1])
    return user_id


def assert_problem(answer: httpx.Response, status: int) -> str:
    """The problem's `detail`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert set(body) == {"type", "title", "status", "detail"}
    assert body["status"] == status
    detail: str = body["detail"]
    return detail
