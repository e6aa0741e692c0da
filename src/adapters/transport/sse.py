"""Server-sent events, split from bytes as they arrive."""

from typing import Final

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """One event is longer than the splitter was told to hold."""


class EventSplitter:
    """Cuts a stream of bytes into the data of its events.

    Lines end with LF, CRLF or CR and with nothing else, wherever the bytes were cut. The `data` lines of one event are
    joined by LF; comments and other fields carry nothing. Memory and time are linear in the bytes.
    """

    def __init__(self, *, longest_event_bytes: int) -> None:
        self._longest_event_bytes = longest_event_bytes
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._held_bytes = 0
        self._is_after_cr = False
        self._is_first_line = True
        self.comments = 0
        """Comment lines so far."""

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that these bytes complete.

        Raises:
            EventTooLongError: an event under way has outgrown the limit.
        """
        if self._is_after_cr and received:
            self._is_after_cr = False
            received = received.removeprefix(b"\n")
        if b"\r" in received:
            self._is_after_cr = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *others = received.split(b"\n")
        if not others:
            self._hold(first)
            return []
        events: list[bytes] = []
        self._line.append(first)
        self._end_line(b"".join(self._line), events)
        self._line.clear()
        rest = others.pop()
        for line in others:
            self._end_line(line, events)
        self._held_bytes = sum(map(len, self._data))
        self._hold(rest)
        return events

    def finish(self) -> list[bytes]:
        """The event that the end of the stream completes, if one was under way."""
        events: list[bytes] = []
        self._end_line(b"".join(self._line), events)
        self._end_line(b"", events)
        self._line.clear()
        return events

    def _hold(self, part: bytes) -> None:
        if part:
            self._line.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > self._longest_event_bytes:
            raise EventTooLongError

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._data.append(b"")
        elif line.startswith(b":"):
            self.comments += 1
