from dataclasses import replace

import pytest

from adapters.in_memory.installation import InMemoryCatalogue, InMemoryInstallation
from adapters.security.envelope import EnvelopeVault
from application.diagnose import Diagnose, Finding, Verdict
from application.ports.first_steps import NewModel
from domain.provider import Provider
from domain.secret import Secret
from domain.usage import Prices

SERVED = set(Provider) - {Provider.ANTHROPIC}


@pytest.fixture(scope="module")
def vault() -> EnvelopeVault:
    return EnvelopeVault(Secret("master-key-of-the-tests"), None)


@pytest.fixture
def installation(vault: EnvelopeVault) -> InMemoryInstallation:
    made = InMemoryInstallation()
    bind(made, Provider.OPENROUTER)
    made.keep_key(made.user("owner@example.com", None).id, Provider.OPENROUTER, vault.seal(Secret("sk-key")))
    return made


def bind(installation: InMemoryInstallation, provider: Provider) -> None:
    owner = installation.user("owner@example.com", None)
    model = installation.model(
        NewModel(
            provider=provider,
            name="a-model",
            display_name="A model",
            prices=Prices(1, 2),
            has_manual_prices=True,
            context_window=None,
            max_output_tokens=None,
            supports_tool_calling=True,
        )
    )
    installation.bind(installation.workspace("main", "Main", owner.id).id, model.id, owner.id)


def diagnose(
    installation: InMemoryInstallation,
    vault: EnvelopeVault | None,
    catalogue: InMemoryCatalogue | None = None,
) -> list[Finding]:
    answering = catalogue or InMemoryCatalogue(dict.fromkeys(Provider, None))
    return list(Diagnose(diagnosis=installation, vault=vault, catalogue=answering, served=SERVED)())


def bad(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict is not Verdict.OK]


def test_a_sound_installation_has_one_good_finding_a_subject(
    installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    findings = diagnose(installation, vault)

    assert not bad(findings)
    assert [finding.subject for finding in findings] == ["credentials", "bindings", "provider"]


def test_an_empty_installation_is_told_to_begin(vault: EnvelopeVault) -> None:
    findings = diagnose(InMemoryInstallation(), vault)

    assert [finding.verdict for finding in findings] == [Verdict.WARN, Verdict.WARN]
    assert all("brabo init" in finding.text for finding in findings)


def test_a_key_under_another_master_key_fails_with_its_owner(
    installation: InMemoryInstallation,
) -> None:
    other = EnvelopeVault(Secret("another-master-key"), None)
    [finding] = bad(diagnose(installation, other))

    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "credentials")
    assert "owner@example.com" in finding.text
    assert "sk-key" not in finding.text


def test_a_key_under_the_previous_master_key_is_good(installation: InMemoryInstallation) -> None:
    rotated = EnvelopeVault(Secret("another-master-key"), Secret("master-key-of-the-tests"))
    assert not bad(diagnose(installation, rotated))


def test_a_damaged_envelope_fails(installation: InMemoryInstallation, vault: EnvelopeVault) -> None:
    [(whose, sealed)] = installation.sealed.items()
    installation.sealed[whose] = replace(sealed, api_key_auth_tag=sealed.dek_auth_tag)
    [finding] = bad(diagnose(installation, vault))

    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "credentials")


def test_without_a_master_key_no_envelope_is_tried(installation: InMemoryInstallation) -> None:
    assert "credentials" not in [finding.subject for finding in diagnose(installation, None)]


def test_a_binding_to_a_provider_without_an_adapter_is_named(
    installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    bind(installation, Provider.ANTHROPIC)
    [finding] = bad(diagnose(installation, vault))

    assert (finding.verdict, finding.subject) == (Verdict.WARN, "bindings")
    assert "a-model of anthropic" in finding.text
    assert "no_provider" in finding.text


def test_a_binding_to_a_model_that_is_gone_is_named(
    installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    installation.unavailable.update(installation.bound.values())
    [finding] = bad(diagnose(installation, vault))

    assert finding.verdict is Verdict.WARN
    assert "unavailable" in finding.text


def test_only_providers_in_use_are_asked_and_one_that_does_not_answer_fails(
    installation: InMemoryInstallation, vault: EnvelopeVault
) -> None:
    catalogue = InMemoryCatalogue()
    [finding] = bad(diagnose(installation, vault, catalogue))

    assert catalogue.asked == [Provider.OPENROUTER]
    assert (finding.verdict, finding.subject) == (Verdict.FAIL, "provider")
    assert "cannot be reached" in finding.text
