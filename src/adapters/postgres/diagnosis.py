"""What is stored in PostgreSQL, for `brabo doctor`."""

from collections.abc import Sequence

from sqlalchemy import Text, cast, select

from adapters.postgres.one_command import transaction
from adapters.postgres.tables import model_bindings, models, user_credentials, users
from application.ports.credential_vault import SealedKey
from application.ports.diagnosis import Diagnosis, StoredBinding, StoredKey


class PostgresDiagnosis(Diagnosis):
    """Opens a connection a question. Labels of enums are read as text: a database can have more than we know."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url

    def keys(self) -> Sequence[StoredKey]:
        query = (
            select(
                users.c.email,
                cast(user_credentials.c.provider, Text),
                user_credentials.c.wrapped_dek,
                user_credentials.c.dek_iv,
                user_credentials.c.dek_auth_tag,
                user_credentials.c.encrypted_api_key,
                user_credentials.c.api_key_iv,
                user_credentials.c.api_key_auth_tag,
            )
            .join_from(user_credentials, users, users.c.id == user_credentials.c.user_id)
            .order_by(users.c.email, user_credentials.c.provider)
        )
        with transaction(self._database_url) as connection:
            rows = connection.execute(query).all()
        return [StoredKey(email, provider, SealedKey(*parts)) for email, provider, *parts in rows]

    def bindings(self) -> Sequence[StoredBinding]:
        query = (
            select(
                cast(model_bindings.c.scope, Text),
                model_bindings.c.scope_id,
                cast(models.c.provider, Text),
                models.c.name,
                models.c.availability != "unavailable",
            )
            .join_from(model_bindings, models, models.c.id == model_bindings.c.model_id)
            .order_by(model_bindings.c.scope, model_bindings.c.scope_id)
        )
        with transaction(self._database_url) as connection:
            rows = connection.execute(query).all()
        return [StoredBinding(*row) for row in rows]
