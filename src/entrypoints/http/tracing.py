"""The ids that join a request's log lines, and the trace it belongs to (W3C Trace Context)."""

import re
import secrets
from typing import Final

from litestar.types import Scope

_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})"
)


def continued_trace(scope: Scope) -> str | None:
    """The caller's trace with a span of ours; None where the caller has none, or not one of W3C's form."""
    for name, value in scope["headers"]:
        if name == b"traceparent":
            match = _TRACEPARENT.fullmatch(value.decode("latin-1"))
            return f"00-{match[1]}-{secrets.token_hex(8)}-{match[2]}" if match else None
    return None


def log_ids(traceparent: str | None) -> dict[str, str | None]:
    """What every log line of one request carries."""
    return {"request_id": secrets.token_hex(8), "trace_id": traceparent[3:35] if traceparent else None}
