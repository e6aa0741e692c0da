"""The commands as a user runs them: a real database, a simulated OpenRouter and, where it matters, real processes."""

import concurrent.futures
import os
import pty
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from adapters.postgres.tables import HEAD
from tests.support.brabo import BRABO, environment, run, run_process, simulated_openrouter

KEY = "sk-or-v1-of-the-tests"
SECRETS = {
    "BRABO_SERVICE_TOKEN": "service-token-of-the-tests",
    "AUTH_JWT_SECRET": "jwt-secret-of-the-tests",
    "CREDENTIALS_MASTER_KEY": "master-key-of-the-tests",
}
TABLES = [
    "users",
    "workspaces",
    "projects",
    "sessions",
    "models",
    "model_bindings",
    "budgets",
    "user_credentials",
]


@pytest.fixture(scope="module")
def openrouter() -> Iterator[str]:
    with simulated_openrouter() as base:
        yield base


@pytest.fixture
def environ(tmp_path: Path, openrouter: str, database_url: str) -> dict[str, str]:
    """A migrated database, and nothing else yet."""
    return environment(tmp_path / "data", DATABASE_URL=database_url, OPENROUTER_API_BASE=openrouter)


@pytest.fixture
def initialised(environ: dict[str, str]) -> dict[str, str]:
    """After `brabo init`, with the secrets in the environment."""
    environ.update(SECRETS)
    assert run(["init"], {**environ, "OPENROUTER_API_KEY": KEY}).returncode == 0
    return environ


def execute(environ: dict[str, str], statement: str) -> None:
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        connection.execute(statement.encode())


def counts(environ: dict[str, str]) -> dict[str, int]:
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        rows = [connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() for table in TABLES]
    return {table: row[0] for table, row in zip(TABLES, rows, strict=True) if row}


def of_verdict(output: str, verdict: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(verdict)]


def assert_refused(ran: subprocess.CompletedProcess[str], said: str) -> None:
    assert ran.returncode == 1
    assert said in ran.stderr


# init


def test_init_makes_everything_once(environ: dict[str, str], tmp_path: Path) -> None:
    first = run_process(["init", "--limit-usd", "2.50"], {**environ, "OPENROUTER_API_KEY": KEY})
    second = run_process(["init"], {**environ, "OPENROUTER_API_KEY": KEY})

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.count("added") == 8
    assert second.stdout.count("already there") == 8
    assert counts(environ) == dict.fromkeys(TABLES, 1)
    ids = r"(?m)^(?:workspace|project|session)  +([0-9a-f-]{36})$"
    assert re.findall(ids, first.stdout) == re.findall(ids, second.stdout) != []
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        model = connection.execute(
            "SELECT name, input_price_per_million_micros, output_price_per_million_micros, manual_pricing FROM models"
        ).fetchone()
        budget = connection.execute("SELECT limit_micros, policy FROM budgets").fetchone()
    assert model == ("openai/gpt-4.1-mini", 400_000, 1_600_000, False)
    assert budget == (2_500_000, "block")


def test_init_keeps_the_secrets_it_makes_for_their_owner_only_and_shows_none(
    environ: dict[str, str], tmp_path: Path
) -> None:
    ran = run(["init"], {**environ, "OPENROUTER_API_KEY": KEY, "AUTH_JWT_SECRET": "given-by-the-environment"})
    path = tmp_path / "data" / "secrets.json"

    assert ran.returncode == 0, ran.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = re.findall(r'"(\w+)": "([^"]+)"', path.read_text())
    assert [name for name, _ in values] == ["BRABO_SERVICE_TOKEN", "CREDENTIALS_MASTER_KEY"]
    for secret in [KEY, *(value for _, value in values)]:
        assert secret not in ran.stdout + ran.stderr


