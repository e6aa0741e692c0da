"""Structured logs: one JSON object a line on stderr."""

import logging
import sys
from typing import Any, Final

import msgspec
import structlog

_LIBRARY_LEVEL: Final = logging.WARNING
_LONGEST_MESSAGE: Final = 300


def configure_logs(level: int = logging.INFO) -> None:
    """Send our events, and the libraries' warnings, to stderr as JSON. Values are ids, numbers and words."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_LibraryHandler(_LIBRARY_LEVEL)]


class _LibraryHandler(logging.Handler):
    """A library's record as one of our lines: its first line, and of an exception its type alone.

    The rest may quote what was sent: asyncio, for one, adds the repr of a task with the exception it died of.
    """

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        structlog.get_logger("brabo.library").log(
            record.levelno,
            "library_warning",
            logger=record.name,
            message=_first_line(record.getMessage())[:_LONGEST_MESSAGE],
            error=error,
        )


def _first_line(message: str) -> str:
    """Of a traceback that a library formats itself, the error's type instead of a heading that says nothing."""
    if not message.startswith("Traceback"):
        return message.partition("\n")[0]
    return message.rstrip().rpartition("\n")[2].partition(":")[0]


def _dumps(event: Any, **_: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
