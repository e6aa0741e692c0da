from pathlib import Path

from entrypoints.simulator.faults import FAULTS, Fault

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def row(fault: Fault) -> str:
    parameters = ", ".join(f"`{name}={value}`" for name, value in fault.parameters.items())
    kinds = " ".join(sorted(fault.applies_to))
    return f"| `{fault.name}` | {fault.phase} | {kinds} | {fault.description} | {parameters} |"


def test_the_page_lists_every_fault_as_it_is() -> None:
    listed = [
        line for line in PAGE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 6
    ]
    assert listed == [row(fault) for fault in FAULTS.values()]
