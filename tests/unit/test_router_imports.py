"""The router has no say in policy: its modules know neither the budget gate nor the provider registry."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
ROUTER = [
    "domain/step.py",
    "domain/menu.py",
    "domain/routing.py",
    "application/decide_step_menu.py",
    "application/ports/tool_router.py",
    "adapters/jev",
]
POLICY = {
    "domain.budget", "domain.binding", "domain.failure", "application.ports.budget_gate",
    "application.ports.llm_provider", "application.ports.turn_context", "application.record_usage", "application.turn",
    "adapters.openai_compatible", "entrypoints",
}  # fmt: skip


@pytest.mark.parametrize("name", ROUTER)
def test_a_module_of_the_router_knows_no_policy_directly_or_through_others(name: str) -> None:
    path = SRC / name
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files

    assert [way for file in files for way in ways_to_policy(file)] == []


def ways_to_policy(file: Path) -> Iterator[str]:
    """Each as "file > file > module"."""
    seen = {file}
    left = [(file, file.name)]
    while left:
        file, way = left.pop()
        for module in first_party(file):
            if any(module == policy or module.startswith(f"{policy}.") for policy in POLICY):
                yield f"{way} > {module}"
            for imported in files_of(module):
                if imported not in seen:
                    seen.add(imported)
                    left.append((imported, f"{way} > {module}"))


def first_party(file: Path) -> Iterator[str]:
    """The modules of ours that a file imports, wherever in it; a name may be a module too."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield module
                yield from (f"{module}.{name.name}" for name in names)
            case ast.ImportFrom():
                raise AssertionError(f"{file}: a relative import, which this test does not read")
            case _:
                pass


def files_of(module: str) -> Iterator[Path]:
    path = SRC.joinpath(*module.split("."))
    candidates = [path.with_suffix(".py"), path / "__init__.py"]
    yield from (candidate for candidate in candidates if candidate.is_file())
