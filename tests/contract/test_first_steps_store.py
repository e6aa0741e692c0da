"""What every adapter of the ports FirstStepsStore and Diagnosis does."""

import threading
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from adapters.in_memory.installation import InMemoryInstallation
from adapters.postgres.diagnosis import PostgresDiagnosis
from adapters.postgres.first_steps import PostgresFirstSteps
from application.ports.credential_vault import SealedKey
from application.ports.database import DatabaseFailed
from application.ports.diagnosis import Diagnosis, StoredBinding, StoredKey
from application.ports.first_steps import FirstStepsStore, FirstStepsUnit, NewModel
from domain.provider import Provider
from domain.usage import Prices

SEALED = SealedKey("dek", "dek iv", "dek tag", "key", "key iv", "key tag")
MODEL = NewModel(
    provider=Provider.OPENROUTER,
    name="openai/gpt-4.1-mini",
    display_name="GPT-4.1 Mini",
    prices=Prices(400_000, 1_600_000),
    has_manual_prices=False,
    context_window=1_047_576,
    max_output_tokens=32_768,
    supports_tool_calling=True,
)


class Installation:
    """One adapter of each port, over the same rows."""

    def __init__(self, store: FirstStepsStore, diagnosis: Diagnosis) -> None:
        self.store = store
        self.diagnosis = diagnosis

    def owner(self, email: str = "owner@example.com") -> UUID:
        with self.store.begin() as unit:
            return unit.user(email, "Owner").id

    def workspace(self, owner_id: UUID, slug: str = "main") -> UUID:
        with self.store.begin() as unit:
            return unit.workspace(slug, "Main", owner_id).id

    def project(self, workspace_id: UUID, owner_id: UUID) -> UUID:
        with self.store.begin() as unit:
            return unit.project(workspace_id, "first", "First", owner_id).id


@pytest.fixture(params=["in_memory", "postgres"])
def installation(request: pytest.FixtureRequest) -> Installation:
    if request.param == "in_memory":
        memory = InMemoryInstallation()
        return Installation(memory, memory)
    database_url = request.getfixturevalue("database_url")
    return Installation(PostgresFirstSteps(database_url), PostgresDiagnosis(database_url))


def test_prices_take_the_place_of_zeros_alone(installation: Installation) -> None:
    owner = installation.owner()
    with installation.store.begin() as unit:
        found = unit.model(replace(MODEL, prices=Prices(0, 0)))
        typed = unit.price(found, Prices(3, 0), by_user_id=owner)
        again = unit.price(found, Prices(5, 6), by_user_id=None)

    assert typed == again == replace(found, prices=Prices(3, 0), has_manual_prices=True, is_new=False)
    with installation.store.begin() as unit:
        assert unit.known_model(MODEL.provider, MODEL.name) == typed


def test_a_budget_is_known_by_the_names_of_its_project(installation: Installation) -> None:
    owner = installation.owner()
    workspace = installation.workspace(owner)
    project = installation.project(workspace, owner)
    with installation.store.begin() as unit:
        before = unit.has_budget("main", "first")
        unit.budget(project, 0)
        after = unit.has_budget("main", "first"), unit.has_budget("main", "second")

    assert not before
    assert after == (True, False)


def test_a_user_is_found_by_the_address_in_any_case(installation: Installation) -> None:
    with installation.store.begin() as unit:
        new = unit.user("Owner@Example.com", None)
    with installation.store.begin() as unit:
        found = unit.user("owner@example.COM", "Someone")

    assert new.is_new
    assert found == replace(new, is_new=False)


def test_a_workspace_is_found_by_its_slug_whoever_owns_it(installation: Installation) -> None:
    owner, other = installation.owner(), installation.owner("other@example.com")
    with installation.store.begin() as unit:
        new = unit.workspace("main", "Main", owner)
        found = unit.workspace("main", "Another name", other)

    assert new.is_new
    assert new.owner_id == owner
    assert found == replace(new, is_new=False)


