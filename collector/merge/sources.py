"""The recordings of some directories, each event and each round trip once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stepscope.collector.merge.copies import without_copies
from stepscope.collector.merge.parts import join
from stepscope.collector.runs.recording import Recording, UnreadableJournal, Wanted, recordings_in


class Gathered(msgspec.Struct, frozen=True):
    """The recordings of some sources."""

    recordings: list[Recording]
    unreadable: list[UnreadableJournal]
    notes: list[str]
    """Sentences: what was put together, and what does not count."""


def gather(sources: Sequence[Path], room: Callable[[], Path], wanted: Wanted | None = None) -> Gathered:
    """The recordings of journals and of directories, without copies.

    Args:
        sources: those.
        room: gives a directory, which must stay as long as the recordings are used, for streams of which no source has all.
        wanted: which windows' rows stay in memory, as for `Recording.of`.

    Raises:
        OSError: if a directory cannot be read, or what is put together not be written.
    """
    joined = join(sources, room)
    found, unreadable = recordings_in([*sources, *joined.journals], joined.parts, wanted)
    recordings, copies = without_copies(found)
    return Gathered(recordings, unreadable, [*joined.notes, *copies])
