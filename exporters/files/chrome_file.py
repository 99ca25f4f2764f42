"""A Chrome trace file while it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from stepscope.exporters.files.output import OutputFile, part
from stepscope.exporters.files.trace_file import TraceFile, begin, dumps, dumps_records, write_head
from stepscope.runtime import _core
from stepscope.runtime.events import tracks
from stepscope.runtime.events.intervals import FOREVER
from stepscope.runtime.events.named_tracks import NamedTracks
from stepscope.runtime.events.record import Block
from stepscope.runtime.events.tracks import Track, TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.session.note import TraceNote

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


Dialect: TypeAlias = Literal["kineto", "tensorboard", "mxnet"]
"""`kineto`: categories as torch names them today, for Perfetto and HTA. `tensorboard`: as torch-tb-profiler knows them. `mxnet`: as
`kineto`, and counters have their value under their own name, as MXNet writes them."""

Form: TypeAlias = Literal["array", "object"]
"""`array`: a list of events that viewers load wherever it was cut. `object`: what tools of torch want; whole or nothing."""


_COUNTER = re.compile(
    rb'^({"ph":"C","cat":"(?:[^"\\]|\\.)*","name":("(?:[^"\\]|\\.)*"),"pid":-?[0-9]+,"ts":[^,]*,"args":{)"value":',
    re.MULTILINE,
)
"""The line of a counter, up to its value."""

_CLOSING: Mapping[Form, str] = {"array": "\n]\n", "object": "\n]}\n"}


_TIME = re.compile(rb'^(\{.*?"ts": ?)(-?[\d.]+)', re.MULTILINE)
"""The time of an event, in its line: before its arguments, and a name has no quote that is not escaped."""
_LAST_ROW = 536_870_912
"""Place of the row of torch's own span: viewers draw it below all others."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a file."""

    dialect: Dialect = "kineto"
    form: Form = "array"
    gzip: bool = False
    limit: int | None = None
    """Largest size in bytes."""
    closed: bool = False
    """Whether it is complete after every piece."""
    unix_times: bool = False
    """Whether times are Unix time, as text."""
    ends_as_torch: bool = False
    """Whether the last events are those of torch's own traces, which say when the recording began and ended."""


def base_of(run: Run) -> int:
    """The monotonic time that is 0 in the run's files: a whole second of wall time, one to two before the run.

    Small numbers keep their nanoseconds in readers that use doubles, and readers drop times below 0.
    """
    return run.anchor.monotonic_ns - run.anchor.wall_ns % 1_000_000_000 - 1_000_000_000


