"""The recordings of some directories, each event and each round trip once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stepscope.collector import clock_names
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
    """The recordings of journals and of directories, without copies, with round trips to collectors' clocks only.

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
    return Gathered(
        recordings, [*joined.unreadable, *unreadable], [*joined.notes, *copies, *_remove_unknown_clocks(recordings)]
    )


def _remove_unknown_clocks(recordings: Sequence[Recording]) -> list[str]:
    """Takes out round trips to clocks that no collector had; says how many.

    Clocks of directories that do not name theirs are known because their streams have round trips to them.
    """
    named = {one.directory: clock_names.read(one.directory) for one in recordings if one.stream}
    checked = [one for one in recordings if one.stream and named[one.directory] is not None]
    if not checked:
        return []
    names = {name for several in named.values() if several is not None for name in several}
    unchecked = {id(one) for one in recordings} - {id(one) for one in checked}
    names |= {sync.clock for one in recordings if id(one) in unchecked for sync in one.syncs}
    ignored = streams = 0
    for one in checked:
        counted = [sync for sync in one.syncs if sync.clock in names]
        if len(counted) < len(one.syncs):
            ignored += len(one.syncs) - len(counted)
            streams += 1
            one.syncs = counted
    if not ignored:
        return []
    return [
        f"{ignored:,} round trips of {streams:,} streams name a clock that none of these collectors had, and do not count"
    ]
