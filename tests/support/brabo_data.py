"""Rows for tests: one workspace with all that a turn needs, in plain SQL with named columns."""

import base64
import functools
import hashlib
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from psycopg import sql

MASTER_KEY: Final = "a master key for the tests"
API_KEY: Final = "sk-or-v1-test-0123456789abcdef"

AREA_LEADS: Final = {"dev": "dev-lead", "qa": "qa", "infra": "infra"}
NO_AREA_CEILINGS: Final[Mapping[str, int | None]] = dict.fromkeys(AREA_LEADS)


@dataclass(frozen=True, slots=True)
class World:
    """The ids of what `create_world` made. A budget that was not asked for is None."""

    user_id: UUID
    user_email: str
    workspace_id: UUID
    project_id: UUID
    session_id: UUID
    model_id: UUID
    model_name: str
    binding_id: UUID
    project_budget_id: UUID | None
    session_budget_id: UUID | None
    area_ids: Mapping[str, UUID]
    credential_id: UUID | None


def create_world(
    database_url: str,
    *,
    provider: str = "openrouter",
    model_name: str | None = None,
    input_price_per_million_micros: int = 150_000,
    output_price_per_million_micros: int = 600_000,
    supports_tool_calling: bool = True,
    routing_preference: str | None = None,
    project_limit_micros: int | None = 10_000_000,
    session_limit_micros: int | None = None,
    policy: str = "block",
    area_ceilings_micros: Mapping[str, int | None] = NO_AREA_CEILINGS,
    api_key: str | None = API_KEY,
    master_key: str = MASTER_KEY,
) -> World:
    """An owner with a key, a workspace bound to a model, a project with budgets and areas, and an open session.

    Every call makes a world of its own, so a database can hold several. A limit of None makes no budget, 0 one
    without a limit; no key makes no credential. Committed when it returns.
    """
    mark = uuid.uuid4().hex[:12]
    email = f"Owner-{mark}@example.com"
    with psycopg.connect(database_url) as connection:
        user_id = insert(connection, "users", email=email, name="Owner")
        workspace_id = insert(
            connection, "workspaces", name="Workspace", slug=f"workspace-{mark}", created_by=user_id
        )
        create_member(connection, workspace_id, user_id, "owner")
        project_id = insert(
            connection,
            "projects",
            workspace_id=workspace_id,
            name="Project",
            slug="project",
            workspace_dir_name=f"project-{mark}",
            created_by=user_id,
        )
        session_id = create_session(connection, project_id, user_id)
        chosen_name = model_name or f"maker/model-{mark}"
        model_id = create_model(
            connection,
            chosen_name,
            provider=provider,
            input_price_per_million_micros=input_price_per_million_micros,
            output_price_per_million_micros=output_price_per_million_micros,
            supports_tool_calling=supports_tool_calling,
        )
        binding_id = create_binding(
            connection,
            "workspace",
            str(workspace_id),
            model_id,
            user_id,
            routing_preference=routing_preference,
        )
        project_budget_id = session_budget_id = credential_id = None
        if project_limit_micros is not None:
            project_budget_id = insert(
                connection, "budgets", project_id=project_id, limit_micros=project_limit_micros, policy=policy
            )
        if session_limit_micros is not None:
            session_budget_id = insert(
                connection, "budgets", session_id=session_id, limit_micros=session_limit_micros, policy=policy
            )
        area_ids = {
            key: insert(
                connection,
                "agent_areas",
                project_id=project_id,
                key=key,
                lead_agent_id=AREA_LEADS[key],
                budget_micros=ceiling_micros,
            )
            for key, ceiling_micros in area_ceilings_micros.items()
        }
        if api_key is not None:
            credential_id = insert(
                connection,
                "user_credentials",
                user_id=user_id,
                provider=provider,
                **seal(api_key, master_key),
            )
    return World(
        user_id=user_id,
        user_email=email,
        workspace_id=workspace_id,
        project_id=project_id,
        session_id=session_id,
        model_id=model_id,
        model_name=chosen_name,
        binding_id=binding_id,
        project_budget_id=project_budget_id,
        session_budget_id=session_budget_id,
        area_ids=area_ids,
        credential_id=credential_id,
    )