class ChromeFile(TraceFile):
    """A Chrome trace being written, from its first event to its end.

    In array form the file is at its place from the beginning. In object form it grows under a temporary name, because
    no viewer loads it before it is complete; `stepscope recover` writes one that a killed process left anew. A file that is
    `closed` is complete after every piece: it always ends with the name of its process, once more, and the closing brackets.
    """

    groups = True

    def __init__(self, path: Path, run: Run, layout: Layout, output: OutputFile) -> None:
        super().__init__(path, run, output, layout.limit)
        self._layout = layout
        self._rows = Rows(run)
        self._pending = b""  # names of rows that no piece has carried to the file yet
        self._base = run.anchor.monotonic_ns - run.anchor.wall_ns if layout.unix_times else base_of(run)
        self._refused = 0
        self._first = int(FOREVER)

    @classmethod
    async def create(cls, path: Path, run: Run, layout: Layout, note: TraceNote) -> ChromeFile:
        """Creates the file and writes its head; `note` says how it is written anew.

        Raises:
            OutputError: if it cannot be written.
        """
        at_its_place = layout.form == "array" or layout.closed
        tail = _tail(run, layout).encode() if layout.closed else b""
        output = await begin(path if at_its_place else part(path), run, note, gzip=layout.gzip, tail=tail)
        file = cls(path, run, layout, output)
        if at_its_place:
            await write_head(output, file._head(run.anchor.monotonic_ns).encode())
        return file

    def _write(self, events: Block, args: bytes, window: int) -> None:
        if self._refused != self.output.refused:
            # Names of rows were among what the system refused.
            self._refused, self._rows = self.output.refused, Rows(self._run)
        if self._layout.ends_as_torch:
            self._first = min(self._first, int(events["ts"].min(initial=self._first)))
        self._pending += self._rows.before(events).encode()
        lines = self._encode(events, args)
        self.output.write(self._pending + lines, events=len(events))
        self._pending = b""

    def _encode(self, events: Block, args: bytes) -> bytes:
        dialect = self._layout.dialect
        lines = _core.encode_chrome(events, args, self._base, "kineto" if dialect == "mxnet" else dialect)
        if dialect == "mxnet":
            lines = _COUNTER.sub(rb"\1\2:", lines)
        return _TIME.sub(rb'\1"\2"', lines) if self._layout.unix_times else lines

    def _instant(self, name: str, at: int, args: Mapping[str, Any]) -> bytes:
        return (self._event(name, at, args) + ",\n").encode()

    def _end(self, args: Mapping[str, Any]) -> bytes:
        text = self._event("stepscope", self._last, args)
        if self._layout.ends_as_torch:
            text += "".join(",\n" + dumps(event) for event in self._borders())
        return (text + _CLOSING[self._layout.form]).encode()

    def _borders(self) -> list[dict[str, Any]]:
        """The last events of a trace of torch, in torch's order: tools read there when the recording began and ended."""
        begin, end = ((at - self._base) / 1000 for at in (min(self._first, self._last), self._last))
        row = {"pid": "Spans", "tid": "PyTorch Profiler"}
        sorted_last = {"ph": "M", "name": "process_sort_index", "pid": "Spans", "tid": 0, "ts": begin}
        return [
            {
                "ph": "X",
                "cat": "Trace",
                "name": "PyTorch Profiler (0)",
                **row,
                "ts": begin,
                "dur": end - begin,
                "args": {},
            },
            {**sorted_last, "args": {"sort_index": _LAST_ROW}},
            {
                "ph": "i",
                "s": "g",
                "name": "Iteration Start: PyTorch Profiler",
                "pid": "Traces",
                "tid": "Trace PyTorch Profiler",
                "ts": begin,
            },
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": end + 0.001},
        ]

    def _event(self, name: str, at: int, args: Mapping[str, Any]) -> str:
        us, ns = divmod(at - self._base, 1000)
        row = {"pid": self._run.pid, "tid": NOTES_TID}
        head = dumps_records({"ph": "i", "s": "t", "cat": "stepscope", "name": name, **row})
        # The program's own values may be of any type.
        text = dumps(args) if args.get("metadata") else dumps_records(args)
        time = f'"{us}.{ns:03}"' if self._layout.unix_times else f"{us}.{ns:03}"
        return f'{head[:-1]}, "ts": {time}, "args": {text}}}'

    def _opening(self, at: int) -> bytes:
        if self._layout.form == "object":
            return b"" if self._layout.closed else self._head(at).encode()
        # In an array, what are keys of the object form have no place but an event.
        return self._instant("run", at, {**self._about(at), "rank": self._run.rank})

    def _about(self, at: int) -> dict[str, Any]:
        run = self._run
        return {
            "schemaVersion": 1,
            # By the clock as it was then: of a file of one window, the time of that, also after the clock was set.
            "baseTimeNanoseconds": run.wall(at) - (at - self._base),
            "clock": run.anchor,
            **({"run_id": run.id} if run.id else {}),
            "host_name": run.host,
            "displayTimeUnit": "ms",
        }

    def _head(self, at: int) -> str:
        run = self._run
        if self._layout.form == "array":
            return "[\n" + self._rows.head()
        about = self._about(at)
        added = dict(run.metadata())
        keys: dict[str, Any] = {}
        if run.rank is not None:
            # HTA takes the first `"rank": <n>` of the text, space included, for the rank of the file.
            keys["distributedInfo"] = {"rank": run.rank, "world_size": run.world_size or run.rank + 1}
            info: Any = added.pop("distributedInfo", None)
            if isinstance(info, dict):
                members = cast(dict[str, Any], info)
                keys["distributedInfo"] |= {key: value for key, value in members.items() if key != "rank"}
        keys |= about
        keys["deviceProperties"] = added.pop("deviceProperties", [])
        keys |= {key: value for key, value in added.items() if key not in (*keys, "traceEvents")}
        lines = ",\n".join(f"{dumps(key)}: {dumps(value)}" for key, value in keys.items())
        return "{\n" + lines + ',\n"traceEvents": [\n' + self._rows.head()


def _tail(run: Run, layout: Layout) -> str:
    """The bytes that make valid JSON of the pieces written so far, each of which ends with a comma."""
    return metadata_event("process_name", run.pid, 0, run.name).removesuffix(",\n") + _CLOSING[layout.form]