def test_what_init_prints_for_the_shell_brings_the_service_token(
    environ: dict[str, str], tmp_path: Path
) -> None:
    ran = run(["init"], {**environ, "OPENROUTER_API_KEY": KEY})
    [export] = [line for line in ran.stdout.splitlines() if line.startswith("export ")]
    shell = subprocess.run(
        ["sh", "-c", f'{export}\nprintf %s "$BRABO_SERVICE_TOKEN"'],
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(shell.stdout) > 30
    assert f'"BRABO_SERVICE_TOKEN": "{shell.stdout}"' in (tmp_path / "data" / "secrets.json").read_text()


def test_inits_at_once_make_one_of_everything_that_fits_together(environ: dict[str, str]) -> None:
    given = {**environ, "OPENROUTER_API_KEY": KEY}
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        ran = list(threads.map(lambda _: run_process(["init"], given), range(3)))

    assert [one.returncode for one in ran] == [0] * 3, "".join(one.stderr for one in ran)
    assert counts(environ) == dict.fromkeys(TABLES, 1)
    assert run(["doctor"], environ).returncode == 0


def test_init_without_key_and_network_says_what_is_missing(environ: dict[str, str]) -> None:
    ran = run(["init"], {**environ, "OPENROUTER_API_BASE": "http://127.0.0.1:1"})

    assert ran.returncode == 0
    assert "Without a key for openrouter" in ran.stderr
    assert "cannot be reached" in ran.stderr
    assert ran.stdout.endswith(
        "No turn will work yet: put the key for openrouter into OPENROUTER_API_KEY and run `brabo init` again.\n"
    )
    assert counts(environ) == {**dict.fromkeys(TABLES, 1), "user_credentials": 0}


def test_init_mends_prices_that_could_not_be_had_and_leaves_a_trace(environ: dict[str, str]) -> None:
    run(["init"], {**environ, "OPENROUTER_API_BASE": "http://127.0.0.1:1"})
    ran = run(["init", "--limit-usd", "5"], {**environ, "OPENROUTER_API_KEY": KEY})

    assert "0.4 USD in and 1.6 USD out" in ran.stdout
    assert "warning: --limit-usd 5 was not applied: the project already has a budget without" in ran.stderr
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        changes = connection.execute(
            "SELECT input_before_micros, input_after_micros, output_after_micros, source::text, changed_by"
            " FROM model_price_changes"
        ).fetchall()
    assert changes == [(0, 400_000, 1_600_000, "sync", None)]


def test_init_says_that_its_folder_cannot_be_made(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "closed").symlink_to("/proc")  # where not even root makes a folder
    ran = run(["init"], {**environ, "BRABO_DATA_DIR": str(tmp_path / "closed" / "x")})

    assert_refused(ran, f"The data directory {tmp_path / 'closed' / 'x'} cannot be used")


def test_init_takes_prices_as_decimals(environ: dict[str, str]) -> None:
    prices = ["--input-price", "0.0000004", "--output-price", "1e1"]
    ran = run(
        ["init", "--provider", "together", "--model", "m", *prices], {**environ, "TOGETHER_API_KEY": KEY}
    )

    assert ran.returncode == 2
    assert "smallest amount" in ran.stderr
    prices[1] = "0.0000015"
    ran = run(
        ["init", "--provider", "together", "--model", "m", *prices], {**environ, "TOGETHER_API_KEY": KEY}
    )
    assert ran.returncode == 0, ran.stderr
    with psycopg.connect(environ["DATABASE_URL"]) as connection:
        row = connection.execute(
            "SELECT provider, input_price_per_million_micros, output_price_per_million_micros FROM models"
        ).fetchone()
    assert row == ("together", 2, 10_000_000)


def test_init_refuses_a_model_that_is_not_offered(environ: dict[str, str]) -> None:
    ran = run(["init", "--model", "openai/gpt-4.1-mimi"], environ)

    assert_refused(ran, "Did you mean openai/gpt-4.1-mini")
    assert counts(environ) == dict.fromkeys(TABLES, 0)


def test_init_names_the_variable_that_holds_no_key(environ: dict[str, str]) -> None:
    assert_refused(run(["init", "--key-env", "MY_KEY"], environ), "MY_KEY, named by --key-env, is not set")


def test_init_shows_no_part_of_a_key_that_is_none(environ: dict[str, str]) -> None:
    ran = run(["init"], {**environ, "OPENROUTER_API_KEY": "sk-or line one\nline two"})

    assert_refused(ran, "characters that no key has")
    assert "line" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit-usd", "-1"], "from 0 to"),
        (["--limit-usd", "NaN"], "from 0 to"),
        (["--limit-usd", "five"], "from 0 to"),
        (["--limit-usd", "0.0000001"], "smallest amount"),
        (["--email", "nobody"], "no e-mail address"),
        (["--workspace", " "], "printable characters"),
        (["--workspace", "a\nb"], "printable characters"),
        (["--input-price", "1"], "go together"),
        (["--provider", "nobody"], "invalid choice"),
    ],
)
def test_init_refuses_wrong_usage(environ: dict[str, str], arguments: list[str], said: str) -> None:
    ran = run(["init", *arguments], environ)

    assert ran.returncode == 2
    assert said in ran.stderr


