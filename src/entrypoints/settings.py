"""The one reader of the environment."""

import ipaddress
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import platformdirs

from domain.budget import STRICT_OUTPUT_TOKENS_MIN
from domain.provider import Provider
from domain.secret import Secret

SERVICE_TOKEN: Final = "BRABO_SERVICE_TOKEN"
JWT_SECRET: Final = "AUTH_JWT_SECRET"
MASTER_KEY: Final = "CREDENTIALS_MASTER_KEY"
SECRET_NAMES: Final = (SERVICE_TOKEN, JWT_SECRET, MASTER_KEY)
_EXAMPLE_VALUES: Final = frozenset(
    {"dev-service-token-change-me", "dev-auth-jwt-secret-change-me", "dev-master-key-change-me"}
)
"""Values printed in public examples: as good as no secret."""
_SHORTEST_SECRET: Final = 16
"""Characters."""

_BASE_URL_NAMES: Final = {
    Provider.OPENROUTER: "OPENROUTER_API_BASE",
    Provider.OPENAI: "OPENAI_BASE_URL",
    Provider.NVIDIA_NIM: "NVIDIA_NIM_BASE_URL",
    Provider.TOGETHER: "TOGETHER_BASE_URL",
    Provider.DEEPINFRA: "DEEPINFRA_BASE_URL",
    Provider.BITDEER: "BITDEER_BASE_URL",
    Provider.VULTR: "VULTR_BASE_URL",
    Provider.OLLAMA: "OLLAMA_HOST",
}

_DATABASE_SCHEME: Final = re.compile(r"postgres(ql)?(\+\w+)?")
_HOST_AND_PORT: Final = re.compile(r"(?:\[[0-9a-fA-F:.%]*\]|[^:@\[\]]*)(?::[0-9]*)?")


class SettingsError(Exception):
    """A variable is missing or wrong. The text names it and says what to do, and never holds a secret's value."""


