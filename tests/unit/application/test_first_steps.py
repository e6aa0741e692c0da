from dataclasses import replace

import pytest

from adapters.in_memory.installation import InMemoryCatalogue, InMemoryInstallation
from adapters.security.envelope import EnvelopeVault
from application.first_steps import (
    DEFAULT_MODEL,
    Change,
    FirstSteps,
    FirstStepsRefused,
    TakeFirstSteps,
    Wishes,
    slug_of,
)
from application.ports.model_catalogue import OfferedModel
from domain.provider import Provider
from domain.secret import Secret
from domain.usage import Prices

KEY = Secret("sk-or-v1-of-the-tests")
OFFER = OfferedModel(
    display_name="GPT-4.1 Mini",
    prices=Prices(400_000, 1_600_000),
    context_window=1_047_576,
    max_output_tokens=32_768,
    supports_tool_calling=True,
)
WISHES = Wishes(
    email="owner@example.com",
    user_name=None,
    workspace="Main",
    project="First project",
    provider=None,
    model=None,
    prices=None,
    limit_micros=5_000_000,
    api_key=KEY,
)
THINGS = ["user", "workspace", "project", "session", "model", "binding", "budget", "credential"]


@pytest.fixture(scope="module")
def vault() -> EnvelopeVault:
    return EnvelopeVault(Secret("master-key-of-the-tests"), None)


@pytest.fixture
def installation() -> InMemoryInstallation:
    return InMemoryInstallation()


@pytest.fixture
def catalogue() -> InMemoryCatalogue:
    offers = {DEFAULT_MODEL: OFFER, "openai/other": replace(OFFER, supports_tool_calling=False)}
    return InMemoryCatalogue({Provider.OPENROUTER: offers})


@pytest.fixture
def take_first_steps(
    installation: InMemoryInstallation, vault: EnvelopeVault, catalogue: InMemoryCatalogue
) -> TakeFirstSteps:
    served = set(Provider) - {Provider.ANTHROPIC}
    return TakeFirstSteps(store=installation, vault=vault, catalogue=catalogue, served=served)


def changes(first_steps: FirstSteps) -> dict[str, Change]:
    return {step.thing: step.change for step in first_steps.steps}


