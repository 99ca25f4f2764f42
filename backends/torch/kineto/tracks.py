"""The tracks of kineto's events: its pairs of process and thread, or device and stream, as tracks."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.torch.kineto.file import KinetoEvent, arguments
from stepscope.runtime.events import tracks
from stepscope.runtime.events.tracks import TrackKind


class KinetoTracks:
    """Remembers the tracks of one backend, so that a thread or stream has one row over all windows.

    Some versions of kineto describe rows after their events: an event has the place of its row until a file was read.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int | str, int | str], int] = {}
        self._made: list[int] = []
        self._names: dict[tuple[int | str, int | str], str] = {}
        self._labels: dict[int | str, str] = {}
        self._programs: dict[int | str, str] = {}
        self._next = 1
        self._threads: dict[tuple[int, int], int] = {}
        self._processes: dict[int, int] = {}

    def describe(self, event: KinetoEvent) -> None:
        """Takes a metadata event."""
        if event.name == "thread_name":
            self._names[event.pid, event.tid] = str(arguments(event).get("name", "")).strip()
        elif event.name == "process_name":
            self._programs[event.pid] = str(arguments(event).get("name", ""))
        elif event.name == "process_labels":
            self._labels[event.pid] = str(arguments(event).get("labels", ""))

    def of(self, pid: int | str, tid: int | str) -> int:
        """The place of this pair's track in `rows`."""
        return self._places.setdefault((pid, tid), len(self._places))

    def rows(self) -> NDArray[np.uint32]:
        """Tracks by their place, now that all was described; the same ones at each call."""
        for pid, tid in list(self._places)[len(self._made) :]:
            self._made.append(self._make(pid, tid))
        return np.array(self._made, np.uint32)

    def of_device(self, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether each track is a stream of a device."""
        return np.isin(rows, [row for row in np.unique(rows).tolist() if _is_stream(row)])

    def _make(self, pid: int | str, tid: int | str) -> int:
        """The recorder's own track if it is a thread that it knows. `tid` may be a text for rows that are no threads; they get a row by that name."""
        name = self._names.get((pid, tid), "")
        number = tid if isinstance(tid, int) else 0
        if isinstance(pid, str):
            return tracks.new(TrackKind.THREAD, 0, number, name or str(tid))
        if pid != os.getpid() and self._labels.get(pid, "").startswith("GPU"):
            return tracks.new(TrackKind.STREAM, pid, number, name or f"stream {tid}", self._process(pid))
        self._learn()
        thread = self._threads.get((pid, number)) if isinstance(tid, int) else None
        return thread or tracks.new(TrackKind.THREAD, pid, number, name or f"thread {tid}", self._process(pid))

    def _process(self, pid: int) -> int:
        self._learn()
        if pid not in self._processes:
            label = self._labels.get(pid, "CPU")
            name = self._programs.get(pid) if label == "CPU" else label
            self._processes[pid] = tracks.new(TrackKind.PROCESS, pid, 0, name or f"process {pid}")
        return self._processes[pid]

    def _learn(self) -> None:
        for track in tracks.living(self._next):
            self._next = track.id + 1
            if track.pid != os.getpid():
                continue  # another backend's device
            if track.kind is TrackKind.THREAD:
                self._threads[track.pid, track.tid] = track.id
            elif track.kind is TrackKind.PROCESS:
                self._processes[track.pid] = track.id


class SavedTracks(KinetoTracks):
    """Rows of a trace that was read."""

    def __init__(self) -> None:
        super().__init__()
        self._parents: dict[int | str, int] = {}

    def is_device(self, pid: int | str) -> bool:
        """True if this is no process, but a device."""
        return self._labels.get(pid, "").startswith("GPU")

    @property
    def process(self) -> int:
        """Number of the process that was recorded; 0 if nothing says it."""
        return next((pid for pid, label in self._labels.items() if label == "CPU" and isinstance(pid, int)), 0)

    def _make(self, pid: int | str, tid: int | str) -> int:
        process, thread = (number if isinstance(number, int) and abs(number) < 1 << 63 else 0 for number in (pid, tid))
        device = self.is_device(pid)
        if pid not in self._parents:
            label = self._labels.get(pid, "CPU")
            name = self._programs.get(pid) if label == "CPU" else label
            self._parents[pid] = tracks.read(TrackKind.PROCESS, process, 0, name or f"process {pid}")
        name = self._names.get((pid, tid)) or f"{'stream' if device else 'thread'} {tid}"
        kind = TrackKind.STREAM if device else TrackKind.THREAD
        return tracks.read(kind, process, thread, name, self._parents[pid])


def _is_stream(row: int) -> bool:
    track = tracks.get(row)
    return track is not None and track.kind is TrackKind.STREAM