def test_two_workspaces_have_projects_of_one_slug_each(installation: Installation) -> None:
    owner = installation.owner()
    one, two = installation.workspace(owner, "one"), installation.workspace(owner, "two")
    with installation.store.begin() as unit:
        first, second = (unit.project(workspace, "shop", "Shop", owner) for workspace in (one, two))
        again = unit.project(one, "shop", "Shop", owner)

    assert first.is_new
    assert second.is_new
    assert first.id != second.id
    assert again == replace(first, is_new=False)


def test_a_session_is_found_by_its_name(installation: Installation) -> None:
    owner = installation.owner()
    project = installation.project(installation.workspace(owner), owner)
    with installation.store.begin() as unit:
        new = unit.session(project, "First session", owner)
        found = unit.session(project, "First session", owner)
        other = unit.session(project, "Another", owner)

    assert new.is_new
    assert found == replace(new, is_new=False)
    assert other.is_new


def test_a_model_keeps_the_prices_it_was_added_with(installation: Installation) -> None:
    with installation.store.begin() as unit:
        unknown = unit.known_model(MODEL.provider, MODEL.name)
        new = unit.model(MODEL)
    with installation.store.begin() as unit:
        found = unit.model(replace(MODEL, prices=Prices(1, 2)))
        known = unit.known_model(MODEL.provider, MODEL.name)

    assert unknown is None
    assert new.is_new
    assert (new.provider, new.name, new.prices) == ("openrouter", MODEL.name, MODEL.prices)
    assert found == known == replace(new, is_new=False)


def test_one_name_at_two_providers_is_two_models(installation: Installation) -> None:
    with installation.store.begin() as unit:
        first = unit.model(MODEL)
        second = unit.model(replace(MODEL, provider=Provider.TOGETHER, supports_tool_calling=False))

    assert second.is_new
    assert first.id != second.id
    assert not second.supports_tool_calling


def test_a_workspace_is_bound_and_bound_again(installation: Installation) -> None:
    owner = installation.owner()
    workspace = installation.workspace(owner)
    with installation.store.begin() as unit:
        unbound = unit.bound_model("main")
        first, second = unit.model(MODEL), unit.model(replace(MODEL, name="other"))
        unit.bind(workspace, first.id, owner)
        before = unit.bound_model("main")
        unit.bind(workspace, second.id, owner)
        after = unit.bound_model("main")
        elsewhere = unit.bound_model("unknown")

    assert unbound is None
    assert elsewhere is None
    assert before == replace(first, is_new=False)
    assert after == replace(second, is_new=False)
    assert installation.diagnosis.bindings() == [
        StoredBinding("workspace", str(workspace), "openrouter", "other", is_available=True)
    ]


def test_a_budget_keeps_its_limit(installation: Installation) -> None:
    owner = installation.owner()
    project = installation.project(installation.workspace(owner), owner)
    with installation.store.begin() as unit:
        new = unit.budget(project, 5_000_000)
        found = unit.budget(project, 1)

    assert new.is_new
    assert found == replace(new, is_new=False)
    assert found.limit_micros == 5_000_000


def test_a_key_takes_the_place_of_the_one_before(installation: Installation) -> None:
    zoe, adam = installation.owner("zoe@example.com"), installation.owner("adam@example.com")
    newer = replace(SEALED, encrypted_api_key="newer")
    with installation.store.begin() as unit:
        none = unit.sealed_key(zoe, Provider.OPENROUTER)
        unit.keep_key(zoe, Provider.OPENROUTER, SEALED)
        unit.keep_key(zoe, Provider.OPENROUTER, newer)
        unit.keep_key(zoe, Provider.OPENAI, SEALED)
        unit.keep_key(adam, Provider.OPENROUTER, SEALED)
    with installation.store.begin() as unit:
        kept = unit.sealed_key(zoe, Provider.OPENROUTER)

    assert none is None
    assert kept == newer
    assert installation.diagnosis.keys() == [
        StoredKey("adam@example.com", "openrouter", SEALED),
        StoredKey("zoe@example.com", "openai", SEALED),
        StoredKey("zoe@example.com", "openrouter", newer),
    ]


