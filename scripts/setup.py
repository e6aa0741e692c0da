"""Makes .venv: the locked packages, and brabo-api installed in place.

Run it with the Python that .venv is to use. What is already as it should be is left alone, so every target of
the Makefile can ask for it first.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
LOCK_FILE = ROOT / "requirements.lock"
PROJECT_FILE = ROOT / "pyproject.toml"
PACKAGES_STAMP = VENV / "installed-packages"
PROJECT_STAMP = VENV / "installed-project"

SHOWN_LINES_OF_A_FAILURE = 30
PACKAGES_PER_NOTE = 20


def main() -> None:
    try:
        # Two commands started at once set up once: the second waits for the first.
        with LOCK_FILE.open() as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            set_up()
    except KeyboardInterrupt:
        say("Interrupted: run make again.")
        sys.exit(130)
    except PermissionError as error:
        sys.exit(
            f"{error.filename} is not writable for you: run make as its owner, or in a clone of your own."
        )


def set_up() -> None:
    packages = digest(LOCK_FILE)
    project = digest(PROJECT_FILE)
    if not stands(PACKAGES_STAMP, packages):
        make_environment()
        install_packages()
        PACKAGES_STAMP.write_text(packages)
    if not stands(PROJECT_STAMP, project):
        # Written to before pip is: a .venv of another owner is refused before anything in it changes.
        PROJECT_STAMP.write_text("")
        install_project()
        PROJECT_STAMP.write_text(project)
        say("Ready.")


def digest(file: Path) -> str:
    """Of the file and of the place: a virtual environment does not survive being moved."""
    return hashlib.sha256(file.read_bytes() + str(ROOT).encode()).hexdigest()


def stands(stamp: Path, wanted: str) -> bool:
    """A stamp is written last, so that an interrupted installation is made again."""
    usable = os.access(VENV / "bin" / "python", os.X_OK)
    return usable and stamp.exists() and stamp.read_text() == wanted


def make_environment() -> None:
    say(f"Making .venv with {sys.executable} (Python {sys.version.split()[0]})")
    if VENV.exists():
        shutil.rmtree(VENV)
    venv.create(VENV, with_pip=True, symlinks=True)


def install_packages() -> None:
    count = sum(1 for line in LOCK_FILE.read_text().splitlines() if "==" in line.split(" ")[0])
    say(f"Installing the {count} packages of {LOCK_FILE.name}: about a minute, and the network this once")
    pip("--require-hashes", "-r", str(LOCK_FILE))


def install_project() -> None:
    say("Installing brabo-api in place")
    pip("--no-deps", "--no-build-isolation", "-e", str(ROOT))


def pip(*arguments: str) -> None:
    # -I: a PYTHONPATH or user site of the caller must not decide what counts as installed.
    command = [str(VENV / "bin" / "python"), "-I", "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--retries", "1"]  # an index that is down is said in seconds, not in minutes
    if not has_home():
        command.append("--no-cache-dir")
    said: list[str] = []
    seen = 0
    with subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("Collecting "):
                seen += 1
                if seen % PACKAGES_PER_NOTE == 0:
                    say(f"  {seen} fetched")
            elif seen and line.startswith("Installing collected packages"):
                say("  all fetched, unpacking")
    if process.returncode != 0:
        sys.stderr.writelines(said[-SHOWN_LINES_OF_A_FAILURE:])
        sys.exit("Set-up stopped: pip could not install (its words are above). Mend that and run make again.")


def has_home() -> bool:
    """Without a home pip would keep its cache in a folder called "~" right here."""
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
