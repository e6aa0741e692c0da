"""`brabo init`."""

import argparse
import fcntl
import getpass
import json
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final, TypeAlias

from application.first_steps import DEFAULT_MODEL, FirstSteps, Wishes
from domain.provider import Provider
from domain.secret import Secret
from domain.usage import Prices, to_micros
from entrypoints.cli.subcommand import Subcommands, opened_database, say
from entrypoints.settings import (
    SECRET_NAMES,
    SERVICE_TOKEN,
    Settings,
    SettingsError,
    keep_secrets,
    kept_secrets_path,
    read_kept_secrets,
    read_settings,
)

_MOST_USD: Final = 1_000_000_000
_LONGEST_TEXT: Final = 200
_DEFAULTS: Final = {
    "email": "owner@example.com",
    "workspace": "Main",
    "project": "First project",
    "agent": "dev-api",
}
_Question: TypeAlias = tuple[str, str, Callable[[str], object]]
"""An option, how it is asked for, and what reads the answer."""


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "init",
        description="Make everything a first turn needs: user, workspace, project, session, model, binding, budget, "
        "the provider's key and, where the environment sets none, the secrets. On a terminal it asks for what no "
        "option names. Run again it finds what is there: only a model that is named, a key that is given, and "
        "prices for those of 0 take the place of others.",
    )
    parser.add_argument("--email", type=_email, help=f"the owner's address (default: {_DEFAULTS['email']})")
    parser.add_argument("--name", type=_text, help="the owner's name (default: none)")
    parser.add_argument("--workspace", type=_text, help=f"its name (default: {_DEFAULTS['workspace']})")
    parser.add_argument("--project", type=_text, help=f"its name (default: {_DEFAULTS['project']})")
    parser.add_argument("--agent", type=_text, help=f"for the example (default: {_DEFAULTS['agent']})")
    parser.add_argument(
        "--provider",
        choices=[provider.value for provider in Provider],
        help="who serves the model (default: openrouter)",
    )
    parser.add_argument(
        "--model", type=_text, help=f"its name there (default: {DEFAULT_MODEL}, of OpenRouter)"
    )
    prices = "USD per million tokens, for a model whose provider publishes no prices; both or none"
    parser.add_argument("--input-price", type=_usd, metavar="USD", help=prices)
    parser.add_argument("--output-price", type=_usd, metavar="USD", help="likewise, for output")
    parser.add_argument(
        "--limit-usd", type=_usd, metavar="USD", help="a new project's budget (default: 0, which is no limit)"
    )
    parser.add_argument(
        "--key-env",
        metavar="NAME",
        help="the environment variable that holds the provider's key (default: OPENROUTER_API_KEY for OpenRouter, "
        "and so on); without it a terminal asks for the key",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Make what is missing, and say how to take a turn."""
    if (arguments.input_price is None) != (arguments.output_price is None):
        arguments.parser.error("--input-price and --output-price go together")
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    if can_ask:
        _ask(arguments, *_QUESTIONS)
    wishes = _wishes(arguments)
    settings = _settings_with_secrets()
    with opened_database(settings) as container:
        container.upgrade_database(say=say)
        take_first_steps = container.take_first_steps()
        if can_ask and not take_first_steps.has_budget(wishes.workspace, wishes.project):
            _ask(arguments, _BUDGET_QUESTION)
            wishes = replace(wishes, limit_micros=_limit_micros(arguments))
        first_steps = take_first_steps(wishes)
    _report(first_steps, settings, arguments)
    return 0


def _ask(arguments: argparse.Namespace, *questions: _Question) -> None:
    """Fill in what no option names; an empty answer leaves it open."""
    for option, question, read in questions:
        while getattr(arguments, option) is None:
            print(f"{question}: ", end="", file=sys.stderr, flush=True)
            answer = sys.stdin.readline()
            if not answer.strip():
                break
            try:
                setattr(arguments, option, read(answer))
            except argparse.ArgumentTypeError as error:
                print(f"  {error}", file=sys.stderr)


def _wishes(arguments: argparse.Namespace) -> Wishes:
    provider = Provider(arguments.provider) if arguments.provider else None
    prices = None
    if arguments.input_price is not None:
        prices = Prices(to_micros(arguments.input_price), to_micros(arguments.output_price))
    return Wishes(
        email=arguments.email or _DEFAULTS["email"],
        user_name=arguments.name,
        workspace=arguments.workspace or _DEFAULTS["workspace"],
        project=arguments.project or _DEFAULTS["project"],
        provider=provider,
        model=arguments.model,
        prices=prices,
        limit_micros=_limit_micros(arguments),
        api_key=_api_key(provider or Provider.OPENROUTER, arguments.key_env),
    )


def _limit_micros(arguments: argparse.Namespace) -> int | None:
    return None if arguments.limit_usd is None else to_micros(arguments.limit_usd)


def _key_variable(provider: Provider) -> str:
    return f"{provider.upper().replace('-', '_')}_API_KEY"


def _api_key(provider: Provider, variable: str | None) -> Secret | None:
    """The provider's key, from the environment or from a prompt that does not show it."""
    if not provider.needs_credential:
        return None
    text = os.environ.get(variable or _key_variable(provider), "")
    source = variable or "the environment"
    if not text.strip():
        if variable is not None:
            raise SettingsError(f"{variable}, named by --key-env, is not set or empty.")
        if not sys.stdin.isatty():
            return None
        source = "the prompt"
        try:
            text = getpass.getpass(f"Key for {provider} (not shown; Enter for the stored one, or none): ")
        except EOFError:
            raise KeyboardInterrupt from None  # Ctrl-D, where a key is asked for
    key = text.strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(
            f"The key for {provider} from {source} holds characters that no key has: copy it again."
        )
    return Secret(key)


def _settings_with_secrets() -> Settings:
    """The settings, with secrets made and kept for those that nobody set."""
    settings = read_settings(os.environ)
    if settings.is_production:
        settings.require_secrets()
        return settings
    with _alone_with_secrets(settings.data_dir):
        kept = read_kept_secrets(settings.data_dir)
        missing = [name for name in SECRET_NAMES if not (os.environ.get(name) or kept.get(name))]
        if missing:
            made = {name: secrets.token_urlsafe(32) for name in missing}
            try:
                keep_secrets(settings.data_dir, {**kept, **made})
            except OSError as error:
                raise _unusable(settings.data_dir, error) from None
            say(f"made {', '.join(missing)}, kept in {kept_secrets_path(settings.data_dir)}")
    return read_settings(os.environ)


@contextmanager
def _alone_with_secrets(data_dir: Path) -> Iterator[None]:
    """Two that make secrets at once would each seal with their own."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(data_dir, os.O_RDONLY)
    except OSError as error:
        raise _unusable(data_dir, error) from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _unusable(data_dir: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"The data directory {data_dir} cannot be used ({error.strerror}): see who owns it and whether there is room, "
        "or set BRABO_DATA_DIR to another one."
    )


def _report(first_steps: FirstSteps, settings: Settings, arguments: argparse.Namespace) -> None:
    for step in first_steps.steps:
        print(f"{step.thing:<10}  {step.change:<13}  {step.description}")
    for warning in first_steps.warnings:
        print(f"brabo: warning: {warning}", file=sys.stderr)
    print(f"\nworkspace  {first_steps.workspace_id}")
    print(f"project    {first_steps.project_id}")
    print(f"session    {first_steps.session_id}")
    if provider := first_steps.missing_key:
        named = "" if provider is Provider.OPENROUTER else ", with --provider and --model"
        print(
            f"\nNo turn will work yet: put the key for {provider} into {_key_variable(provider)} and run `brabo init` "
            f"again{named}."
        )
        return
    print("\nServe with `brabo serve`, and take a turn from another terminal:\n")
    if not os.environ.get(SERVICE_TOKEN):
        path = shlex.quote(str(kept_secrets_path(settings.data_dir).resolve()))
        read_token = rf"""sed -n 's/.*"{SERVICE_TOKEN}": "\([^"]*\)".*/\1/p' {path}"""
        print(f'export {SERVICE_TOKEN}="$({read_token})"')
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - not bound, replaced
    host = f"[{host}]" if ":" in host else host
    turn = f"http://{host}:{settings.port}/internal/sessions/{first_steps.session_id}/llm-turn"
    body = json.dumps(
        {
            "projectId": str(first_steps.project_id),
            "agentId": arguments.agent or _DEFAULTS["agent"],
            "messages": [{"role": "user", "content": "Say hello in one sentence."}],
        }
    )
    headers = f'-H "X-Brabo-Service-Token: ${SERVICE_TOKEN}" -H "Content-Type: application/json"'
    print(f"curl -w '\\n' {headers} -d {shlex.quote(body)} {turn}")
    print("\nThe same as a stream:\n")
    print(f"curl -N -w '\\n' {headers} -d {shlex.quote(body)} {turn}-stream")


def _text(text: str) -> str:
    text = text.strip()
    if not text or len(text) > _LONGEST_TEXT or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be 1 to {_LONGEST_TEXT} printable characters")
    return text


def _email(text: str) -> str:
    text = _text(text)
    name, at, domain = text.partition("@")
    if not (name and at and domain) or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no e-mail address")
    return text


def _usd(text: str) -> Decimal:
    """An amount with at least a micro-USD in it, or 0."""
    try:
        usd = Decimal(text.strip())
    except InvalidOperation:
        usd = Decimal("NaN")
    if not (usd.is_finite() and 0 <= usd <= _MOST_USD):
        raise argparse.ArgumentTypeError(
            f"{text.strip()!r} must be an amount from 0 to {_MOST_USD}, such as 2.50"
        )
    if usd and not to_micros(usd):
        raise argparse.ArgumentTypeError(f"{text.strip()} is less than the smallest amount, 0.000001")
    return usd


_QUESTIONS: Final[tuple[_Question, ...]] = (
    ("email", f"Owner's address [{_DEFAULTS['email']}]", _email),
    ("name", "Owner's name [none]", _text),
    ("workspace", f"Workspace [{_DEFAULTS['workspace']}]", _text),
    ("project", f"Project [{_DEFAULTS['project']}]", _text),
    ("model", f"Model [{DEFAULT_MODEL}, or the one that is bound]", _text),
)
_BUDGET_QUESTION: Final[_Question] = ("limit_usd", "Budget in USD [no limit]", _usd)
"""Of a project that has none yet, which only the database knows."""
