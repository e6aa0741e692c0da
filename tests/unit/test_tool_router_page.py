"""The page for engines says what the code does."""

import re
from pathlib import Path

import msgspec
import pytest

from adapters.jev.circuit import CIRCUIT_OPEN
from adapters.metrics.telemetry import PrometheusTelemetry
from domain.routing import FallbackOrigin, FallbackReason
from entrypoints.http.wire_routing import WireRouting

PAGE = (Path(__file__).parents[2] / "docs" / "tool-router.md").read_text(encoding="utf-8")


def test_every_field_has_its_row_and_no_other() -> None:
    fields = [field.encode_name for field in msgspec.structs.fields(WireRouting)]

    table = PAGE.split("## `toolRouting`", 1)[1].split("A fallback looks like this", 1)[0]
    assert re.findall(r"(?m)^\| `(\w+)` \|", table) == fields


@pytest.mark.parametrize("example", re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
def test_every_example_is_one(example: str) -> None:
    routing = msgspec.json.decode(example, type=WireRouting)

    assert set(msgspec.json.decode(example)) == set(msgspec.to_builtins(routing))
    assert routing.ofertadas == len(routing.menu_antes)
    assert set(routing.menu_depois) <= set(routing.menu_antes)
    assert routing.aplicado == (len(routing.menu_depois) < len(routing.menu_antes))


def test_every_reason_has_its_row_with_its_origin() -> None:
    rows = set(re.findall(r"(?m)^\| `(\w+)` \| `(infra|modelo|codigo)` \|", PAGE))

    assert rows == {(reason.value, reason.origin.value) for reason in FallbackReason} | {
        (FallbackReason.INVALID_ANSWER.value, FallbackOrigin.CODE.value)
    }
    assert f"### `{CIRCUIT_OPEN}`" in PAGE


def test_every_metric_of_the_router_is_named() -> None:
    families = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in PrometheusTelemetry().registry.collect()
    }
    named = set(re.findall(r"(?m)^\| `(brabo_\w+)", PAGE))

    assert named <= families
    assert {name for name in families if name.startswith("brabo_router_")} <= named
