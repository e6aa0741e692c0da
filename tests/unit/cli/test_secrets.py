"""The secrets that `brabo init` makes."""

import secrets
import threading
import time
from pathlib import Path

import pytest

from entrypoints.cli.init import _settings_with_secrets
from entrypoints.settings import SECRET_NAMES, Settings, read_kept_secrets


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*SECRET_NAMES, "BRABO_ENV", "NODE_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BRABO_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_secrets_made_at_once_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    make = secrets.token_urlsafe

    def make_slowly(length: int) -> str:
        time.sleep(0.02)
        return make(length)

    monkeypatch.setattr(secrets, "token_urlsafe", make_slowly)
    together = threading.Barrier(4)
    got: list[Settings] = []

    def init() -> None:
        together.wait()
        got.append(_settings_with_secrets())

    threads = [threading.Thread(target=init) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 4
    assert len({settings.master_key.reveal() for settings in got if settings.master_key}) == 1


def test_secrets_that_are_kept_stay_and_those_missing_are_added(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTH_JWT_SECRET", "given-by-the-environment")
    _settings_with_secrets()
    before = read_kept_secrets(data_dir)
    monkeypatch.delenv("AUTH_JWT_SECRET")
    settings = _settings_with_secrets()
    after = read_kept_secrets(data_dir)

    assert set(before) == set(SECRET_NAMES) - {"AUTH_JWT_SECRET"}
    assert set(after) == set(SECRET_NAMES)
    assert before.items() <= after.items()
    assert all(len(text) >= 32 for text in after.values())
    assert settings.jwt_secret is not None
    assert settings.jwt_secret.reveal() == after["AUTH_JWT_SECRET"]
