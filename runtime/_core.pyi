"""The native core. Public wrappers: `stepscope.runtime.{strings,tracks,clock,recorder,...}`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from types import FrameType
from typing import Any, Final, Literal, Self, TypeVar

from _typeshed import ReadableBuffer, WriteableBuffer

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

FIRST_NAME: Final[int]
MAX_TRACKS: Final[int]
MAX_NAME: Final[int]

def now() -> int: ...

# strings and tracks
def intern(name: str, /) -> int: ...
def category(name: str, /) -> int: ...
def text(id: int, /) -> str: ...
def strings_count() -> int: ...
def track(kind: int, pid: int, tid: int, name: str, parent: int, /) -> int: ...
def process_track() -> int: ...
def thread_track() -> int:
    """Id of the track of the calling thread, which is made if there is none; 0 without a session."""

def tracks(first: int, most: int = ..., /) -> list[tuple[int, int, int, int, int, str]]: ...

# recorder
def open(
    directory: str, slots: int, rings: int, overflow: str, block_seconds: float = ..., session: str = ..., /
) -> int:
    """Opens a session in `directory`, or takes part in the `session` of another process: records into `directory` while that
    process records. The process is notified, so `directory` must have its identity already.

    `slots` per ring is a power of two; a thread that fills its ring goes on in another while there are fewer than `rings`.

    Returns:
        The eventfd that rings signal; -1 in the session of another process.

    Raises:
        OSError: if there is no such directory; ESTALE if the session is over, EINVAL if there is none that can be joined.
    """

def close() -> None: ...
def detach_files(joins: int, /) -> bool:
    """Lets go of the files of the session, while nothing is recorded: they may be removed. The memory stays.

    Args:
        joins: what `joins()` returned before it was known that no process takes part.

    Returns:
        Whether this was done: not without a session of its own, nor where a process has joined since.
    """

def make_files(directory: str, /) -> None:
    """After `detach_files`: goes on in files of another directory, from which a crash can be recovered.

    Raises:
        OSError: if they cannot be made; another directory may be tried.
    """

def joins() -> int:
    """How many processes have joined the session so far."""

def take_refused(pid: int, /) -> int:
    """Events that threads of the joined process of this number could not record, as they could have no ring, since it was
    asked for last. One consumer. Processes whose numbers are alike modulo 256 share a count."""

def leave() -> bool:
    """Takes no part any more. False, and nothing changes, if a thread has recorded already."""

def name_process(name: str, fixed: bool, /) -> None:
    """Names the track of this process, if it is not made yet. Unless it is `fixed`, the name that torch or
    multiprocessing have for the process is preferred."""

class Attached:
    """Rings and open spans of a process that joined; `directory` is its part of the session. One consumer."""

    def __init__(self, directory: str, /) -> None: ...
    def drain(self, limit: int, until: int, /) -> tuple[bytearray, bytes, bool]:
        """As the function `drain`. Ids are the other process's. Rings that contradict themselves are let go."""

    def mark(self) -> None:
        """As `mark_rings`."""

    def release(self) -> None:
        """As `release_rings`."""

    def open_spans(self, until: int, /) -> bytes:
        """Spans that are open, as events with FLAG_OPEN and `dur` up to `until`. Ids are the other process's."""

    def statistics(self) -> dict[str, int]: ...

RECORD_EVENTS: int
RECORD_OPERATORS: int
RECORD_OPEN: int

def want(who: int, asked: int, now: int, /) -> None:
    """Says what number `who` asked to be recorded, and what of it is wanted now: 0, or the sum of `RECORD_EVENTS` (of
    the program: spans, counters, ...) and `RECORD_OPERATORS` (of frameworks). Recorded is what anybody wants now. With
    `RECORD_OPEN` nothing is recorded yet, but spans that are entered are part of what is recorded while they are open."""

def left_out() -> tuple[int, int]:
    """Events of the program and operators that somebody had asked for, and nobody wanted when they began."""

def event_costs() -> tuple[float, float]:
    """ns that recording adds to a span, and to an event without a duration, measured now."""

def recording() -> int: ...
def wake_samplers() -> None:
    """Makes each `sample` of the session look at its descriptor, also while nothing is recorded."""

def drain(limit: int, until: int, /) -> tuple[bytearray, bytes, bool]:
    """Drains up to `limit` events of all rings: (events, arguments, whether more is left). Of each ring it stops before the first
    event that began after `until`, in ns. All events that ended before are drained."""

