"""Server-sent events, split from bytes as they arrive."""

from typing import Final

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class EventTooLongError(Exception):
    """One event is longer than the splitter was told to hold."""


class EventSplitter:
    """Cuts a stream of bytes into the data of its events.

    Lines end with LF, CRLF or CR and with nothing else, wherever the bytes were cut. The `data` lines of one event are
    joined by LF; comments and other fields carry nothing. Memory and time are linear in the bytes, however short the
    lines.
    """

    def __init__(self, *, longest_event_bytes: int) -> None:
        self._longest_event_bytes = longest_event_bytes
        self._line: list[bytes] = []
        self._data: bytes | bytearray | None = None
        self._data_bytes = 0
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
        if self._held_bytes == 0 and _is_one_event(received) and not self._is_after_cr:
            self._is_first_line = False
            return [received[6:-2]]
        if self._is_after_cr and received:
            self._is_after_cr = False
            received = received.removeprefix(b"\n")
        if b"\r" in received:
            self._is_after_cr = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = received.split(b"\n")
        rest = lines.pop()
        if not lines:
            self._hold(rest)
            return []
        if self._line:
            lines[0] = b"".join((*self._line, lines[0]))
            self._line.clear()
        events = self._end_lines(lines)
        self._held_bytes = self._data_bytes
        self._hold(rest)
        return events

    def finish(self) -> list[bytes]:
        """The event that the end of the stream completes, if one was under way."""
        last = b"".join(self._line)
        self._line.clear()
        return self._end_lines([last, b""])

    def _hold(self, part: bytes) -> None:
        if part:
            self._line.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > self._longest_event_bytes:
            raise EventTooLongError

    def _end_lines(self, lines: list[bytes]) -> list[bytes]:
        if self._is_first_line:
            self._is_first_line = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data is not None:
                    events.append(bytes(self._data))
                    self._data = None
                    self._data_bytes = 0
            elif line.startswith(b"data: "):
                self._add(line[6:], len(line))
            elif line.startswith(b"data:"):
                self._add(line[5:], len(line))
            elif line.startswith(b":"):
                self.comments += 1
            elif line == b"data":
                self._add(b"", len(line))
        return events

    def _add(self, data: bytes, line_bytes: int) -> None:
        self._data_bytes += line_bytes
        if self._data is None:
            self._data = data
            return
        if isinstance(self._data, bytes):  # most events have one line: only a second one needs room to grow
            self._data = bytearray(self._data)
        self._data += b"\n"
        self._data += data


def _is_one_event(received: bytes) -> bool:
    """Whether it is what most reads bring: the one line of an event, whole."""
    return (
        received.startswith(b"data: ")
        and received.endswith(b"\n\n")
        and received.find(b"\n") == len(received) - 2
        and b"\r" not in received
    )
