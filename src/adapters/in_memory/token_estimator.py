"""Counting without a vocabulary."""

import re
from collections.abc import Sequence
from typing import Final

from adapters.tokenizer.size import COUNTED_UP_TO_BYTES, tokens_by_size, utf8_bytes
from application.ports.token_estimator import TokenEstimator

_WORD_OR_MARK: Final = re.compile(r"\w+|[^\w\s]")


class WordTokenEstimator(TokenEstimator):
    """A token is a word or a mark: a figure that a test can work out by eye."""

    async def count(self, texts: Sequence[str]) -> int:
        """See `TokenEstimator`."""
        size_bytes = utf8_bytes(texts)
        if size_bytes > COUNTED_UP_TO_BYTES:
            return tokens_by_size(size_bytes)
        return sum(len(_WORD_OR_MARK.findall(text)) for text in texts)