def release_late(late: bool, /) -> None:
    """Whether slots of rings stay after a drain until `release_rings`; `False` frees all that were drained."""

def mark_rings() -> None:
    """Notes how far the rings of this process were drained: as far as that `release_rings` goes."""

def release_rings() -> None:
    """Frees the slots up to the last `mark_rings`."""

def unreleased() -> int:
    """Slots of rings of this process that were drained and are not free."""

def private_slots() -> int:
    """Slots that are not free, of rings that are in no file, because the session's file system is full."""

def set_at_risk(events: int, /) -> None:
    """Says in the session how many events recovery finds nowhere if this process is killed now, at most."""

def open_spans() -> bytes:
    """Spans that are open now, as events with FLAG_OPEN and `dur` up to now."""

def ring_statistics() -> dict[str, int]: ...
def counts() -> dict[str, int]: ...

ITT_UNRECORDED: str
"""An ITT task of this name arrives and is not recorded."""

def itt_statistics() -> dict[str, int]: ...

# tasks
class Coroutine:
    """Takes the place of a task's coroutine and passes everything through. Made of it where the task is made: the span
    that is open there becomes the parent of the task's outermost spans."""

    def __init__(self, coroutine: Any, /) -> None: ...
    def send(self, value: Any, /) -> Any: ...
    def throw(self, *args: Any) -> Any: ...
    def close(self) -> None: ...
    def __await__(self) -> Generator[Any, Any, Any]: ...
    def _paused(self) -> None:
        """A step that began before the task had this coroutine is over: it is suspended, unless it has gone on."""

def record_tasks(on: bool, /) -> None:
    """Whether each watched task is a span from the first step on that is recorded, named as its coroutine, of category
    `task run`."""

def set_task_lookup(lookup: Callable[[], tuple[str, int, Coroutine | None] | None | Literal[False]], /) -> None:
    """Sets the function that names the running task: its name, a number of its own, and its coroutine. It is called once
    per task, when that records for the first time. If it returns False, the task is unknown, which is counted. Exceptions
    of signal handlers that run meanwhile propagate to the program."""

def current_span() -> int:
    """Id of the innermost span that is open here, 0 = none, or nothing records."""

