"""What others recorded, in the folder `shared` beside the checkout: read where it lies, and accounted for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("fixtures/openrouter", "spec/vectors")
_OURS: Final = ("chat_*", "decisions_*", "models_*", "credential_envelopes.json", "access_tokens.json")


def shared_dir() -> Path | None:
    """The folder `shared`, or None where the checkout came without it."""
    folder = Path(__file__).resolve().parents[3] / "shared"
    return folder if folder.is_dir() else None


@dataclass
class Recordings:
    """The files of one folder `shared`, and which of them were read."""

    folder: Path | None
    _read: set[str] = field(default_factory=set)

    def read_bytes(self, path: str) -> bytes:
        """The content of a file, such as `spec/vectors/credential_envelopes.json`. Raises OSError where it is not."""
        if self.folder is None:
            raise FileNotFoundError(f"There is no folder `shared` beside this checkout to read {path} from.")
        content = (self.folder / path).read_bytes()
        self._read.add(path)
        return content

    def named(self, pattern: str) -> Sequence[str]:
        """The paths of the recordings whose names match (`chat_*`), sorted; none where the folder is missing."""
        return [path for path in self._present() if fnmatch(Path(path).name, pattern)]

    def note_read(self, paths: Iterable[str]) -> None:
        """These were read in another process."""
        self._read.update(paths)

    def read(self) -> Sequence[str]:
        """Those that were read."""
        return sorted(self._read)

    def skipped(self) -> Sequence[str]:
        """Those that this test set has to read, and did not."""
        return [path for pattern in _OURS for path in self.named(pattern) if path not in self._read]

    def summary(self) -> str:
        """One line for the end of a run."""
        if self.folder is None:
            return "recordings: the folder `shared` is not here; payloads of our own were used"
        return f"recordings: {len(self._read)} read, {len(self.skipped())} skipped"

    def _present(self) -> Sequence[str]:
        if self.folder is None:
            return []
        return sorted(
            f"{folder}/{file.name}" for folder in _FOLDERS for file in (self.folder / folder).glob("*")
        )


RECORDINGS: Final = Recordings(shared_dir())
"""The recordings of this run: whoever reads one reads it through this."""
