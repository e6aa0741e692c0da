"""Entries of the journal: one a line, with a sum that tells a whole line from a torn or damaged one."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from application.ports.journal import JournaledTurn
from domain.settlement import Settlement, TurnStart


class Entry(msgspec.Struct, omit_defaults=True):
    """One of these: a turn's start, what is about to be done, its call's id, what it settles, what is flushed."""

    begin: TurnStart | None = None
    asking: UUID | None = None
    sending: UUID | None = None
    generation: tuple[UUID, str] | None = None
    settle: Settlement | None = None
    flushed: list[tuple[UUID, UUID]] | None = None
    """Turn and settlement of each."""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Entry).decode


def encode_entry(entry: Entry) -> bytes:
    """The line, with its end."""
    json = _encode(entry)
    return b"%08x %b\n" % (zlib.crc32(json), json)


def decode_entry(line: bytes) -> Entry | None:
    """The entry of a line without its end; None for what is torn or damaged."""
    try:
        if int(line[:8], 16) != zlib.crc32(line[9:]) or line[8:9] != b" ":
            return None
        return _decode(line[9:])
    except (ValueError, msgspec.MsgspecError):
        return None


@dataclass(slots=True)
class _Folded:
    start: TurnStart | None
    was_asked: bool = False
    was_sent: bool = False
    generation_id: str | None = None
    settlements: list[Settlement] = field(default_factory=list)
    flushed: set[UUID] = field(default_factory=set)

    @property
    def is_settled(self) -> bool:
        has_ended = self.start is None or any(one.end is not None for one in self.settlements)
        return has_ended and all(settlement.id in self.flushed for settlement in self.settlements)


class Fold:
    """The turns that entries tell of, those included that began elsewhere and are only settled here.

    With `only_unsettled` a turn is forgotten as soon as the database has all of it.
    """

    def __init__(self, *, only_unsettled: bool) -> None:
        self._only_unsettled = only_unsettled
        self._turns: dict[UUID, _Folded] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries in, in their order."""
        for entry in entries:
            self._add(entry)

    def turns(self) -> Iterator[JournaledTurn]:
        """The turns, in the order in which they began."""
        for turn in self._turns.values():
            yield JournaledTurn(
                start=turn.start,
                was_asked=turn.was_asked,
                was_sent=turn.was_sent,
                generation_id=turn.generation_id,
                settlements=turn.settlements,
                flushed=frozenset(turn.flushed),
            )

    def _add(self, entry: Entry) -> None:
        if entry.begin is not None:
            self._turns.setdefault(entry.begin.turn_id, _Folded(entry.begin))
        elif entry.asking is not None and (turn := self._turns.get(entry.asking)):
            turn.was_asked = True
        elif entry.sending is not None and (turn := self._turns.get(entry.sending)):
            turn.was_sent = True
        elif entry.generation is not None and (turn := self._turns.get(entry.generation[0])):
            turn.generation_id = entry.generation[1]
        elif entry.settle is not None:
            self._turns.setdefault(entry.settle.turn_id, _Folded(None)).settlements.append(entry.settle)
        elif entry.flushed is not None:
            for turn_id, settlement_id in entry.flushed:
                if turn := self._turns.get(turn_id):
                    turn.flushed.add(settlement_id)
                    if self._only_unsettled and turn.is_settled:
                        del self._turns[turn_id]