def call_under(span: int, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Calls a function; spans in it that would have no parent hang on `span`."""

def set_decorator(decorate: Callable[[span, Any], Any], /) -> None: ...
def set_known_values(shown: Callable[[object], str | dict[str, Any] | float | None], /) -> None:
    """Sets the function that returns what is recorded of arguments of other types than numbers, text, lists and dicts;
    for `None`, the name of the type is recorded."""

# threads of processes
def thread_times(pid: int, /) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Of a process: for each thread its number, and ns that it ran and waited for a processor, -1 where the system does not say; and
    the processes that it started. Nothing if there is no such process. For one thread at a time."""

def read_proc(path: str, /) -> str:
    """A small file, its first 64 KiB; empty if it cannot be read. For one thread at a time."""

# events as columns
def encode_frames(
    events: Any, args: bytes, sync: bytes, kind: int, number: int, window: int, source: bytes, /
) -> tuple[bytes, int, int]:
    """Frames of a journal with these events, as columns (docs/segment-format.md), one after the other.

    Args:
        events: a block.
        args: the heap of their arguments.
        sync: the mark of the journal's frames, 4 bytes.
        kind: type of the frames.
        number: of the first frame.
        window: to which the events belong.
        source: of the events, 255 bytes at most.

    Returns:
        The frames; how many there are; and how many events are written without their arguments, which are none, or too long.

    Raises:
        ValueError: if an argument is none of these.
        MemoryError: without memory.
    """

def decode_columns(
    columns: ReadableBuffer,
    count: int,
    arguments: ReadableBuffer,
    names: Any,
    tracks: Any,
    category: Callable[[int], int] | None,
    /,
) -> tuple[bytearray, bytes, int]:
    """Events, their arguments, and how many events lost theirs, which make no sense.

    Args:
        names, tracks: ids of this process (uint32), by their places in the table.
        category: gives the category of this process for a place in the table; it is asked once for each that is used. `None`: categories
            stay places.

    Raises:
        ValueError: if the columns are not what their header says.
    """

def has_zstd() -> bool:
    """Whether the system has libzstd."""

def decompress(stored: ReadableBuffer, length: int, /) -> bytes:
    """The content of one zstd frame.

    Raises:
        ValueError: if it is damaged, or not of this length.
    """

# arguments
def encode_arguments(arguments: Mapping[str, Any], /) -> bytes: ...
def decode_arguments(heap: bytes, at: int, length: int, /) -> dict[str, Any]: ...

# user events
class span:
    """A stretch of work, as context manager or as decorator of a function, coroutine function or generator function.

    Args:
        name: what the trace shows; 1024 bytes of UTF-8 are kept.
        category: groups spans in tables and filters.
        arguments: numbers, strings, booleans, None, and lists or dicts of them; paths, UUIDs, times, decimals, enums and
            torch's types as their text; other objects are shown by type.

    Raises:
        TypeError: if the name or category is no str. Entering and leaving never raise.

    Costs next to nothing while no profiler records. May be used from any thread or task.
    """

    def __init__(self, name: str, /, *, category: str = ..., **arguments: object) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def __call__(self, function: _F, /) -> _F: ...
    def copy(self) -> Self: ...
    @property
    def name(self) -> str: ...

def copy_span(span: span, /) -> span: ...
def instant(name: str, /, *, category: str = ..., **arguments: object) -> None:
    """Something that happened at this moment."""

def counter(name: str, value: float, /, *, category: str = ...) -> None:
    """The value of something at this moment; any number, also NaN."""

def flow(name: str, id: int, phase: str, /, *, category: str = ...) -> None:
    """An arrow between the spans that enclose its calls.

    Args:
        id: links the calls of one arrow.
        phase: 'start', 'step' or 'end'.
    """

def collection(phase: str, info: dict[str, int], /) -> None:
    """For `gc.callbacks`: records collections, but for those of generation 0 that take less than 20 µs."""

def put(counter: bool, name: int, category: int, track: int, at: int, value: float, arguments: bytes, /) -> None:
    """Records a counter, or else an instant, on any track, at a time in ns. The arguments are encoded."""

def past_span(name: int, category: int, begin: int, /) -> None:
    """Records a span that began at a time in ns and ends now, on the row of the calling thread."""

def sample(
    fd: int,
    seconds: float,
    samples: int,
    ident: int,
    tid: int,
    track: int,
    on_main: bool,
    others: list[tuple[int, int, str]],
    /,
) -> bool:
    """Waits until something is recorded, and so long; then records where a thread is, as an instant. For one thread of ours.

    Args:
        fd: a descriptor that ends it when it is readable.
        seconds: to wait before each sample; varied by a third.
        samples: how many to take.
        ident: of the thread, as Python knows it; 0: it only waits.
        tid: its number in the system.
        track: its row.
        on_main: it is the main thread.
        others: (ident, tid, name) of threads of which the busiest is named.

    Returns:
        False if the descriptor is readable.
    """

def set_standard_modules(names: frozenset[str], /) -> None:
    """Names of the modules of Python's library, whose frames are ours where stepscope called them."""

def changing(by: int, /) -> int:
    """Adds to the number of action changes of which the consumer has no message yet; returns the new number."""

def watch_signal(number: int, ours: Callable[[int, FrameType | None], None], seconds: float, /) -> None:
    """Notes that a signal, SIGTERM or SIGHUP, comes, and then calls the handler that it has. Nothing changes if that is neither
    `ours` (the first time, that has just been set) nor none, or if a native handler of others stands before it.

    A second and `seconds` after the signal has come, the process dies of it, whatever the program does."""

def unwatch_signals() -> None:
    """Ends that, from any thread: the signals do what they do without a handler, unless the program has taken them."""

def signals_watched() -> bool:
    """Whether both signals are watched, and nobody has set a handler since."""

def signal_that_came() -> int:
    """The signal that has come and is to end the process; 0 if none has."""

def allow_seconds(more: float, /) -> None:
    """Has the process die so many seconds later of a signal that came."""

def forget_signal() -> None:
    """Nothing is to be done for the signal that came."""

def unprofile_threads(idents: set[int], /) -> bool:
    """Takes the profile function that the calling thread has from the given threads, by `Thread.ident`, where it is theirs too.

    Returns:
        False if this version of Python has no way to do that.
    """

def called_by(part: str, /) -> bool:
    """Whether a function of a library whose file name has `part` in it is on the native stack of the calling thread."""

def without_signals(function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Calls a function with all asynchronous signals blocked in this thread: threads that it starts inherit that."""

def with_programs_mask(function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
    """Calls a function of the program. On a thread of ours it, and what it starts, blocks the signals that the program's main
    thread blocks; on other threads nothing changes."""

def runs_programs_code() -> bool:
    """Whether this thread is one of ours inside of `with_programs_mask`."""

def start_thread(function: Callable[..., object], args: tuple[object, ...], /) -> int:
    """As `_thread.start_new_thread`, but as a thread that Python has not started: so also where it starts none any more.

    Raises:
        RuntimeError: if the system cannot start one.
    """

def die_of_signal(number: int, /) -> None:
    """Has the system do what it does without a handler; it returns if that spares the process."""

class StepCounter:
    """Counts steps, and writes step marks (`id` = `serial`). While `live`, it calls `_transition(step, ts)` when `next_change` is
    reached, `_asked` is set or the time `_deadline` (ns, 0: never) is over, between `_begin_change()` and `_end_change()`; else
    `_step_ignored()`. With `_every` above 1 it wants the `_kinds` of events in one step of so many, and nothing in the others."""

    number: int
    """Of the current step."""
    next_change: int
    live: bool
    serial: int
    stepper: int
    """Identity of the thread that called `step()` last; 0 before."""
    reads: bool
    """Whether a step's begin reads what the system says of the thread and the process."""
    _asked: bool
    _every: int
    _deadline: int
    _kinds: int
    @property
    def marker(self) -> int:
        """Identity of the thread that made the last mark; 0 before."""

    @property
    def track(self) -> int:
        """The track of that mark."""

    def close_readings(self) -> None:
        """Closes the files of /proc that are read; they are opened again when needed."""

    def step(self) -> None: ...
    def _begin_change(self) -> None:
        """Adds 1 to `changing`, unless this profiler has."""

    def _end_change(self) -> None:
        """Takes that back, if it has."""

    def _mark(self, at: int, /) -> tuple[int, int, int]:
        """Marks the begin of step `number` at a time in ns, 0 for now: (time in ns, track, open span)."""

# consumers
class Aggregates:
    """Count, total, self, minimum, maximum, quantiles and standard deviation of spans; similar values of counters; counts of
    instants.

    One row per kind, name and category. Counts and sums are exact; quantiles are nearest-rank and off by less than
    1/128 of their value; the standard deviation divides by the count. Bounded: 65,536 rows and 256 MiB of quantile
    buckets; `counts()` has the number of events that did not fit. Any thread may call any method, which releases the
    GIL. A reader sees whole updates only.
    """

    def update(self, events: Any, /) -> None:
        """Adds the spans, instants and counters of a contiguous block.

        Raises:
            ValueError: if it is not a multiple of 64 bytes or not contiguous.
        """

    def merge(self, other: Aggregates, /) -> None:
        """Adds what `other` holds, as if its events had been given here."""

    def rows(self) -> list[tuple[int, int, int, int, int, int, int, float, float, float, float]]:
        """(name, category, count, total, self, min, max, p50, p95, p99, standard deviation) per key; times in ns."""

    def counter_rows(self) -> list[tuple[int, int, int, float, float, float, float, float]]:
        """(name, category, count, min, max, last, mean, sum) per key of the finite values; last = latest `ts`."""

    def instant_rows(self) -> list[tuple[int, int, int]]:
        """(name, category, count) per key."""

    def nbytes(self) -> int:
        """Memory that the table takes."""

    def counts(self) -> dict[str, int]:
        """Counts inexact rows: `cut` spans, `negative` times that count as 0, `not_finite` counter values that are
        left out, events under an `other` name for want of room, `blurred` values without a bucket of their own."""

class SpanIntervals:
    """Intervals that spans cover, as four 64-bit numbers each: class, track, begin, end. A second thread at the same time gets
    `RuntimeError`.

    Args:
        ignored: class of the spans that are not wanted.
        apart: class of which spans are not joined, and those that lie in another get the class `inner`.
        inner: that class. Where an interval of `apart` with two step marks or more within does not count, those of `inner` count.

    Raises:
        ValueError: if `apart` or `inner` is 255 or more.
    """

    def __init__(self, ignored: int, apart: int, inner: int, /) -> None: ...
    @property
    def tasks(self) -> bool:
        """Whether intervals may lie on tracks of tasks."""

    def __len__(self) -> int: ...
    def add(self, events: Any, classes: Any, categories: Any, signal: int, /) -> tuple[bytes, bytes, bytes]:
        """Adds the spans of a contiguous block; most of those that touch are joined. The GIL is released.

        Args:
            events: the block.
            classes: a byte for each name's id: the class of its spans, if they have the category of the name.
            categories: that category, 16 bits for each name's id.
            signal: category of the counters that are wanted.

        Returns:
            Numbers of 64 bits: step marks as time, step, track; counters of the category `signal` as time, name, value (a
            double); and which events are spans whose name has another category or none, which were not added.

        Raises:
            ValueError: if the block is not a multiple of 64 bytes or not contiguous.
        """

    def extend(self, intervals: Any, /) -> None:
        """Adds contiguous intervals. Raises `ValueError` if they are no multiple of 32 bytes."""

    def drop_until(self, time: int, /) -> None:
        """Drops those that end by a time (ns)."""

    def ends(self, every: int, /) -> bytes:
        """The ends, as 64-bit numbers, of the first and of each `every`-th after it."""

    def to_bytes(self) -> bytes:
        """A copy of all."""

    def share_time(
        self,
        begins: Any,
        ends: Any,
        on_stepping: bytes,
        on_others: bytes,
        marks: Any,
        tracks: tuple[int, int],
        slots: tuple[int, int],
        /,
    ) -> bytes:
        """Measures how much of some stretches of time they cover. The GIL is released.

        Args:
            begins: of the stretches, which are in order and apart.
            ends: of the same.
            on_stepping: the slot of each of 256 classes on `tracks`; 255 for none.
            on_others: the same on all other tracks.
            marks: when steps begin, in order.
            tracks: one or two that step.
            slots: the first and the last that are wanted.

        Returns:
            Numbers of 64 bits, for each slot and stretch: ns that belong to the slot, as no slot before it covers them; then
            how many of its intervals begin there; then the ns that they cover.

        Raises:
            ValueError: if an array has not the right size, or a slot is out of range.
        """

def set_survey_categories(operators: int, quiet: tuple[int, ...], /) -> None:
    """The categories that `survey` counts apart."""

def align(events: Any, at: Any, ahead: Any, base: int, before: float, after: float, /) -> bool:
    """Gives a writable block the times of another clock, which is linear between knots; self times are scaled with durations.

    Args:
        events: the block.
        at: the knots, int64 ns by the clock of the events, ascending; one at least.
        ahead: ns that the other clock is ahead there (float64), less `base`.
        base: ns.
        before, after: slopes before the first and after the last knot.

    Returns:
        Whether any event is of a flow.

    Raises:
        ValueError: if an argument is none of these.
    """

def crc32(data: Any, before: int = 0, /) -> int:
    """As `zlib.crc32`, in a fifth of the time where the processor multiplies polynomials."""

def watch_directory(path: bytes, /) -> int:
    """Opens a descriptor that becomes readable when the times of a directory, or of a file in it, are set. Source: inotify(7).

    Raises:
        OSError: if there is no such directory, or no further descriptor of this kind.
    """

def file_heads(first: bytes, numbers: list[int], nbytes: int, flags: int, /) -> list[tuple[int, bytes] | None]:
    """The size and the first bytes of the files `first.NUMBER`, each opened and closed.

    Args:
        first: beginning of their paths.
        numbers: of the files.
        nbytes: how many bytes, at most 64.
        flags: for `open`, such as `os.O_NOFOLLOW`.

    Returns:
        In their order; `None` for one that cannot be read, or is no regular file.

    Raises:
        ValueError: for more bytes.
        MemoryError: without memory.
    """

def arrow_columns(blocks: Sequence[Any], ahead: int, room: WriteableBuffer, /) -> tuple[list[int], list[list[int]]]:
    """Writes the fields of blocks as Arrow has columns: `exporters/files/parquet_rows.py` names them.

    Args:
        blocks: their events are in the columns one after the other.
        ahead: ns that is added to the times.
        room: is filled with the columns, one after the other, each with room for a multiple of 64 events.

    Returns:
        How many bits are set in each column of bits; the different kinds, categories, names and tracks, whose places the columns have.
        The key of a name has 1 + the step in its upper half if that is shown.

    Raises:
        ValueError: if a block is not a multiple of 64 bytes or not contiguous, or the room has another size.
        MemoryError: without memory.
    """

def survey(events: Any, /) -> tuple[int, ...]:
    """The fields of `Survey` in runtime/events/survey.py."""

def unnamed_tracks(events: Any, named: Any, /) -> set[int]:
    """The tracks of a block whose byte in `named` is 0, or that are beyond it. The GIL stays."""

def part_of_block(events: Any, kind: int, start: int, end: int, /) -> bytes:
    """The events of one kind, or of any if it is 0, that lie in `[start, end)`, ns, at least in part."""

def count_touching(events: Any, intervals: Any, /) -> int:
    """How many events, gaps apart, lie in one of the intervals, at least in part.

    Args:
        events: a block.
        intervals: pairs of 64-bit integers, ns, in order and apart.
    """

def with_steps(events: Any, begins: Any, numbers: Any, in_place: bool = False, /) -> tuple[Any, int, int]:
    """A copy whose events have the number of the step that they began in; of the first step if they began before. And
    `first_step` and `last_step` of its survey. With `in_place`, no copy, but the block itself, which must be writable.

    Args:
        events: a block.
        begins: when each step began, in ns, in order: 64-bit integers.
        numbers: of the steps: 32-bit integers.

    Raises:
        ValueError: if there is no step, or not a number for each.
    """

def step_spans(
    begins: Any, parents: Any, numbers: Any, tracks: Any, end: int, elsewhere: int, name: int, category: int, /
) -> bytearray:
    """A span for each step that ended, as events.

    Args:
        begins: when each step began, in ns, in order: 64-bit integers.
        parents: ids of the spans around the marks: 64-bit integers.
        numbers: of the steps: 32-bit integers.
        tracks: of the threads and tasks that began the steps: 32-bit integers.
        end: when the last step ended, in ns; it did not if that is not after its begin.
        elsewhere: the track of steps that do not nest on theirs.
        name: of the spans.
        category: of the spans.

    Raises:
        ValueError: if the marks have different numbers of these.
    """

def readings_at(readings: Any, signals: Any, marks: Any, most: float, /) -> bytes:
    """The reading of each signal at each mark: the latest that came with the mark, or 1 ns before; not a number where none did.

    Args:
        readings: when (ns), which signal, and the value's bits: three 64-bit integers each, in any order.
        signals: 64-bit integers.
        marks: times in order, 64-bit integers.
        most: readings that are not below it in size are passed over.

    Returns:
        A row of doubles for each signal.
    """

def count_until(sorted: Any, times: Any, /) -> bytes:
    """For each of some times, how many of those that are in order are not later, like `numpy.searchsorted` on the right side.

    The GIL is kept for small work.

    Args:
        sorted: contiguous 64-bit integers, in order.
        times: the same, in any order.

    Returns:
        A 64-bit integer for each time.

    Raises:
        ValueError: if a length is no multiple of 8 bytes.
    """

def clear_wake() -> None:
    """Makes the descriptor that `open` returned unreadable, until a ring requests a drain again."""

def heap_range(block: Any, /) -> tuple[int, int, int]:
    """Where the arguments of a block begin and end in their heap, and how many bytes they have; zeros if there are none."""

def encode_chrome(
    events: Any,
    args: bytes,
    base: int,
    dialect: str,
    /,
) -> bytes:
    """Chrome JSON of a block: one event a line, each line ended by `,\\n`; microseconds since `base` (ns)."""

class PerfettoEncoder:
    """Writes blocks as packets of Perfetto's format, CLOCK_MONOTONIC in ns. It remembers earlier packets, so what it gave
    must be in the file when it is called again, else `forget` comes first. One thread at a time.

    Packet sequences 1 and 2 are used for descriptors and for what others write.
    """

    def __init__(self, base: int, pid: int, /) -> None:
        """`base` distinguishes the rows of a run from those of other runs; the process `pid` is described by the caller."""

    @property
    def delayed(self) -> int:
        """Number of begins that are delayed."""

    def encode(self, events: Any, args: bytes, window: int, /) -> bytes:
        """Returns the packets of a block. Begins of spans are delayed that may have to nest in a later span.

        Raises:
            ValueError: if it is not a multiple of 64 bytes.
            RuntimeError: another thread is inside.
        """

    def release(self) -> bytes:
        """Returns the delayed begins; no span that encloses them may follow."""

    def forget(self) -> None:
        """The last packets are not in the file: rows and names are described again, and begins that they delayed are left out."""

    def process(self, pid: int, /) -> int:
        """The uuid of a process."""