@dataclass(frozen=True, slots=True)
class SecretFinding:
    """A judgement of one secret, in a sentence that names it and never holds its value."""

    text: str
    is_good: bool = False
    forbids_serving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the environment decides. Secrets hide themselves in reprs."""

    is_production: bool
    data_dir: Path
    """Where the embedded database and the generated secrets live."""
    database_url: Secret | None
    """None: the embedded PostgreSQL."""
    service_token: Secret | None
    service_token_previous: Secret | None
    jwt_secret: Secret | None
    jwt_secret_previous: Secret | None
    master_key: Secret | None
    master_key_previous: Secret | None
    host: str
    port: int
    public_url: str
    web_origin: str | None
    """Of the web app whose scripts may call the owners' routes, as browsers write it."""
    provider_bases: Mapping[Provider, str]
    """Only those that the environment names; the adapter knows the usual ones."""
    request_timeout_s: float
    """The longest time without a frame of the provider."""
    tool_router_timeout_s: float
    """For asking which tool fits a step, answer included."""
    turn_ceiling_s: float
    stream_ceiling_s: float
    drain_grace_s: float
    drain_s: float
    journal_dir: Path
    """Where what was spent is kept until the database has it."""
    journal_fsync_always: bool
    """Each entry waits for the disk: it survives a power cut."""
    reconciles: bool
    """Whether this process asks for the true cost of rows that were estimated or cut."""
    strict_output_tokens: int
    """The most that an answer on a strict budget has."""
    metrics_address: tuple[str, int] | None

    @property
    def longest_drain_s(self) -> float:
        """From the signal to end until the last turn has ended."""
        return self.drain_grace_s + self.drain_s + 2

    @property
    def longest_turn_s(self) -> float:
        """A process that is silent for longer has no turn any more."""
        return max(self.turn_ceiling_s, self.stream_ceiling_s) + self.longest_drain_s

    @property
    def openrouter_base(self) -> str | None:
        """Root of OpenRouter's whole api, for what is no chat; None: the usual one."""
        return self.provider_bases.get(Provider.OPENROUTER)

    def secret_findings(self) -> Iterator[SecretFinding]:
        """What there is to say of each secret: of those that must be there, and of previous ones that are."""
        is_exposed = self.is_production or not is_loopback(self.host)
        advice = "set a random one, for example from `openssl rand -hex 32`."
        for name, secret, is_needed in (
            (SERVICE_TOKEN, self.service_token, True),
            (_previous(SERVICE_TOKEN), self.service_token_previous, False),
            (JWT_SECRET, self.jwt_secret, True),
            (_previous(JWT_SECRET), self.jwt_secret_previous, False),
            (MASTER_KEY, self.master_key, True),
            (_previous(MASTER_KEY), self.master_key_previous, False),
        ):
            if secret is None:
                if is_needed:
                    way_out = advice if self.is_production else "set it, or let `brabo init` make one."
                    yield SecretFinding(f"{name} is missing: {way_out}", forbids_serving=True)
            elif secret.reveal() in _EXAMPLE_VALUES:
                text = f"{name} holds a value from public examples, which is for a loopback address alone: {advice}"
                yield SecretFinding(text, forbids_serving=is_exposed)
            elif len(secret.reveal()) < _SHORTEST_SECRET:
                text = f"{name} is shorter than {_SHORTEST_SECRET} characters: {advice}"
                yield SecretFinding(text, forbids_serving=self.is_production)
            else:
                yield SecretFinding(f"{name} is set.", is_good=True)

    def require_secrets(self) -> None:
        """Raise SettingsError unless a server may start with these secrets on this address."""
        for finding in self.secret_findings():
            if finding.forbids_serving:
                raise SettingsError(finding.text)


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of this environment. Raises SettingsError, naming the variable.

    Outside production, secrets that are not set are those that `brabo init` keeps in the data directory.
    """
    is_production = "production" in (environ.get("BRABO_ENV"), environ.get("NODE_ENV"))
    data_dir = Path(environ.get("BRABO_DATA_DIR") or platformdirs.user_data_path("brabo"))
    kept = {} if is_production else read_kept_secrets(data_dir)
    host = environ.get("BRABO_HOST") or "127.0.0.1"
    port = _integer(environ, "BRABO_PORT", 3000, low=0, high=65535)

    def secret(name: str) -> Secret | None:
        text = environ.get(name) or kept.get(name)
        if not text:
            return None
        try:
            text.encode()
        except UnicodeEncodeError:
            raise SettingsError(f"{name} is not valid UTF-8: set it to plain text.") from None
        return Secret(text)

    return Settings(
        is_production=is_production,
        data_dir=data_dir,
        database_url=_database_url(environ),
        service_token=secret(SERVICE_TOKEN),
        service_token_previous=secret(_previous(SERVICE_TOKEN)),
        jwt_secret=secret(JWT_SECRET),
        jwt_secret_previous=secret(_previous(JWT_SECRET)),
        master_key=secret(MASTER_KEY),
        master_key_previous=secret(_previous(MASTER_KEY)),
        host=host,
        port=port,
        public_url=_http_url(environ, "API_PUBLIC_URL") or f"http://{host}:{port}",
        web_origin=_origin(environ, "WEB_ORIGIN"),
        provider_bases=_provider_bases(environ),
        request_timeout_s=_integer(environ, "LLM_REQUEST_TIMEOUT_MS", 300_000, low=1) / 1000,
        tool_router_timeout_s=_integer(environ, "TOOL_ROUTER_TIMEOUT_MS", 2_000, low=1) / 1000,
        turn_ceiling_s=_integer(environ, "BRABO_TURN_CEILING_MS", 285_000, low=1) / 1000,
        stream_ceiling_s=_integer(environ, "BRABO_STREAM_CEILING_MS", 600_000, low=1) / 1000,
        drain_grace_s=_seconds(environ, "BRABO_DRAIN_GRACE_S", 5),
        drain_s=_seconds(environ, "BRABO_DRAIN_S", 20),
        journal_dir=Path(environ.get("BRABO_JOURNAL_DIR") or data_dir / "journal"),
        journal_fsync_always=_one_of(environ, "BRABO_JOURNAL_FSYNC", ("never", "always")) == "always",
        reconciles=_one_of(environ, "BRABO_RECONCILE", ("on", "off")) == "on",
        strict_output_tokens=_integer(
            environ, "BRABO_STRICT_OUTPUT_TOKENS", 8192, low=STRICT_OUTPUT_TOKENS_MIN
        ),
        metrics_address=_address(environ, "BRABO_METRICS_ADDR"),
    )


def kept_secrets_path(data_dir: Path) -> Path:
    """Where `brabo init` keeps the secrets it makes."""
    return data_dir / "secrets.json"


def read_kept_secrets(data_dir: Path) -> dict[str, str]:
    """The secrets kept in the data directory; none when there is no such file."""
    path = kept_secrets_path(data_dir)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read ({type(error).__name__}): mend or remove it.") from None
    if not isinstance(kept, dict):
        raise SettingsError(f"{path} does not hold a JSON object: mend or remove it.")
    return {name: text for name in SECRET_NAMES if isinstance(text := kept.get(name), str)}


def keep_secrets(data_dir: Path, secrets: Mapping[str, str]) -> None:
    """Write the secrets, mode 0600, in one step: a reader sees the old file or the new one."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = kept_secrets_path(data_dir)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(dict(secrets), file, indent=1)
    draft.replace(path)