def test_in_production_init_makes_no_secrets(environ: dict[str, str], tmp_path: Path) -> None:
    assert_refused(run(["init"], {**environ, "BRABO_ENV": "production"}), "BRABO_SERVICE_TOKEN is missing")
    assert not (tmp_path / "data" / "secrets.json").exists()


BECOME_A_SESSION = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def test_ctrl_d_where_the_key_is_asked_for_ends_it(environ: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", BECOME_A_SESSION, *BRABO, "init", "--email", "a@b.c", "--name", "A"],
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = ""
    deadline_s = time.monotonic() + 60
    while "not shown" not in seen and time.monotonic() < deadline_s:
        if select.select([ours], [], [], 0.1)[0]:
            said = os.read(ours, 4096).decode()
            seen += said
            if said.rstrip().endswith(("]:", "]")):  # a question, and not the echo of the answer to it
                os.write(ours, b"\n")
    os.write(ours, b"\x04")
    try:
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "Traceback" not in seen


def test_on_a_terminal_init_asks_and_does_not_show_the_key(environ: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", BECOME_A_SESSION, *BRABO, "init", "--name", "Given"],
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = ""

    def wait_for(text: str) -> None:
        nonlocal seen
        deadline_s = time.monotonic() + 30
        while text not in seen and time.monotonic() < deadline_s:
            if select.select([ours], [], [], 0.1)[0]:
                seen += os.read(ours, 4096).decode()
        assert text in seen

    try:
        for question, answer in (
            ("Owner's address", "nobody"),
            ("no e-mail address", "me@example.com"),
            ("Workspace [", ""),
            ("Project [", "Shop"),
            ("Model [", ""),
            ("not shown", KEY),
            ("Budget", "3"),
        ):
            wait_for(question)
            os.write(ours, f"{answer}\n".encode())
        wait_for("-stream")
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)

    assert KEY not in seen
    assert "Owner's name" not in seen
    for line in (
        "me@example.com",
        "Main (main)",
        "Shop (shop)",
        "of the project: 3 USD",
        "key for openrouter",
    ):
        assert line in seen
    assert counts(environ)["user_credentials"] == 1


# migrate


def test_migrate_goes_up_and_down_and_says_where_it_is(
    environ: dict[str, str], empty_database_url: str
) -> None:
    environ["DATABASE_URL"] = empty_database_url
    before = run(["migrate", "--where"], environ)
    up, again = run(["migrate"], environ), run(["migrate"], environ)
    down = run(["migrate", "--down", "0066"], environ)
    where = run(["migrate", "--where"], environ)

    assert [one.returncode for one in (before, up, again, down, where)] == [0] * 5
    assert "is not migrated (to come: 0065," in before.stdout
    assert f"now it is at {HEAD} (current)" in up.stdout
    assert again.stdout.count(f"is at {HEAD} (current)") == 1
    assert "now it is at 0066 (to come: 0067," in down.stdout
    assert "is at 0066" in where.stdout
    password = urlsplit(empty_database_url).password
    assert not password or password not in "".join(
        one.stdout + one.stderr for one in (before, up, down, where)
    )


def test_migrate_refuses_a_revision_that_is_none(environ: dict[str, str]) -> None:
    assert_refused(run(["migrate", "--down", "0042"], environ), "no revision '0042'")


def test_migrate_refuses_a_database_of_something_else(
    environ: dict[str, str], empty_database_url: str
) -> None:
    environ["DATABASE_URL"] = empty_database_url
    execute(environ, "CREATE TABLE users (id int)")
    ran = run(["migrate"], environ)

    assert_refused(ran, "cannot be adopted")
    assert "  - " in ran.stderr


# the database is not to be had


def broken_urls(database_url: str) -> dict[str, str]:
    parts = urlsplit(database_url)
    stranger = f"nobody:a-secret-password@{parts.hostname}:{parts.port}"
    return {
        "wrong password": parts._replace(netloc=stranger).geturl(),
        "no server": "postgresql://brabo:a-secret-password@127.0.0.1:1/brabo",
        "wrongly encoded": "postgresql://brabo:a-secret-password%zz@127.0.0.1/brabo",
        "at sign in the password": "postgresql://brabo:x@a-secret-password@127.0.0.1/brabo",
        "slash in the password": "postgresql://localhost:a-secret-password/x@127.0.0.1/brabo",
        "another database": "mysql://brabo:a-secret-password@127.0.0.1/brabo",
        "unknown parameter": "postgresql://brabo@127.0.0.1/brabo?pasword=a-secret-password",
    }


@pytest.mark.parametrize("command", ["migrate", "init", "doctor"])
@pytest.mark.parametrize("trouble", sorted(broken_urls("")))
def test_a_database_that_is_not_to_be_had_is_said_in_a_sentence(
    environ: dict[str, str], command: str, trouble: str
) -> None:
    url = broken_urls(environ["DATABASE_URL"])[trouble]
    ran = run([command], {**environ, **SECRETS, "DATABASE_URL": url})
    output = ran.stdout + ran.stderr

    assert ran.returncode == 1, output
    assert "a-secret-password" not in output
    told = of_verdict(ran.stdout, "fail")[-1] if command == "doctor" else ran.stderr
    assert len(told.strip().splitlines()) <= 3
    assert len(told) > 40


# doctor


def test_doctor_finds_nothing_wrong_after_init(initialised: dict[str, str]) -> None:
    ran = run(["doctor"], initialised)

    assert ran.returncode == 0, ran.stdout
    assert of_verdict(ran.stdout, "ok") == ran.stdout.splitlines()
    for secret in (KEY, *SECRETS.values()):
        assert secret not in ran.stdout + ran.stderr


def test_doctor_changes_nothing(environ: dict[str, str], empty_database_url: str, tmp_path: Path) -> None:
    environ["DATABASE_URL"] = empty_database_url
    ran = run(["doctor"], environ)

    assert ran.returncode == 1
    assert len(of_verdict(ran.stdout, "fail")) == 4
    assert "brabo migrate" in ran.stdout
    assert not (tmp_path / "data").exists()
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchone() == (0,)


def test_doctor_finds_a_damaged_envelope(initialised: dict[str, str]) -> None:
    execute(initialised, "UPDATE user_credentials SET api_key_auth_tag = dek_auth_tag")
    ran = run(["doctor"], initialised)
    [fail] = of_verdict(ran.stdout, "fail")

    assert ran.returncode == 1
    assert "openrouter of owner@example.com" in fail
    assert "CREDENTIALS_MASTER_KEY_PREVIOUS" in fail


def test_doctor_opens_keys_with_the_previous_master_key(initialised: dict[str, str]) -> None:
    rotated = {**initialised, "CREDENTIALS_MASTER_KEY": "another-master-key-of-the-tests"}
    lost = run(["doctor"], rotated)
    kept = run(["doctor"], {**rotated, "CREDENTIALS_MASTER_KEY_PREVIOUS": SECRETS["CREDENTIALS_MASTER_KEY"]})

    assert (lost.returncode, kept.returncode) == (1, 0)


def test_init_mends_what_doctor_found_in_an_envelope(initialised: dict[str, str]) -> None:
    execute(initialised, "UPDATE user_credentials SET wrapped_dek = 'not base64'")
    ran = run(["init"], {**initialised, "OPENROUTER_API_KEY": KEY})

    assert "replaced       the key for openrouter" in ran.stdout
    assert run(["doctor"], initialised).returncode == 0


def test_doctor_warns_of_bindings_that_serve_nothing(initialised: dict[str, str]) -> None:
    execute(
        initialised, "UPDATE models SET provider = 'anthropic', name = 'claude', availability = 'unavailable'"
    )
    ran = run(["doctor"], initialised)

    assert ran.returncode == 0
    no_adapter, gone = of_verdict(ran.stdout, "warn")
    assert "bound to claude of anthropic: there is no adapter" in no_adapter
    assert "unavailable" in gone


def test_doctor_finds_a_provider_out_of_reach(initialised: dict[str, str]) -> None:
    ran = run(["doctor"], {**initialised, "OPENROUTER_API_BASE": "http://127.0.0.1:1"})
    [fail] = of_verdict(ran.stdout, "fail")

    assert ran.returncode == 1
    assert "http://127.0.0.1:1/v1/models cannot be reached" in fail


def test_doctor_knows_an_address_that_stops_too_early(initialised: dict[str, str]) -> None:
    base = initialised["OPENROUTER_API_BASE"].removesuffix("/api")
    [fail] = of_verdict(run(["doctor"], {**initialised, "OPENROUTER_API_BASE": base}).stdout, "fail")

    assert fail.endswith("Check that OPENROUTER_API_BASE ends in /api.")


@pytest.mark.parametrize(
    ("given", "verdict", "said"),
    [
        ({"BRABO_SERVICE_TOKEN": "dev-service-token-change-me"}, "warn", "public examples"),
        (
            {"BRABO_SERVICE_TOKEN": "dev-service-token-change-me", "BRABO_HOST": "0.0.0.0"},
            "fail",
            "public examples",
        ),
        ({"AUTH_JWT_SECRET": "short"}, "warn", "shorter than 16"),
        ({"AUTH_JWT_SECRET": "short", "NODE_ENV": "production"}, "fail", "shorter than 16"),
        ({"AUTH_JWT_SECRET": ""}, "fail", "missing"),
        ({"BRABO_PORT": "many"}, "fail", "BRABO_PORT"),
    ],
)
def test_doctor_judges_the_settings(
    initialised: dict[str, str], given: dict[str, str], verdict: str, said: str
) -> None:
    ran = run(["doctor"], {**initialised, **given})
    [line] = of_verdict(ran.stdout, verdict)

    assert ran.returncode == (1 if verdict == "fail" else 0)
    assert said in line
    assert "change-me" not in line


def test_doctor_finds_secrets_that_others_can_read(environ: dict[str, str], tmp_path: Path) -> None:
    run(["init"], {**environ, "OPENROUTER_API_KEY": KEY})
    (tmp_path / "data" / "secrets.json").chmod(0o640)
    ran = run(["doctor"], environ)
    [fail] = of_verdict(ran.stdout, "fail")

    assert ran.returncode == 1
    assert "chmod 600" in fail


# all of them


def test_version_says_the_schema_and_loads_no_library() -> None:
    ran = run_and_list_libraries(["version"])

    assert f"database schema {HEAD}" in ran
    assert ran.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["init", "doctor", "migrate"])
