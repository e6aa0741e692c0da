"""The account of the recordings, on a checkout made for each test: a run must not pass by reading less."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import recordings, recordings_plugin
from tests.support.recordings import Recordings

CHAT, ENVELOPES = "fixtures/openrouter/chat_200.json", "spec/vectors/credential_envelopes.json"
TOKENS, DECISIONS = "spec/vectors/access_tokens.json", "fixtures/openrouter/decisions_200.json"
FILES = [CHAT, ENVELOPES, TOKENS, DECISIONS]

CONFTEST = "from tests.support.recordings_plugin import *\n"
READER = "from tests.support.recordings import RECORDINGS\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    for path in [*FILES, "fixtures/openrouter/INDEX.md"]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(path.encode())
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    (root / "tests" / "support").mkdir(parents=True)
    (root / "tests" / "unit").mkdir()
    for module in (recordings, recordings_plugin):
        shutil.copy(str(module.__file__), root / "tests" / "support")
    (root / "tests" / "conftest.py").write_text(CONFTEST)
    (root / "pyproject.toml").write_text(
        '[tool.pytest]\ntestpaths = ["tests"]\npythonpath = ["."]\naddopts = ["--import-mode=importlib"]\n'
    )
    return root


def run(checkout: Path, reading: list[str], *arguments: str) -> tuple[int, str]:
    body = "".join(f"    assert RECORDINGS.read_bytes({path!r}) == {path.encode()!r}\n" for path in reading)
    test = f"{READER}def test_reads():\n{body or '    pass'}\ndef test_other(): pass\n"
    (checkout / "tests" / "unit" / "test_it.py").write_text(test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    without_plugins = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        command, cwd=checkout, env=without_plugins, capture_output=True, text=True, check=False, timeout=60
    )
    return ran.returncode, ran.stdout + ran.stderr


def test_what_was_read_skipped_and_left(shared: Path) -> None:
    read = Recordings(shared)
    assert read.read_bytes(CHAT) == CHAT.encode()

    assert read.read() == [CHAT]
    assert read.skipped() == [DECISIONS, ENVELOPES, TOKENS]
    assert read.named("chat_*") == [CHAT]


def test_a_file_that_is_not_there_is_not_read(shared: Path) -> None:
    read = Recordings(shared)
    with pytest.raises(FileNotFoundError):
        read.read_bytes("fixtures/openrouter/chat_404.json")

    assert not read.read()


def test_without_the_folder_there_is_nothing_to_read() -> None:
    read = Recordings(None)
    with pytest.raises(FileNotFoundError, match="no folder `shared`"):
        read.read_bytes(CHAT)

    assert not read.named("*")
    assert not read.skipped()


def test_a_whole_run_that_read_everything_passes(shared: Path, checkout: Path) -> None:
    status, output = run(checkout, FILES)

    assert "recordings: 4 read, 0 skipped" in output
    assert status == 0, output


@pytest.mark.parametrize("arguments", [(), (".",), ("tests",)], ids=repr)
def test_a_whole_run_that_left_one_out_fails(
    shared: Path, checkout: Path, arguments: tuple[str, ...]
) -> None:
    status, output = run(checkout, [CHAT, DECISIONS, TOKENS], *arguments)

    assert f"recordings: {ENVELOPES} is there and no test read it" in output
    assert "2 passed" in output
    assert status == 1


@pytest.mark.parametrize(
    "arguments", [("tests/unit",), ("-k", "reads"), ("tests/unit/test_it.py::test_reads",)], ids=repr
)
def test_a_part_of_the_suite_may_read_less(shared: Path, checkout: Path, arguments: tuple[str, ...]) -> None:
    status, output = run(checkout, [CHAT], *arguments)

    assert "1 read" in output
    assert status == 0, output


def test_a_run_without_the_folder_passes_and_says_so(checkout: Path) -> None:
    status, output = run(checkout, [])

    assert "recordings: the folder `shared` is not here" in output
    assert status == 0, output