def is_loopback(host: str) -> bool:
    """Whether a listener on this host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _previous(name: str) -> str:
    return f"{name}_PREVIOUS"


def _provider_bases(environ: Mapping[str, str]) -> dict[Provider, str]:
    bases = {provider: _http_url(environ, name) for provider, name in _BASE_URL_NAMES.items()}
    return {provider: base for provider, base in bases.items() if base}


def _http_url(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name)
    if not text:
        return None
    if name == "OLLAMA_HOST" and "://" not in text:
        text = f"http://{text}"  # Ollama's own tools take it without a scheme
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(f"{name} must be an address that starts with http:// or https://.")
    if parts.username or parts.password:
        raise SettingsError(f"{name} must not hold a user name or password.")
    return text.rstrip("/")


def _origin(environ: Mapping[str, str], name: str) -> str | None:
    """As browsers write it: a name in lower case, without the port that its scheme implies."""
    url = _http_url(environ, name)
    if url is None:
        return None
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    host = parts.hostname or ""
    is_name = host.isascii() and host.isprintable()
    if not is_name or port == -1 or parts.path or parts.query or parts.fragment:
        raise SettingsError(
            f"{name} must be one origin and nothing after it, such as https://app.example.com or http://localhost:3001."
        )
    is_implied = port in (None, {"http": 80, "https": 443}[parts.scheme])
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{'' if is_implied else f':{port}'}"


def _database_url(environ: Mapping[str, str]) -> Secret | None:
    """Refuses what would make a piece of the password look like a host or a port, which errors may show."""
    text = environ.get("DATABASE_URL")
    if not text:
        return None
    scheme, _, rest = text.partition("://")
    user, _, hosts = re.split(r"[/?]", rest, maxsplit=1)[0].rpartition("@")
    if (
        not _DATABASE_SCHEME.fullmatch(scheme)
        or "@" in user
        or not all(_HOST_AND_PORT.fullmatch(host) for host in hosts.split(","))
    ):
        raise SettingsError(
            "DATABASE_URL cannot be read: write postgresql://user:password@host:port/database, with the special "
            "characters of user and password percent-encoded (@ is %40, / is %2F)."
        )
    return Secret(text)


def _integer(environ: Mapping[str, str], name: str, default: int, *, low: int, high: int = 2**31 - 1) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and low <= int(text) <= high):
        raise SettingsError(f"{name} must be a whole number from {low} to {high}, not {text[:20]!r}.")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise SettingsError(f"{name} must be a number of seconds from 0 to 3600, not {text[:20]!r}.")
    return seconds


def _one_of(environ: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The first is the default."""
    text = environ.get(name) or values[0]
    if text not in values:
        raise SettingsError(f"{name} must be {' or '.join(values)}, not {text[:20]!r}.")
    return text


def _address(environ: Mapping[str, str], name: str) -> tuple[str, int] | None:
    text = environ.get(name)
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise SettingsError(f"{name} must be host:port or :port, not {text[:40]!r}.")
    return host.strip("[]") or "127.0.0.1", int(port)
