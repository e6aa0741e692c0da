"""The body of an answer: a stream of events, or one document, told apart by its first character and not by its type."""

from typing import Final

from adapters.transport.sse import EventSplitter, EventTooLongError

LONGEST_EVENT_BYTES: Final = 32 * 1024 * 1024
"""Of one event, and of a document."""

_BLANK_OR_MARK: Final = b" \t\r\n\xef\xbb\xbf"


class AnswerBody:
    """Takes bytes as they come and gives out the frames that they complete."""

    def __init__(self) -> None:
        self._events = EventSplitter(longest_event_bytes=LONGEST_EVENT_BYTES)
        self._document: list[bytes] | None = None
        self._document_bytes = 0
        self._is_known = False
        self._has_events = False
        self.is_page = False
        """HTML: some proxy's, and no answer."""

    @property
    def is_document(self) -> bool:
        """A JSON object instead of a stream: its one frame comes at the end."""
        return self._document is not None

    @property
    def is_stream(self) -> bool:
        """An event or a comment came."""
        return self._has_events or self._events.comments > 0

    def feed(self, received: bytes) -> list[bytes]:
        """The frames that these bytes complete.

        Raises:
            EventTooLongError: an event or the document has more than 32 MiB.
        """
        if not self._is_known:
            received = received.lstrip(_BLANK_OR_MARK)
            if not received:
                return []
            self._is_known = True
            self.is_page = received.startswith(b"<")
            self._document = [] if received.startswith(b"{") else None
        if self.is_page:
            return []
        if self._document is None:
            return self._seen(self._events.feed(received))
        self._document.append(received)
        self._document_bytes += len(received)
        if self._document_bytes > LONGEST_EVENT_BYTES:
            raise EventTooLongError
        return []

    def finish(self) -> list[bytes]:
        """The frame that the end of the body completes: an event without its blank line, or the document."""
        if self._document is not None:
            return [b"".join(self._document)]
        return self._seen(self._events.finish())

    def _seen(self, events: list[bytes]) -> list[bytes]:
        self._has_events = self._has_events or bool(events)
        return events
