"""Where an event happened, as attributes: thread, task, stream of a device, process."""

from __future__ import annotations

from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from stepscope.exporters.otlp.values import attributes
from stepscope.runtime.events import tracks
from stepscope.runtime.events.tracks import Track, TrackKind


class Whereabouts:
    """Attributes of tracks, each made once."""

    def __init__(self, pid: int) -> None:
        """Args: the run's process, which the resource names already."""
        self._pid = pid
        self._known: dict[int, list[KeyValue]] = {}

    def of(self, track: int) -> list[KeyValue]:
        """Attributes of a track; none if it is not known."""
        if track not in self._known:
            found = tracks.get(track)
            self._known[track] = [] if found is None else attributes(self._describe(found))
        return self._known[track]

    def _describe(self, track: Track) -> dict[str, str | int]:
        found: dict[str, str | int] = {}
        if track.kind is TrackKind.STREAM:
            return {"stepscope.device": track.pid, "stepscope.stream": track.tid, "stepscope.track": track.name}
        if track.pid != self._pid:
            found["process.pid"] = track.pid
        if track.kind is TrackKind.THREAD:
            found |= {"thread.id": track.tid, "thread.name": track.name}
        elif track.kind is TrackKind.TASK:
            found["stepscope.task"] = track.name
        return found
