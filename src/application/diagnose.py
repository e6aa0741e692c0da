"""What keeps an installation from serving turns, seen in what it has stored and in the providers it needs."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.diagnosis import Diagnosis, StoredBinding, StoredKey
from application.ports.model_catalogue import CatalogueUnavailable, ModelCatalogue
from domain.provider import Provider


class Verdict(StrEnum):
    """How bad it is: `fail` keeps turns from working, `warn` may."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One checked thing: what is so and, unless it is ok, what to do."""

    verdict: Verdict
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagnose:
    """Look at keys, bindings and providers, in this order; findings come as they are made."""

    diagnosis: Diagnosis
    vault: CredentialVault | None
    """None without a master key: then no key is tried."""
    catalogue: ModelCatalogue
    served: Collection[Provider]
    """The providers this program can talk to."""

    def __call__(self) -> Iterator[Finding]:
        """Raises DatabaseFailed."""
        keys, bindings = self.diagnosis.keys(), self.diagnosis.bindings()
        if self.vault is not None:
            yield from self._keys(self.vault, keys)
        yield from self._bindings(bindings)
        yield from self._providers(
            {key.provider for key in keys} | {binding.provider for binding in bindings}
        )

    def _keys(self, vault: CredentialVault, keys: Sequence[StoredKey]) -> Iterator[Finding]:
        closed: list[StoredKey] = []
        for key in keys:
            try:
                vault.open(key.sealed)
            except CannotOpenCredential:
                closed.append(key)
        for key in closed:
            yield Finding(
                Verdict.FAIL,
                "credentials",
                f"the key for {key.provider} of {key.owner_email} opens neither with CREDENTIALS_MASTER_KEY nor with "
                "CREDENTIALS_MASTER_KEY_PREVIOUS: set the master key it was sealed with, or have its owner store it "
                "again (`brabo init` does that too).",
            )
        if not keys:
            yield Finding(Verdict.WARN, "credentials", "no key is stored: run `brabo init`.")
        elif not closed:
            yield Finding(Verdict.OK, "credentials", f"{_count(len(keys), 'stored key')} can be opened.")

    def _bindings(self, bindings: Sequence[StoredBinding]) -> Iterator[Finding]:
        unserved = [
            binding for binding in bindings if binding.provider not in {str(name) for name in self.served}
        ]
        gone = [binding for binding in bindings if not binding.is_available]
        for binding in unserved:
            yield Finding(
                Verdict.WARN,
                "bindings",
                f"{_in_words(binding)}: there is no adapter for {binding.provider}, so its turns end with "
                f"`no_provider`. Bind a model of {', '.join(sorted(self.served))}.",
            )
        for binding in gone:
            yield Finding(
                Verdict.WARN,
                "bindings",
                f"{_in_words(binding)}: the model is marked as unavailable and is passed over. Bind another one.",
            )
        if not bindings:
            yield Finding(Verdict.WARN, "bindings", "no model is bound: run `brabo init`.")
        elif not unserved and not gone:
            yield Finding(
                Verdict.OK, "bindings", f"{_count(len(bindings), 'binding')}, each to a usable model."
            )

    def _providers(self, names: Collection[str]) -> Iterator[Finding]:
        for provider in sorted(provider for provider in self.served if provider in names):
            try:
                offered = self.catalogue.offered(provider)
            except CatalogueUnavailable as error:
                yield Finding(Verdict.FAIL, "provider", f"{provider}: {error}")
            else:
                shown = "no list without a key" if offered is None else _count(len(offered), "model")
                yield Finding(Verdict.OK, "provider", f"{provider} answers ({shown}).")


def _in_words(binding: StoredBinding) -> str:
    return f"{binding.scope} {binding.scope_id} is bound to {binding.model} of {binding.provider}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