def create_member(connection: psycopg.Connection[Any], workspace_id: UUID, user_id: UUID, role: str) -> None:
    connection.execute(
        "INSERT INTO workspace_members (workspace_id, user_id, role) VALUES (%s, %s, %s)",
        (workspace_id, user_id, role),
    )


def create_project_member(
    connection: psycopg.Connection[Any], project_id: UUID, user_id: UUID, role: str
) -> None:
    connection.execute(
        "INSERT INTO project_members (project_id, user_id, role) VALUES (%s, %s, %s)",
        (project_id, user_id, role),
    )


def create_project(connection: psycopg.Connection[Any], workspace_id: UUID, user_id: UUID) -> UUID:
    """One more project of the workspace."""
    mark = uuid.uuid4().hex
    return insert(
        connection,
        "projects",
        workspace_id=workspace_id,
        name="Another",
        slug=mark,
        workspace_dir_name=mark,
        created_by=user_id,
    )


def create_session(connection: psycopg.Connection[Any], project_id: UUID, user_id: UUID) -> UUID:
    """One more active session of the project."""
    return insert(connection, "sessions", project_id=project_id, created_by=user_id, status="active")


def create_model(
    connection: psycopg.Connection[Any], name: str, *, provider: str = "openrouter", **columns: object
) -> UUID:
    """A model of the catalogue, or the one that has this provider and name already, with `columns` set anew."""
    values = {"provider": provider, "name": name, "display_name": name, **columns}
    statement = _insert_statement("models", values) + sql.SQL(
        " ON CONFLICT (provider, name) DO UPDATE SET ({columns}) = ROW ({excluded}) RETURNING id"
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, values)),
        excluded=sql.SQL(", ").join(sql.Identifier("excluded", column) for column in values),
    )
    return _id_of(connection, statement, values)


def create_binding(
    connection: psycopg.Connection[Any],
    scope: str,
    scope_id: str,
    model_id: UUID,
    user_id: UUID,
    *,
    routing_preference: str | None = None,
) -> UUID:
    """Bind a model; `scope_id` of an agent or an area is `<project id>:<slug>`."""
    return insert(
        connection,
        "model_bindings",
        scope=scope,
        scope_id=scope_id,
        model_id=model_id,
        routing_preference=routing_preference,
        created_by=user_id,
    )


def insert(connection: psycopg.Connection[Any], table: str, **values: object) -> UUID:
    """Insert one row with these columns and return its `id`."""
    return _id_of(connection, _insert_statement(table, values) + sql.SQL(" RETURNING id"), values)


def seal(api_key: str, master_key: str) -> dict[str, str]:
    """The six envelope columns, made here and not by the code under test."""
    data_key = os.urandom(32)
    wrapped_dek, dek_iv, dek_auth_tag = _encrypt(_wrapping_key(master_key), data_key)
    encrypted_api_key, api_key_iv, api_key_auth_tag = _encrypt(data_key, api_key.encode())
    return {
        "wrapped_dek": wrapped_dek,
        "dek_iv": dek_iv,
        "dek_auth_tag": dek_auth_tag,
        "encrypted_api_key": encrypted_api_key,
        "api_key_iv": api_key_iv,
        "api_key_auth_tag": api_key_auth_tag,
    }


def _insert_statement(table: str, values: Mapping[str, object]) -> sql.Composed:
    return sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, values)),
        sql.SQL(", ").join(map(sql.Placeholder, values)),
    )


def _id_of(
    connection: psycopg.Connection[Any], statement: sql.Composed, values: Mapping[str, object]
) -> UUID:
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    made = row[0]
    assert isinstance(made, UUID)
    return made


@functools.cache
def _wrapping_key(master_key: str) -> bytes:
    return hashlib.scrypt(master_key.encode(), salt=b"brabo-credentials-salt", n=16384, r=8, p=1, dklen=32)


def _encrypt(key: bytes, plain: bytes) -> tuple[str, str, str]:
    iv = os.urandom(12)
    sealed = AESGCM(key).encrypt(iv, plain, None)
    cipher, tag = sealed[:-16], sealed[-16:]
    return _base64(cipher), _base64(iv), _base64(tag)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
