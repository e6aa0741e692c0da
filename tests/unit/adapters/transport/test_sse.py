import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.transport.sse import EventSplitter, EventTooLongError

STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\ndata: a\r\ndata:b\rdata\n\nid: 7\n: c\ndata: \xe2\x80\xa8\xc2\x85\r\n\r\n"
    b"data:  two\n\n\n\r\rdata: \xf0\x9f\x98\x8a\n\ndata: last"
)
EVENTS = [b"a\nb\n", b"\xe2\x80\xa8\xc2\x85", b" two", b"\xf0\x9f\x98\x8a", b"last"]


def split(*parts: bytes) -> list[bytes]:
    splitter = EventSplitter(longest_event_bytes=1000)
    events = [event for part in parts for event in splitter.feed(part)]
    return events + splitter.finish()


def test_splits_at_every_line_end_and_at_nothing_else() -> None:
    assert split(STREAM) == EVENTS


def test_gives_the_same_events_wherever_the_bytes_are_cut() -> None:
    for cut in range(len(STREAM) + 1):
        assert split(STREAM[:cut], STREAM[cut:]) == EVENTS
    assert split(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"data:", b"data: x", b": c", b"", b"\xe2\x80"]), max_size=30),
    st.data(),
)
def test_gives_the_same_events_for_any_cuts_of_any_stream(parts: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert split(*pieces) == split(stream)


def test_counts_comments() -> None:
    splitter = EventSplitter(longest_event_bytes=1000)
    splitter.feed(b": a\n\n:\n: b\ndata: x")
    assert splitter.comments == 3


@pytest.mark.parametrize(
    "part",
    [b"x" * 99, b"data: " + b"x" * 93 + b"\n", b"data:\n" * 20],
    ids=["one line", "many data lines", "many empty data lines"],
)
def test_holds_no_more_than_it_was_told_to(part: bytes) -> None:
    splitter = EventSplitter(longest_event_bytes=1000)
    for _ in range(9):
        splitter.feed(part)
    with pytest.raises(EventTooLongError):
        splitter.feed(part * 2)


def test_many_short_events_are_not_one_long_one() -> None:
    splitter = EventSplitter(longest_event_bytes=1000)
    for _ in range(100):
        assert splitter.feed(b"data: " + b"x" * 500 + b"\n\n") == [b"x" * 500]
