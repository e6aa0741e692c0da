"""Asking the provider what rows truly cost that were estimated or cut."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from application.ports.clock import Clock
from application.ports.corrections import Corrections
from application.ports.credential_vault import CannotOpenCredential, CredentialVault
from application.ports.generation_records import GenerationRecords, RecordsUnavailable
from application.ports.open_truths import OpenTruth, OpenTruths
from application.ports.owner_keys import OwnerKeys

_GIVEN_UP_AFTER: Final = timedelta(hours=24)
_FIRST_WAIT_S: Final = 4.0
"""A record lags by up to half a minute; each wait is twice the one before."""
_LONGEST_WAIT_S: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """The true cost becomes a correction; what nobody knows after 24 h is closed by name."""

    truths: OpenTruths
    records: GenerationRecords
    corrections: Corrections
    keys: OwnerKeys
    vault: CredentialVault
    clock: Clock

    async def __call__(self, *, limit: int, even_if_early: bool = False) -> Counter[str]:
        """Ask for up to `limit` rows that are due; how many came to what: `corrected`, `equal`, `known`,
        `irreconcilable`, `gone`, `later`. Raises DatabaseFailed.
        """
        taken = await self.truths.take(now=self.clock.now(), limit=limit, even_if_early=even_if_early)
        return Counter([await self._reconcile(truth) for truth in taken])

    async def _reconcile(self, truth: OpenTruth) -> str:
        now = self.clock.now()
        may_give_up = now >= truth.created_at + _GIVEN_UP_AFTER
        wait_s = min(_FIRST_WAIT_S * 2 ** min(truth.times_asked - 1, 20), _LONGEST_WAIT_S)
        if truth.generation_id is None:
            reason = "the provider never named an id for it"
        else:
            sealed = await self.keys.of_project(truth.project_id, truth.provider)
            try:
                key = None if sealed is None else self.vault.open(sealed)
            except CannotOpenCredential:
                key = None
            if key is None:
                reason = "the workspace's owner has no key that can be opened"
            else:
                try:
                    record = await self.records.find(truth.provider, truth.generation_id, key)
                except RecordsUnavailable as error:
                    # Not an answer: it is asked for as long as that takes.
                    await self._later(truth, now, max(wait_s, error.retry_after_s or 0.0))
                    return "later"
                if record is not None:
                    booked = await self.corrections.book_truth(truth.usage_id, record.charged_usd)
                    if booked is not None:
                        return booked.verdict.value
                    await self.corrections.write_off(truth.usage_id, truth.turn_id, "its row is gone")
                    return "gone"
                reason = "the provider does not know it"
        if not may_give_up:
            await self._later(truth, now, wait_s)
            return "later"
        await self.corrections.write_off(truth.usage_id, truth.turn_id, f"after 24 h, {reason}")
        return "irreconcilable"

    async def _later(self, truth: OpenTruth, now: datetime, wait_s: float) -> None:
        await self.truths.postpone(truth.usage_id, now + timedelta(seconds=wait_s))