def test_help_loads_no_library(command: str) -> None:
    ran = run_and_list_libraries([command, "--help"])

    assert f"usage: brabo {command}" in ran
    assert ran.splitlines()[-1] == "[]"


def run_and_list_libraries(arguments: list[str]) -> str:
    code = f"""
import contextlib, sys
from entrypoints.cli.main import main
with contextlib.suppress(SystemExit):
    main({arguments!r})
print([name for name in ('psycopg', 'sqlalchemy', 'litestar', 'httpx') if name in sys.modules])
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", [["version"], ["init", "--help"]])
def test_output_that_nobody_reads_is_no_traceback(environ: dict[str, str], arguments: list[str]) -> None:
    unread, output = os.pipe()
    os.close(unread)
    ran = subprocess.run(
        [*BRABO, *arguments], env=environ, stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(output)

    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["serve", "--nothing"], ["migrate", "--down"]])
def test_wrong_usage_is_2(environ: dict[str, str], arguments: list[str]) -> None:
    ran = run(arguments, environ)

    assert ran.returncode == 2
    assert "usage: brabo" in ran.stderr


def test_a_wrong_password_is_no_traceback(environ: dict[str, str]) -> None:
    url = broken_urls(environ["DATABASE_URL"])["wrong password"]
    ran = run_process(["migrate"], {**environ, "DATABASE_URL": url})

    assert ran.returncode == 1
    assert ran.stderr.startswith("brabo: ")
    assert "Traceback" not in ran.stderr
    assert "a-secret-password" not in ran.stderr


@pytest.mark.parametrize("command", ["serve", "init", "migrate"])
def test_a_wrong_setting_is_named(environ: dict[str, str], command: str) -> None:
    assert_refused(run([command], {**environ, "BRABO_DRAIN_S": "soon"}), "BRABO_DRAIN_S must be")


def test_serve_without_secrets_says_what_makes_them(environ: dict[str, str]) -> None:
    assert_refused(
        run(["serve"], environ), "BRABO_SERVICE_TOKEN is missing: set it, or let `brabo init` make one"
    )


def test_without_a_database_url_the_commands_bring_one_along(tmp_path: Path, openrouter: str) -> None:
    environ = environment(tmp_path / "data", OPENROUTER_API_BASE=openrouter)
    init = run_process(["init"], {**environ, "OPENROUTER_API_KEY": KEY})
    doctor = run_process(["doctor"], environ)

    assert init.returncode == 0, init.stderr
    assert "applying 0065" in init.stderr
    assert doctor.returncode == 0, doctor.stdout
