"""What the environment may hold, and which secrets a server may start with."""

import os
import subprocess
import sys

import pytest

from domain.provider import Provider
from entrypoints.settings import SettingsError, is_loopback, read_settings

RANDOM = "a-random-secret-of-the-tests"
EXAMPLE = "dev-master-key-change-me"
SECRETS = {"BRABO_SERVICE_TOKEN": RANDOM, "AUTH_JWT_SECRET": RANDOM, "CREDENTIALS_MASTER_KEY": RANDOM}
NAMES = (*SECRETS, *(f"{name}_PREVIOUS" for name in SECRETS))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("value", "where", "said"),
    [
        (EXAMPLE, {"BRABO_HOST": "0.0.0.0"}, "public examples"),
        (EXAMPLE, {"BRABO_HOST": "127.example.com"}, "public examples"),
        (EXAMPLE, {"BRABO_ENV": "production"}, "public examples"),
        ("fifteen-letters", {"NODE_ENV": "production"}, "shorter than 16"),
    ],
)
def test_no_server_starts_with_a_weak_secret(name: str, value: str, where: dict[str, str], said: str) -> None:
    settings = read_settings({**SECRETS, name: value, **where})

    with pytest.raises(SettingsError, match=f"^{name} .*{said}") as refused:
        settings.require_secrets()

    assert value not in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [EXAMPLE, "short"])
def test_on_loopback_a_weak_secret_serves_for_a_try(name: str, value: str) -> None:
    read_settings({**SECRETS, name: value, "BRABO_HOST": "127.0.0.2"}).require_secrets()


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_that_is_no_text_is_named(name: str) -> None:
    program = "import os; from entrypoints.settings import read_settings; read_settings(os.environ)"
    environ = {**os.environ, name: "not-utf-8-\udcff-but-long-enough"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False
    )

    assert f"SettingsError: {name} is not valid UTF-8" in ran.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_addresses(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["127.example.com", "127.0.0.1.example.com", "0.0.0.0", "::", "10.0.0.1", "box"]
)
def test_other_addresses(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("127.0.0.1:11434", "http://127.0.0.1:11434"),
        ("box", "http://box"),
        ("https://box/", "https://box"),
    ],
)
def test_ollamas_address_may_lack_its_scheme(given: str, base: str) -> None:
    assert read_settings({"OLLAMA_HOST": given}).provider_bases == {Provider.OLLAMA: base}


def test_no_other_address_may() -> None:
    with pytest.raises(SettingsError, match="TOGETHER_BASE_URL"):
        read_settings({"TOGETHER_BASE_URL": "box:80"})


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://app.example.com", "https://app.example.com"),
        ("https://App.Example.com/", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://localhost:3001", "http://localhost:3001"),
        ("http://[::1]:80", "http://[::1]"),
        ("", None),
    ],
)
def test_the_web_apps_origin_is_as_browsers_write_it(given: str, origin: str | None) -> None:
    assert read_settings({"WEB_ORIGIN": given}).web_origin == origin


@pytest.mark.parametrize(
    "given",
    [
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/app",
        "https://app.example.com?x",
        "https://a.example.com,https://b.example.com",
        "https://app.example.com:99999",
        "https://user@app.example.com",
        "https://ção.example.com",
    ],
)
def test_what_is_not_one_origin_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"^WEB_ORIGIN must"):
        read_settings({"WEB_ORIGIN": given})


def test_the_routers_patience_is_two_seconds_unless_told_otherwise() -> None:
    assert read_settings({}).tool_router_timeout_s == 2.0
    assert read_settings({"TOOL_ROUTER_TIMEOUT_MS": "1"}).tool_router_timeout_s == 0.001


@pytest.mark.parametrize("given", ["0", "-1", "1.5", "2s", "1e3", "٢", "true", " 5", "2147483648"])
def test_any_other_patience_of_the_router_is_refused(given: str) -> None:
    with pytest.raises(SettingsError, match=r"^TOOL_ROUTER_TIMEOUT_MS must be a whole number"):
        read_settings({"TOOL_ROUTER_TIMEOUT_MS": given})


def test_an_answer_on_a_strict_budget_has_16_tokens_at_least() -> None:
    name = "BRABO_STRICT_OUTPUT_TOKENS"

    assert read_settings({}).strict_output_tokens == 8_192
    assert read_settings({name: "16"}).strict_output_tokens == 16
    for text in ("15", "0", "-1", "many"):
        with pytest.raises(SettingsError, match=f"^{name} must be a whole number from 16"):
            read_settings({name: text})
