"""`brabo doctor`."""

import argparse
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from application.diagnose import Finding, Verdict
from application.ports.database import DatabaseFailed
from domain.provider import Provider
from entrypoints.cli.subcommand import Subcommands, opened_database
from entrypoints.settings import Settings, SettingsError, kept_secrets_path, read_settings

if TYPE_CHECKING:
    from entrypoints.container import Container


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
    with closing(_findings()) as findings:
        for finding in findings:
            print(f"{finding.verdict:<4}  {finding.subject:<11}  {finding.text}", flush=True)
            if finding.verdict is Verdict.FAIL:
                status = 1
    return status


def _findings() -> Generator[Finding, None, None]:
    from entrypoints.container import READABLE_ERRORS  # slow to load: usage is said without it

    try:
        settings = read_settings(os.environ)
    except SettingsError as error:
        yield Finding(Verdict.FAIL, "settings", _sentence(error))
        return
    yield from _secrets(settings)
    try:
        with opened_database(settings) as container:
            yield from _stored(container, settings)
    except READABLE_ERRORS as error:
        yield Finding(Verdict.FAIL, "database", _sentence(error))


def _secrets(settings: Settings) -> Iterator[Finding]:
    for finding in settings.secret_findings():
        verdict = Verdict.OK if finding.is_good else Verdict.FAIL if finding.forbids_serving else Verdict.WARN
        yield Finding(verdict, "secrets", finding.text)
    path = kept_secrets_path(settings.data_dir)
    if path.exists() and not settings.is_production:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(Verdict.FAIL, "secrets", f"{path} can be read by others: chmod 600 it.")
        else:
            yield Finding(Verdict.OK, "secrets", f"{path} is for its owner only.")


def _stored(container: "Container", settings: Settings) -> Iterator[Finding]:
    from entrypoints.database import shown

    state = container.locate_database()
    yield Finding(Verdict.OK, "database", f"{shown(container.database_url())} answers.")
    if state.pending:
        at = f"at {state.current}" if state.current else "not migrated"
        command = "migrate" if settings.database_url else "init"
        yield Finding(
            Verdict.FAIL,
            "migrations",
            f"the database is {at} and lacks {', '.join(state.pending)}: run `brabo {command}`.",
        )
        return
    adopted = " (made by another program, and adopted)" if state.adopted else ""
    yield Finding(Verdict.OK, "migrations", f"the database is at {state.current}{adopted}, which is current.")
    diagnose = container.diagnose() if settings.master_key else container.diagnose(vault=None)
    try:
        for finding in diagnose():
            yield _with_hint(finding, settings)
    except DatabaseFailed as error:
        yield Finding(Verdict.FAIL, "database", _sentence(error))


def _with_hint(finding: Finding, settings: Settings) -> Finding:
    """An address without the path it needs answers too, with something else."""
    base = settings.provider_bases.get(Provider.OPENROUTER, "/api")
    is_of_openrouter = finding.subject == "provider" and finding.text.startswith(f"{Provider.OPENROUTER}:")
    if is_of_openrouter and not base.endswith("/api"):
        return replace(finding, text=f"{finding.text} Check that OPENROUTER_API_BASE ends in /api.")
    return finding


def _sentence(error: Exception) -> str:
    """On one line, with a full stop."""
    return f"{' '.join(str(error).split()).removesuffix('.')}."
