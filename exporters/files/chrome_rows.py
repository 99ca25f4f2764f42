"""The rows of a Chrome trace: metadata events that name and order processes and threads."""

from __future__ import annotations

from stepscope.exporters.files.plainjson import dumps
from stepscope.runtime.events import tracks
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.export.run import Run

DEVICES = 5_000_000
"""Devices are shown below processes: Kineto's sort index for them."""

NOTES, NOTES_TID = "run and windows", (1 << 30) - 1
"""Row of what a file says of its run and windows; it has a number that no thread has."""


def metadata_event(name: str, pid: int, tid: int, value: str | int) -> str:
    """One `M` event: a name, labels or a sort index of a process or thread (Trace Event Format, "Metadata Events").

    It has no time, as that would be one outside of what was recorded.
    """
    key = {"process_labels": "labels"}.get(name, "sort_index" if name.endswith("_sort_index") else "name")
    fields = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": {key: value}}
    return dumps(fields) + ",\n"


class Rows:
    """The rows that one file has named so far: each is named before its first event."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._named = NamedTracks()
        self._processes = {run.pid}

    def head(self) -> str:
        """Names the process of the run itself."""
        run = self._run
        label = run.host if run.rank is None else f"rank {run.rank} on {run.host}"
        return (
            metadata_event("process_name", run.pid, 0, run.name)
            + metadata_event("process_labels", run.pid, 0, label)
            + metadata_event("process_sort_index", run.pid, 0, run.pid if run.rank is None else run.rank)
            + metadata_event("thread_name", run.pid, NOTES_TID, NOTES)
            + metadata_event("thread_sort_index", run.pid, NOTES_TID, -1)
        )

    def before(self, events: Block) -> str:
        """Names the rows of these events that were not named yet."""
        new = self._named.missing(events)
        self._named.add(new)
        return "".join(map(self._row, new))

    def _row(self, track: Track) -> str:
        text = self._process(track)
        if track.kind in (TrackKind.PROCESS, TrackKind.COUNTER):
            return text
        return (
            text
            + metadata_event("thread_name", track.pid, track.tid, track.name)
            + metadata_event("thread_sort_index", track.pid, track.tid, track.id)
        )

    def _process(self, track: Track) -> str:
        if track.pid in self._processes:
            return ""
        self._processes.add(track.pid)
        owner = track if track.kind is TrackKind.PROCESS else tracks.get(track.parent)
        device = track.kind is TrackKind.STREAM
        name = f"device {track.pid}" if device else f"process {track.pid}"
        if owner is not None and owner.kind is TrackKind.PROCESS and owner.pid == track.pid:
            name = owner.name
        return metadata_event("process_name", track.pid, 0, name) + metadata_event(
            "process_sort_index", track.pid, 0, DEVICES + track.pid if device else track.pid
        )
