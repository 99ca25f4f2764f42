"""Settings of a profiler that few users need to touch."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from stepscope.runtime.settings.checked import Checked

Signal = Literal["steps", "collections", "stacks", "loader", "checkpoints", "logging", "writes", "threads", "tasks"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)
ALWAYS: tuple[Signal, ...] = tuple(name for name in SIGNALS if name != "tasks")
"""Signals that cost next to nothing, whatever the program does."""

PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
Slots = Annotated[int, msgspec.Meta(ge=64, le=1 << 24)]


class Options(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings with their defaults; unknown fields are refused. Sizes in bytes, times in seconds.

    Raises:
        ValueError: naming the field, the value and what it should be.
    """

    memory_bytes: Annotated[int, msgspec.Meta(ge=1 << 24)] = 256 << 20
    """Limit of the memory of a profiler: events in rings, drained events, events of backends, and the queues of all exporters.
    Everything below that is not given has a share of it. On top come what joined processes hold, `FlightRecorder.max_bytes`,
    `LinkSettings.memory_bytes`, tables, and one ring for each thread beyond `ring_bytes`: docs/reliability.md."""
    ring_slots: Slots = 65_536
    """Size of one ring in events of 64 bytes, rounded up to a power of two. A thread that fills its ring before it is
    drained goes on in another, unless `overflow` is `drop_oldest`. The first profiler of the process decides on rings."""
    ring_bytes: Annotated[int, msgspec.Meta(ge=1 << 12)] | None = None
    """Limit of all rings together, beyond which events are dropped; every thread has one ring in any case. Default: a quarter of
    `memory_bytes`. It counts twice there, as drained events take as much again."""
    worker_ring_bytes: Annotated[int, msgspec.Meta(ge=1 << 12)] | None = None
    """The same for each process that joins the session (`stepscope.join`), where it comes on top. Default: a quarter of
    `memory_bytes`."""
    overflow: Literal["drop_newest", "drop_oldest", "block"] = "drop_newest"
    """Which events are dropped when a ring or an exporter's queue is full. `drop_newest`: the new ones. `drop_oldest`: the
    oldest; of a queue, whole batches. `block`: the thread waits for room in its ring, at most `block_seconds`, then drops the new
    ones; a queue works as with `drop_newest`. Step marks have room of their own in rings. All dropped events are counted, and
    shown as gaps. The first profiler of the process decides for rings."""
    block_seconds: Annotated[float, msgspec.Meta(gt=0, le=60)] = 0.1
    """How long `block` holds up a thread of the program that found its ring full, at most. After that the thread drops,
    and does not wait again before its ring was drained."""
    session_dir: str | None = None
    """Where rings live, on a tmpfs: training waits for a slow disk. Default: a private directory in /dev/shm; where none
    can be made there, in the directory for temporary files, else in that of the run. Files of killed runs
    stay there until they are recovered, for a week at most, unless room is needed; a container's own /dev/shm goes with it."""
    drain_interval: PositiveFloat | None = None
    """Longest time in seconds between two drains; rings that are half full call for one at once. Few drains cost training less:
    each takes a millisecond or two of the loop's thread, however little there is. Default: 2, but 1 while an exporter follows the
    steps, as one to a collector does."""
    inbox_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Limit of the events of backends that wait for the loop. Default: a quarter of `memory_bytes`."""
    linger: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """How long a window waits for backends that have not delivered past its end, and do not say that they advance."""
    queue_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Limit of the events that wait for one exporter; further ones are dropped for that exporter, and counted. Default: a quarter of `memory_bytes`, divided
    by the number of exporters and one. Where some of these settings are given, the others divide what they leave."""
    start_timeout: PositiveFloat = 30.0
    """How long `start()` waits for the runtime's loop, and for each backend that opens on its own thread, before it raises."""
    close_timeout: PositiveFloat = 5.0
    """Deadline for flushing and closing everything at the end. A backend that is bound to the thread that closes may take
    longer to end its recording there, without a bound: no other thread can make that call, or end it."""
    handle_sigterm: bool = True
    """Whether SIGTERM and SIGHUP, if the program does not handle them, let the profilers deliver what they recorded before
    the process dies of them."""
    journal: bool = True
    """Whether the run is journaled to its output directory (crash safety, `Window.export`)."""
    journal_max_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 8 << 30
    """Limit for the size of the journal, which consists of files of 64 MiB."""
    journal_when_full: Literal["stop", "delete_oldest"] = "stop"
    """At that limit: leave out new events, with a marker and a count, or delete the journal's oldest files, and count their events
    as lost. A flight recorder's journals of windows always stop."""
    signals: Annotated[tuple[Signal, ...], msgspec.Meta(max_length=16)] = ALWAYS
    """Facts that are recorded besides the program's own events, to find the cause of slow steps. `steps`: what the
    system says of the thread that steps, at each step. `collections`: garbage collections. `stacks`: where that thread is, 20
    times a second, and 10 times after a minute. `loader`: facts of torch's DataLoaders, and when their workers start and make
    batches. `checkpoints`: `torch.save`. `logging`: what TensorBoard's `SummaryWriter` is given. `writes`: `os.fsync` and
    `os.fdatasync`. `threads`: processor time of each thread, and how many processors the process and its children would use,
    once a second. `tasks`: each task of asyncio, also without annotations, and callbacks of its loops that take 50 ms or
    more; `stepscope run` adds it. The environment variable STEPSCOPE_SIGNALS goes before: `none`, `all`, or names with
    commas."""
