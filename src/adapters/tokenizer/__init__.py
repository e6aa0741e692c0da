"""Counting tokens with the o200k vocabulary."""

from adapters.tokenizer.o200k import O200kTokenEstimator

__all__ = ["O200kTokenEstimator"]
