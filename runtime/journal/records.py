"""The records of a journal: the contents of its frames, except events."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.accounting.ledger import Ledger
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.clock import ClockSync as ClockSync
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.encoding import msgpack_bytes
from stepscope.runtime.journal.columns import Id as Id
from stepscope.runtime.journal.columns import Int64 as Int64
from stepscope.runtime.journal.columns import TrackRecord as TrackRecord
from stepscope.runtime.journal.format import FrameType
from stepscope.runtime.session.ranks import valid_rank, valid_world_size
from stepscope.runtime.windows.window import Step, Window

STEP_BYTES = 24
"""Size of a step in a `WindowRecord`: number, start and end."""
MAX_OPEN = 1 << 16
"""Open windows in an index. More come from hostile input."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The run that writes the journal."""

    name: str
    anchor: ClockAnchor
    pid: Int64 = 0
    host: str = ""
    rank: Int64 | None = None
    """`None` also for an invalid number, which is logged as a warning."""
    world_size: Int64 | None = None
    """`None` also for a number below 1 or above `MAX_RANKS`, which is logged as a warning."""
    created_ns: Int64 = 0
    """Unix time."""
    job: str = ""
    clock: str = ""
    """Name of the monotonic clock of the events."""
    id: str = ""
    """Random id of the run; empty in what `stepscope recover` made without a note."""

    def __post_init__(self) -> None:
        source = f"the run {self.name[:80]!r} (process {self.pid})"
        msgspec.structs.force_setattr(self, "rank", valid_rank(self.rank, source))
        msgspec.structs.force_setattr(self, "world_size", valid_world_size(self.world_size, source))


class MetadataRecord(msgspec.Struct, frozen=True):
    """The metadata of the run. A later record replaces an earlier one."""

    values: dict[str, Any]


class WindowOpened(msgspec.Struct, frozen=True):
    """Events of this window follow."""

    index: Int64
    at_ns: Int64
    """Time of its first event in the journal."""


class WindowRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished window."""

    index: Int64
    profiler: str = ""
    start_ns: Int64
    end_ns: Int64
    steps: bytes = b""
    """Three 64-bit integers for each step: number, start, end."""
    complete: bool = False
    diagnostics: list[str] = []
    ledger: Ledger = Ledger()
    metadata: dict[str, Any] = {}
    wall_start_ns: Int64 = 0

    @property
    def step_count(self) -> int:
        return len(self.steps) // STEP_BYTES

    def _rows(self) -> NDArray[np.int64]:
        return np.frombuffer(self.steps, "<i8", self.step_count * 3).reshape(-1, 3)

    def window(self) -> Window:
        """The window, for exporters."""
        return Window(
            index=self.index,
            profiler=self.profiler,
            start_ns=self.start_ns,
            end_ns=self.end_ns,
            steps=tuple(Step(*row) for row in self._rows().tolist()),
            complete=self.complete,
            diagnostics=tuple(self.diagnostics),
            ledger=self.ledger,
            metadata=self.metadata,
            wall_start_ns=self.wall_start_ns,
        )


class CapRecord(msgspec.Struct, frozen=True):
    """The journal reached its size limit: events are missing from here on."""

    limit_bytes: Int64
    dropped: Int64
    """Events dropped so far."""


class RecoveredRecord(msgspec.Struct, frozen=True):
    """The process died; `stepscope recover` appended all frames from this one on."""

    at_ns: Int64 = 0
    """Unix time."""


class EndRecord(msgspec.Struct, frozen=True):
    """The journal was closed normally."""

    events: Int64 = 0
    """Events written."""
    windows: Int64 = 0
    """Windows closed."""
    dropped: Int64 = 0
    """Events dropped because of the size limit."""
    arguments_cut: Int64 = 0
    """Events whose arguments were dropped, as they did not fit a frame or were not in the heap."""
    records_left_out: Int64 = 0
    """Frames other than events that did not fit the size limit, and facts of steps for which there was no time."""
    index: Int64 = 0
    """Position of the index frame; 0 = none."""


def run_record(run: Run, created_ns: int) -> RunRecord:
    """The record of a run."""
    return RunRecord(
        name=plain(run.name),
        anchor=run.anchor,
        pid=run.pid,
        host=plain(run.host),
        rank=run.rank,
        world_size=run.world_size,
        created_ns=created_ns,
        job=plain(run.job),
        clock=plain(run.clock),
        id=plain(run.id),
    )


def window_record(window: Window) -> WindowRecord:
    """The record of a window."""
    return WindowRecord(
        index=window.index,
        profiler=plain(window.profiler),
        start_ns=window.start_ns,
        end_ns=window.end_ns,
        steps=np.array([(step.number, step.start_ns, step.end_ns) for step in window.steps], "<i8").tobytes(),
        complete=window.complete,
        diagnostics=plain(list(window.diagnostics)) if window.diagnostics else [],
        ledger=window.ledger,
        metadata=plain(dict(window.metadata)) if window.metadata else {},
        wall_start_ns=window.wall_start_ns,
    )


class WindowSoFar(msgspec.Struct, frozen=True, array_like=True):
    """A window that was open when an index was written: its frames so far."""

    window: Int64
    begin: Int64
    """Position of the first of them."""
    first_ns: Int64
    """Begin of the first event."""
    last_ns: Int64
    """End of the last event."""
    events: dict[str, Int64]
    """Number of events, with gaps, by source."""


class IndexRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Positions of the frames of each window. Each index adds to the one before."""

    before: Int64 = 0
    """Position of the previous index; 0 = none."""
    outlines: Int64 = 0
    """Position of the first of the outlines, which end where this frame begins."""
    at_ns: Int64 = 0
    """Time of writing (CLOCK_MONOTONIC): all frames before it were written earlier."""
    rows: memoryview = memoryview(b"")
    """Windows that were closed since the previous index, in their order: see `index.py`."""
    stretches: memoryview = memoryview(b"")
    """Frames of long windows since the previous index, with their steps and times: see `index.py`."""
    open: Annotated[list[WindowSoFar], msgspec.Meta(max_length=MAX_OPEN)] = []
    metadata: Int64 = 0
    """Position of the last frame with the run's metadata; 0 = none."""
    ledger: Int64 = 0
    """Position of the frame with the accounts of the run; 0 = none."""
    recovered: Int64 = 0
    """Position of the frame with which recovery began to append; 0 = none."""
    dropped: bool = False
    """Whether the journal had dropped events: its queue was full, or it had reached its size limit."""
    syncs: list[ClockSync] = []
    """Comparisons with other clocks since the previous index, `MAX_SYNCS` at most."""


encode_record = msgpack_bytes

_DECODERS: dict[int, msgspec.msgpack.Decoder[Any]] = {
    FrameType.RUN: msgspec.msgpack.Decoder(RunRecord),
    FrameType.CLOCK: msgspec.msgpack.Decoder(ClockAnchor),
    FrameType.METADATA: msgspec.msgpack.Decoder(MetadataRecord),
    FrameType.WINDOW_OPENED: msgspec.msgpack.Decoder(WindowOpened),
    FrameType.WINDOW_CLOSED: msgspec.msgpack.Decoder(WindowRecord),
    FrameType.LEDGER: msgspec.msgpack.Decoder(Ledger),
    FrameType.CAP: msgspec.msgpack.Decoder(CapRecord),
    FrameType.END: msgspec.msgpack.Decoder(EndRecord),
    FrameType.CLOCK_SYNC: msgspec.msgpack.Decoder(ClockSync),
    FrameType.RECOVERED: msgspec.msgpack.Decoder(RecoveredRecord),
    FrameType.INDEX: msgspec.msgpack.Decoder(IndexRecord),
}


def is_known(kind: int) -> bool:
    """Whether `decode_record` knows this type of frame."""
    return kind in _DECODERS


def decode_record(kind: int, payload: bytes) -> Any:
    """The record of a frame; `None` if its type has none or the payload cannot be decoded."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        return None
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