def test_the_first_run_adds_everything(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    first_steps = take_first_steps(WISHES)

    assert changes(first_steps) == dict.fromkeys(THINGS, Change.ADDED)
    assert not first_steps.warnings
    model = installation.bound_model("main")
    assert model is not None
    assert (model.name, model.prices) == (DEFAULT_MODEL, OFFER.prices)
    assert installation.budgets[first_steps.project_id].limit_micros == 5_000_000
    [sealed] = installation.sealed.values()
    assert vault.open(sealed) == KEY


def test_the_second_run_finds_everything_and_asks_no_provider(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, catalogue: InMemoryCatalogue
) -> None:
    first = take_first_steps(WISHES)
    sealed = dict(installation.sealed)
    second = take_first_steps(replace(WISHES, limit_micros=1))

    assert changes(second) == dict.fromkeys(THINGS, Change.KEPT)
    assert (second.project_id, second.session_id) == (first.project_id, first.session_id)
    assert installation.sealed == sealed
    assert catalogue.asked == [Provider.OPENROUTER]


def test_a_limit_that_an_older_one_stands_before_is_warned_of(take_first_steps: TakeFirstSteps) -> None:
    assert not take_first_steps.has_budget(WISHES.workspace, WISHES.project)
    take_first_steps(replace(WISHES, limit_micros=2_000_000))

    [warning] = take_first_steps(WISHES).warnings
    assert warning.startswith("--limit-usd 5 was not applied: the project already has a budget of 2 USD.")
    assert take_first_steps.has_budget(WISHES.workspace, WISHES.project)
    for unnamed_or_same in (None, 2_000_000):
        assert not take_first_steps(replace(WISHES, limit_micros=unnamed_or_same)).warnings


@pytest.mark.parametrize("typed", [None, Prices(3, 4)])
def test_prices_that_could_not_be_had_are_taken_later(
    take_first_steps: TakeFirstSteps,
    installation: InMemoryInstallation,
    catalogue: InMemoryCatalogue,
    typed: Prices | None,
) -> None:
    lists, catalogue.lists = catalogue.lists, {}
    take_first_steps(WISHES)
    [warning] = take_first_steps(WISHES).warnings
    assert "still count as 0" in warning
    catalogue.lists = lists
    late = take_first_steps(replace(WISHES, prices=typed))
    model = installation.bound_model("main")

    assert not late.warnings
    assert model is not None
    assert (model.prices, model.has_manual_prices) == (typed or OFFER.prices, typed is not None)


def test_prices_for_a_model_that_has_some_are_warned_of(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    take_first_steps(WISHES)
    [warning] = take_first_steps(replace(WISHES, prices=Prices(3, 4))).warnings
    model = installation.bound_model("main")

    assert "were not applied" in warning
    assert model is not None
    assert model.prices == OFFER.prices


def test_a_workspace_that_is_bound_stays_so_unless_a_model_is_named(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    take_first_steps(replace(WISHES, model="openai/other"))
    again = take_first_steps(WISHES)
    moved = take_first_steps(replace(WISHES, model=DEFAULT_MODEL))

    assert changes(again)["binding"] is Change.KEPT
    assert changes(moved)["binding"] is Change.REPLACED
    bound = installation.bound_model("main")
    assert bound is not None
    assert bound.name == DEFAULT_MODEL


def test_a_model_without_tool_calling_is_warned_of(take_first_steps: TakeFirstSteps) -> None:
    [warning] = take_first_steps(replace(WISHES, model="openai/other")).warnings
    assert "no tool calling" in warning


def test_another_key_takes_the_place_of_the_stored_one(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    take_first_steps(WISHES)
    again = take_first_steps(replace(WISHES, api_key=Secret("sk-another")))

    assert changes(again)["credential"] is Change.REPLACED
    [sealed] = installation.sealed.values()
    assert vault.open(sealed) == Secret("sk-another")


def test_without_a_key_the_stored_one_stays(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    take_first_steps(WISHES)
    again = take_first_steps(replace(WISHES, api_key=None))

    assert changes(again)["credential"] is Change.KEPT
    assert not again.warnings
    [sealed] = installation.sealed.values()
    assert vault.open(sealed) == KEY


def test_a_key_that_no_longer_opens_is_warned_of_and_replaced_by_one_that_is_given(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    take_first_steps(WISHES)
    [(whose, sealed)] = installation.sealed.items()
    installation.sealed[whose] = replace(sealed, wrapped_dek=sealed.encrypted_api_key)

    [warning] = take_first_steps(replace(WISHES, api_key=None)).warnings
    assert "does not open" in warning
    mended = take_first_steps(WISHES)
    assert changes(mended)["credential"] is Change.REPLACED
    assert vault.open(installation.sealed[whose]) == KEY


def test_no_key_at_all_is_warned_of(take_first_steps: TakeFirstSteps) -> None:
    first_steps = take_first_steps(replace(WISHES, api_key=None))
    [warning] = first_steps.warnings

    assert "Without a key for openrouter" in warning
    assert changes(first_steps)["credential"] is Change.MISSING


def test_a_key_of_one_provider_is_not_kept_for_another(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    together = replace(WISHES, provider=Provider.TOGETHER, model="m", prices=Prices(1, 2))
    take_first_steps(replace(together, api_key=None))
    again = take_first_steps(WISHES)

    assert changes(again)["credential"] is Change.MISSING
    assert not installation.sealed


def test_a_model_that_is_not_offered_is_refused_with_the_likeliest(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    with pytest.raises(FirstStepsRefused, match=r"Did you mean openai/gpt-4\.1-mini"):
        take_first_steps(replace(WISHES, model="openai/gpt-4.1-mimi"))
    assert not installation.users


def test_prices_that_are_given_are_taken_for_any_model(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    take_first_steps(replace(WISHES, model="my/model", prices=Prices(1, 2)))

    assert installation.models[Provider.OPENROUTER, "my/model"].prices == Prices(1, 2)


def test_a_provider_that_does_not_answer_leaves_prices_of_zero_and_a_warning(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, catalogue: InMemoryCatalogue
) -> None:
    catalogue.lists.clear()
    [warning] = take_first_steps(WISHES).warnings

    assert "cannot be reached" in warning
    assert installation.models[Provider.OPENROUTER, DEFAULT_MODEL].prices == Prices(0, 0)


def test_where_the_provider_does_not_name_costs_prices_must_be_given(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation, catalogue: InMemoryCatalogue
) -> None:
    catalogue.lists[Provider.OPENAI] = None
    openai = replace(WISHES, provider=Provider.OPENAI, model="gpt")

    with pytest.raises(FirstStepsRefused, match="prices of gpt are unknown"):
        take_first_steps(openai)
    assert not installation.users
    take_first_steps(replace(openai, prices=Prices(3, 4)))
    assert installation.models[Provider.OPENAI, "gpt"].prices == Prices(3, 4)


def test_ollama_needs_neither_key_nor_prices(
    take_first_steps: TakeFirstSteps, catalogue: InMemoryCatalogue
) -> None:
    catalogue.lists[Provider.OLLAMA] = {"llama": replace(OFFER, prices=None, supports_tool_calling=None)}
    first_steps = take_first_steps(replace(WISHES, provider=Provider.OLLAMA, model="llama", api_key=None))

    assert not first_steps.warnings
    assert "credential" not in changes(first_steps)


def test_a_provider_without_an_adapter_is_refused(take_first_steps: TakeFirstSteps) -> None:
    with pytest.raises(FirstStepsRefused, match="anthropic cannot be used yet"):
        take_first_steps(replace(WISHES, provider=Provider.ANTHROPIC, model="claude"))


def test_only_openrouter_has_a_default_model(take_first_steps: TakeFirstSteps) -> None:
    with pytest.raises(FirstStepsRefused, match="together has no default model"):
        take_first_steps(replace(WISHES, provider=Provider.TOGETHER))


def test_a_workspace_of_somebody_else_is_refused_and_nothing_is_changed(
    take_first_steps: TakeFirstSteps, installation: InMemoryInstallation
) -> None:
    take_first_steps(WISHES)
    with pytest.raises(FirstStepsRefused, match="belongs to another user"):
        take_first_steps(replace(WISHES, email="other@example.com"))
    assert list(installation.users) == ["owner@example.com"]


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Main", "main"),
        (" São João & Filhos! ", "sao-joao-filhos"),
        ("--a  b--", "a-b"),
        ("x" * 99, "x" * 60),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    assert slug_of(name) == slug


def test_a_name_without_a_letter_has_no_slug() -> None:
    with pytest.raises(FirstStepsRefused, match="needs a letter"):
        slug_of("日本")
