"""What the ledger keeps of what a call cost is the provider's own figure, digit for digit."""

from decimal import Decimal

import pytest

from entrypoints.simulator import Simulator
from tests.support.brabo_data import World
from tests.support.engine import select, take_turn
from tests.support.live import LiveApi
from tests.support.routed_turns import routed

ROUTES = pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
LEDGER = "SELECT generation_id, charged_usd, cost_micros FROM token_usage"


@ROUTES
async def test_chat_and_decision_are_kept_as_the_bill_has_them(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    got = await take_turn(api, world, stream=stream, **routed())

    billed = {entry["id"]: Decimal(entry["cost"]) for entry in simulator.bill()["entries"]}
    kept = {row["generation_id"]: row["charged_usd"] for row in select(database_url, LEDGER)}
    assert got.answer["toolRouting"]["aplicado"]
    assert len(kept) == 2
    assert kept == billed
    assert any(usd % Decimal("0.000001") for usd in kept.values()), "one of them is no whole micro-USD"


@ROUTES
async def test_what_the_catalogue_says_is_no_exact_cost(
    api: LiveApi, simulator: Simulator, world: World, database_url: str, stream: bool
) -> None:
    simulator.script({"fault": "cost-absent"})

    await take_turn(api, world, stream=stream)

    (row,) = select(database_url, LEDGER)
    assert row["charged_usd"] is None
    assert row["cost_micros"] > 0
