"""`brabo doctor`."""

import argparse
import os
import stat
from collections.abc import Iterator

from application.diagnose import Finding, Verdict
from application.ports.database import DatabaseFailed
from entrypoints.cli.subcommand import Subcommands, say
from entrypoints.container import READABLE_ERRORS, Container
from entrypoints.database import open_database, shown
from entrypoints.settings import (
    EXAMPLE_VALUES,
    JWT_SECRET,
    MASTER_KEY,
    SERVICE_TOKEN,
    Settings,
    SettingsError,
    is_loopback,
    kept_secrets_path,
    read_settings,
)

_SHORTEST_SECRET = 16


def add_to(commands: Subcommands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "doctor",
        description="Check secrets, database, migrations, stored keys, bindings and providers, changing nothing. "
        "The exit status is 1 when something fails.",
    )
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print each finding as it is made."""
    status = 0
    for finding in _findings():
        print(f"{finding.verdict:<4}  {finding.subject:<11}  {finding.text}", flush=True)
        if finding.verdict is Verdict.FAIL:
            status = 1
    return status


def _findings() -> Iterator[Finding]:
    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        yield Finding(Verdict.FAIL, "settings", str(error))
        return
    yield from _secrets(settings)
    try:
        with open_database(settings, say) as container:
            yield from _stored(container, settings)
    except READABLE_ERRORS as error:
        advice = " See that DATABASE_URL is right and that its server runs." if settings.database_url else ""
        yield Finding(Verdict.FAIL, "database", f"{' '.join(str(error).split())}{advice}")


def _secrets(settings: Settings) -> Iterator[Finding]:
    given = {
        SERVICE_TOKEN: settings.service_token,
        JWT_SECRET: settings.jwt_secret,
        MASTER_KEY: settings.master_key,
    }
    exposed = settings.is_production or not is_loopback(settings.host)
    advice = "set a random one, for example from `openssl rand -hex 32`."
    for name, secret in given.items():
        if secret is None:
            where = advice if settings.is_production else "run `brabo init`, or set it."
            yield Finding(Verdict.FAIL, "secrets", f"{name} is missing: {where}")
        elif secret.reveal() in EXAMPLE_VALUES:
            verdict = Verdict.FAIL if exposed else Verdict.WARN
            yield Finding(verdict, "secrets", f"{name} holds a value from public examples: {advice}")
        elif len(secret.reveal()) < _SHORTEST_SECRET:
            verdict = Verdict.FAIL if settings.is_production else Verdict.WARN
            yield Finding(
                verdict, "secrets", f"{name} is shorter than {_SHORTEST_SECRET} characters: {advice}"
            )
        else:
            yield Finding(Verdict.OK, "secrets", f"{name} is set.")
    path = kept_secrets_path(settings.data_dir)
    if path.exists() and not settings.is_production:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(Verdict.FAIL, "secrets", f"{path} can be read by others: chmod 600 it.")
        else:
            yield Finding(Verdict.OK, "secrets", f"{path} is for its owner only.")


def _stored(container: Container, settings: Settings) -> Iterator[Finding]:
    state = container.locate_database()
    yield Finding(Verdict.OK, "database", f"{shown(container.database_url())} answers.")
    if state.pending:
        at = f"at {state.current}" if state.current else "not migrated"
        yield Finding(
            Verdict.FAIL,
            "migrations",
            f"the database is {at} and lacks {', '.join(state.pending)}: run `brabo migrate`.",
        )
        return
    adopted = " (made by another program, and adopted)" if state.adopted else ""
    yield Finding(Verdict.OK, "migrations", f"the database is at {state.current}{adopted}, which is current.")
    diagnose = container.diagnose() if settings.master_key else container.diagnose(vault=None)
    try:
        yield from diagnose()
    except DatabaseFailed as error:
        yield Finding(Verdict.FAIL, "database", str(error))