def test_a_unit_that_raises_leaves_nothing(installation: Installation) -> None:
    def fail_midway(unit: FirstStepsUnit) -> None:
        unit.user("owner@example.com", None)
        unit.model(MODEL)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), installation.store.begin() as unit:
        fail_midway(unit)

    with installation.store.begin() as unit:
        assert unit.user("owner@example.com", None).is_new
        assert unit.known_model(MODEL.provider, MODEL.name) is None


def test_nothing_stored_is_nothing_found(installation: Installation) -> None:
    assert not installation.diagnosis.keys()
    assert not installation.diagnosis.bindings()


def test_units_of_two_processes_run_one_after_the_other(database_url: str) -> None:
    stores = [PostgresFirstSteps(database_url) for _ in range(8)]
    together = threading.Barrier(len(stores))
    made: list[bool] = []

    def take(store: PostgresFirstSteps) -> None:
        together.wait()
        with store.begin() as unit:
            owner = unit.user("owner@example.com", None)
            unit.workspace("main", "Main", owner.id)
            made.append(owner.is_new)

    threads = [threading.Thread(target=take, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(made) == [False] * 7 + [True]


def test_a_new_workspace_has_its_owner_as_a_member(database_url: str) -> None:
    installation = Installation(PostgresFirstSteps(database_url), PostgresDiagnosis(database_url))
    owner = installation.owner()
    workspace = installation.workspace(owner)

    with psycopg.connect(database_url) as connection:
        members = connection.execute("SELECT workspace_id, user_id, role FROM workspace_members").fetchall()
    assert members == [(workspace, owner, "owner")]


def test_a_closed_session_is_not_found(database_url: str) -> None:
    installation = Installation(PostgresFirstSteps(database_url), PostgresDiagnosis(database_url))
    owner = installation.owner()
    project = installation.project(installation.workspace(owner), owner)
    with installation.store.begin() as unit:
        unit.session(project, "First session", owner)
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE sessions SET status = 'closed'")
    with installation.store.begin() as unit:
        assert unit.session(project, "First session", owner).is_new


def test_a_provider_that_is_not_known_here_is_read_as_it_is(database_url: str) -> None:
    installation = Installation(PostgresFirstSteps(database_url), PostgresDiagnosis(database_url))
    owner = installation.owner()
    workspace = installation.workspace(owner)
    with installation.store.begin() as unit:
        model = unit.model(MODEL)
        unit.bind(workspace, model.id, owner)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER TYPE llm_provider ADD VALUE 'newcomer'")
        connection.execute("UPDATE models SET provider = 'newcomer', availability = 'unavailable'")

    with installation.store.begin() as unit:
        bound = unit.bound_model("main")
    assert bound is not None
    assert bound.provider == "newcomer"
    assert installation.diagnosis.bindings() == [
        StoredBinding("workspace", str(workspace), "newcomer", MODEL.name, is_available=False)
    ]


def test_a_database_without_the_tables_is_said_without_values(empty_database_url: str) -> None:
    store = PostgresFirstSteps(empty_database_url)
    with (
        pytest.raises(DatabaseFailed, match='relation "users" does not exist') as failed,
        store.begin() as unit,
    ):
        unit.user("owner@example.com", None)
    assert "owner@example.com" not in str(failed.value)


def test_an_unreachable_database_is_said_without_its_password() -> None:
    unreachable = "postgresql://somebody:a-wrong-password@127.0.0.1:1/nowhere"
    with pytest.raises(DatabaseFailed) as failed, PostgresFirstSteps(unreachable).begin():
        pass
    assert "a-wrong-password" not in str(failed.value)
    assert "127.0.0.1" in str(failed.value)
