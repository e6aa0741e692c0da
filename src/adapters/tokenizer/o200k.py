"""Exact counts in the o200k vocabulary, which the package `toktok` carries within itself."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from adapters.tokenizer.size import COUNTED_UP_TO_BYTES, tokens_by_size, utf8_bytes
from application.ports.token_estimator import TokenEstimator

_VOCABULARY: Final = "o200k_base"
_loading: Final = threading.Lock()


class O200kTokenEstimator(TokenEstimator):
    """Counts in a thread, and leaves the interpreter free for others meanwhile.

    The first count loads the vocabulary (65 MB), unless `load` was called before; every instance shares it.
    """

    def load(self) -> None:
        """Load the vocabulary, or do nothing when it is there.

        The package lets nothing else in the process run during the 0.6 s of it, not even from a thread: whoever
        serves calls this before the first request.
        """
        with _loading:  # two threads at once would load it twice
            _tokens([])

    async def count(self, texts: Sequence[str]) -> int:
        """See `TokenEstimator`. A count that is cancelled runs to its end unseen, for half a second at most."""
        return await asyncio.to_thread(self._count, list(texts))

    def _count(self, texts: list[str]) -> int:
        size_bytes = utf8_bytes(texts)
        if size_bytes > COUNTED_UP_TO_BYTES:
            return tokens_by_size(size_bytes)
        self.load()
        return _tokens([_without_lone_surrogates(text) for text in texts])


def _tokens(texts: list[str]) -> int:
    # Imported here, for a command that counts nothing should not pay for it in memory and time.
    import toktok  # type: ignore[import-untyped]  # it is annotated, but without the marker that says so

    # One thread, this one: the pool it would make otherwise costs more than it saves on texts of this size.
    counts: list[int] = toktok.batch_count(texts, _VOCABULARY, threads=1)
    return sum(counts)


def _without_lone_surrogates(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
