"""The four layers: that they are ours, that nothing else stands beside them, and what the inside may import."""

import ast
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
LAYERS = ["domain", "application", "adapters", "entrypoints"]

CLOCKS_AND_IO = {
    "asyncio", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select", "shutil",
    "socket", "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_ours(layer: str) -> None:
    """Other distributions own these plain names too; site-packages would win over a checkout installed in place."""
    owners = set(importlib.metadata.packages_distributions().get(layer, []))

    assert owners <= {"brabo-api"}
    module_file = importlib.import_module(layer).__file__
    assert module_file is not None
    assert Path(module_file).is_relative_to(SRC)


def test_nothing_stands_beside_the_layers() -> None:
    assert {path.name for path in SRC.iterdir() if path.name != "__pycache__"} == set(LAYERS)


def test_the_domain_imports_the_standard_library_and_itself() -> None:
    assert strangers("domain", allowed=sys.stdlib_module_names | {"domain"}) == []


def test_the_application_imports_the_standard_library_the_domain_and_itself() -> None:
    assert strangers("application", allowed=sys.stdlib_module_names | {"domain", "application"}) == []


def test_the_domain_has_no_clock_no_chance_and_no_io() -> None:
    assert strangers("domain", allowed=(sys.stdlib_module_names | {"domain"}) - CLOCKS_AND_IO) == []


def strangers(layer: str, *, allowed: frozenset[str] | set[str]) -> list[str]:
    """The imports of a layer, wherever they stand in a module, that are not allowed: "file:line module"."""
    files = sorted((SRC / layer).rglob("*.py"))
    assert files, f"{layer} has no modules"
    return [
        f"{file.relative_to(SRC)}:{line} {module}"
        for file in files
        for line, module in imports(file)
        if module.split(".")[0] not in allowed
    ]


def imports(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, name.name) for name in names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield node.lineno, module
            case ast.ImportFrom():
                yield node.lineno, file.relative_to(SRC).parts[0]  # a relative import stays in its layer
            case _:
                pass
