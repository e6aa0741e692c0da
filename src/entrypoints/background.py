"""What a serving process does beside its turns: it settles for the dead, and asks for the truth."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from application.ports.database import DatabaseFailed
from application.ports.open_truths import OpenTruths
from application.reconcile import Reconcile
from application.settle_abandoned import SettleAbandoned
from entrypoints.container import Container

LOOK_S: Final = 5.0
"""Between two looks for processes that have died, and for rows that await the truth."""
_ASKED_AT_ONCE: Final = 10
"""With the pause, two questions a second at the most."""

_log: Final = structlog.get_logger("brabo.background")


async def settle_for_the_dead(container: Container) -> None:
    """Until cancelled. What fails is tried again."""
    settle: SettleAbandoned = container.settle_abandoned()

    async def step() -> None:
        if turns := await settle():
            _log.warning("abandoned_turns_settled", turns=turns)

    await _again_and_again(step, container)


async def ask_for_the_truth(container: Container) -> None:
    """Until cancelled: one process at a time asks. What fails is tried again."""
    reconcile: Reconcile = container.reconcile()
    truths: OpenTruths = container.open_truths()
    process_id = container.process_id()

    async def step() -> None:
        if not await truths.may_work(process_id, for_s=4 * LOOK_S):
            return
        outcomes: Counter[str] = await reconcile(limit=_ASKED_AT_ONCE)
        if outcomes:
            _log.info("reconciled", **outcomes)

    await _again_and_again(step, container)


async def release_stray_holds(container: Container) -> None:
    """Until cancelled: a hold that was granted in the very moment its turn ended is nobody's, and is freed."""
    holds = container.holds()

    async def step() -> None:
        if freed := await holds.release_strays():
            _log.warning("stray_holds_released", holds=freed)

    await _again_and_again(step, container)


async def tell_of_audits(container: Container) -> None:
    """Until cancelled: the metrics say when the last audit ran, and what it found; nothing is scanned for them."""
    runs, telemetry, clock = container.audit_runs(), container.telemetry(), container.clock()

    async def step() -> None:
        if (last := await runs.last()) is not None:
            telemetry.last_audit(last.violations, age_s=(clock.now() - last.ran_at).total_seconds())
        telemetry.books(container.usage_recorder().oldest_unflushed_s, container.usage_recorder().unkept)

    await _again_and_again(step, container)


async def _again_and_again(step: Callable[[], Awaitable[None]], container: Container) -> None:
    while True:
        try:
            await step()
        except DatabaseFailed as error:
            _log.info("background_put_off", reason=str(error))
        except Exception as error:  # noqa: BLE001 - it goes on, and is told of with its place
            container.telemetry().internal_failure(None, error)
        await asyncio.sleep(LOOK_S)
