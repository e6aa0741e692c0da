"""Reading the chunks of a streamed reply, for the faults that change them."""

from typing import Any

from entrypoints.simulator.reply import Frame, FrameKind, Reply


def positions(reply: Reply, *kinds: FrameKind) -> list[int]:
    """Where the frames of these kinds are."""
    return [at for at, frame in enumerate(reply.frames) if frame.kind in kinds]


def documents(reply: Reply, *kinds: FrameKind) -> list[dict[str, Any]]:
    """The JSON of the frames of these kinds, of all kinds when none is named."""
    return [
        frame.payload
        for frame in reply.frames
        if (not kinds or frame.kind in kinds) and isinstance(frame.payload, dict)
    ]


def choice_of(document: dict[str, Any]) -> dict[str, Any]:
    """The first choice of a chunk or document."""
    choice = document["choices"][0]
    assert isinstance(choice, dict)
    return choice


def fragments_of(reply: Reply) -> list[dict[str, Any]]:
    """Every tool-call fragment of the reply, in order."""
    return [
        fragment
        for document in documents(reply, "content")
        for fragment in choice_of(document)["delta"].get("tool_calls") or ()
    ]


def call_fragments(frame: Frame) -> list[dict[str, Any]]:
    """The tool-call fragments of one frame."""
    if frame.kind != "content" or not isinstance(frame.payload, dict):
        return []
    return choice_of(frame.payload)["delta"].get("tool_calls") or []
