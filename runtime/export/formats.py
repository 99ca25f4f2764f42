"""Output formats by name and file ending, and the playing of a journal into any of them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import anyio
import msgspec

from stepscope.runtime.errors import OutputError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.journal.format import time_range
from stepscope.runtime.journal.frames import Damage
from stepscope.runtime.journal.reader import JournalItem, JournalReader
from stepscope.runtime.loop_threads.loop_thread import call_in_thread
from stepscope.runtime.windows.window import Step, Window

Factory = Callable[[Path], Exporter]
"""Makes an exporter that writes to one file."""


class Format(msgspec.Struct, frozen=True):
    """One registered format."""

    name: str
    suffixes: tuple[str, ...]
    factory: Factory


_formats: dict[str, Format] = {}


def register(name: str, suffixes: Sequence[str], factory: Factory) -> None:
    """Makes a format known to `Window.export`, `stepscope convert` and `stepscope recover`.

    Args:
        name: such as `chrome`; registering it again replaces it.
        suffixes: endings of file names, such as `.json.gz`; the longest that fits a name decides.
        factory: makes an exporter for a path.

    Raises:
        ValueError: for an ending that does not begin with a dot.
    """
    for suffix in suffixes:
        if not suffix.startswith("."):
            raise ValueError(f"a file ending begins with a dot, got {suffix!r}")
    _formats[name] = Format(name, tuple(suffix.lower() for suffix in suffixes), factory)


def known() -> list[Format]:
    """All registered formats, by name."""
    return [_formats[name] for name in sorted(_formats)]


def exporter_for(path: str | os.PathLike[str], format: str | None = None) -> Exporter:
    """An exporter that writes to `path`.

    Args:
        path: the file; its ending names the format unless `format` does.
        format: name of a format.

    Raises:
        ValueError: if no format is known by that name or ending; lists those that are.
    """
    target = Path(path)
    if format is not None:
        if format not in _formats:
            raise ValueError(f"unknown format {format!r}; known are {', '.join(sorted(_formats)) or 'none'}")
        return _formats[format].factory(target)
    name = target.name.lower()
    fitting = [(len(end), known) for known in _formats.values() for end in known.suffixes if name.endswith(end)]
    if not fitting:
        endings = ", ".join(f"{end} ({known.name})" for known in _formats.values() for end in known.suffixes)
        raise ValueError(f"no format has the ending of {target.name!r}; known are {endings or 'none'}")
    return max(fitting, key=lambda pair: pair[0])[1].factory(target)


being_written: set[str] = set()
"""Files that exporters of this process have open for writing: two on one file would ruin it for both."""


@contextlib.contextmanager
def staged(target: Path) -> Generator[Path]:
    """A place to write a file to that gets its name when it is complete.

    The place is in a new directory beside the target. When the block ends without an exception, what is there is moved to
    the target's directory, over whatever has its name; otherwise it is deleted, and what was there before stays.

    Raises:
        OutputError: if that cannot be done; or the target is there and no regular file, or is being written.
    """
    target = absolute(target)
    try:
        mode = os.lstat(target).st_mode
    except OSError:
        mode = stat.S_IFREG  # not there, or a reason that making it tells better
    if stat.S_ISLNK(mode):
        raise OutputError(errno.EINVAL, "it is a symbolic link; name the file that it leads to", str(target))
    if not stat.S_ISREG(mode):
        raise OutputError(
            errno.EINVAL, "it is no regular file; name one that is, or one that is not there", str(target)
        )
    if os.path.realpath(target) in being_written:
        raise OutputError(
            errno.EBUSY, "another exporter of this process writes to it; choose another name", str(target)
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name[:100]}."
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as directory:
            yield Path(directory) / target.name
            for name in sorted(os.listdir(directory)):
                os.replace(Path(directory) / name, target.parent / name)
    except OutputError as error:  # it names the place, of which nothing is left
        error.filename = str(target)
        raise
    except OSError as error:
        raise OutputError(error.errno, f"cannot write: {error.strerror or error}", str(target)) from error


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], format: str | None = None) -> Generator[Exporter]:
    """An exporter for a recording that is replayed: its file gets its name when the block ends without an exception.

    A journal is written at its place, under the next free name if there is one already: the exporter's `path` says which.

    Args:
        path: as for `exporter_for`.
        format: likewise.

    Raises:
        ValueError: if no format is known by that name or ending.
        OutputError: as `staged` does.
    """
    exporter = exporter_for(path, format)
    if getattr(exporter, "is_journal", False):
        yield exporter
        return
    with staged(Path(path)) as place:
        yield exporter_for(place, format)


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What was played into an exporter."""

    batches: int
    events: int
    windows: int
    """Windows closed, those included that had no end in the journal."""
    unfinished: int
    """Windows that had none: the run was interrupted, or goes on."""
    damage: Damage


def run_of(reader: JournalReader, output_dir: Path) -> Run:
    """The run that a journal tells of, for an exporter that writes to `output_dir`."""
    record = reader.run
    return Run(
        name=record.name if record else "unknown",
        output_dir=output_dir,
        pid=record.pid if record else 0,
        host=record.host if record else "",
        rank=record.rank if record else None,
        world_size=record.world_size if record else None,
        anchor=record.anchor if record else ClockAnchor(0, 0, 0),
        metadata=lambda: reader.metadata,
        ledger=lambda: reader.ledger,
        job=record.job if record else "",
        clock=record.clock if record else "",
        id=record.id if record else "",
    )


async def replay_into(
    reader: JournalReader, exporter: Exporter, run: Run, window: Window | int | None = None
) -> Replayed:
    """Plays a journal through the whole life of an exporter: `open` to `aclose`.

    Reading happens on a worker thread. A window that has no end in the journal is closed as incomplete, with the
    times and steps that its events tell.

    Args:
        reader: at the beginning of its journal; not closed here.
        exporter: a fresh one.
        run: what the exporter is told of the run, such as `run_of(reader, ...)`.
        window: only this window; a `Window` is also what `close_window` gets, in place of the journal's record.

    Raises:
        OutputError, ExporterError, ...: what the exporter raised, after it was closed.
    """
    only = window.index if isinstance(window, Window) else window
    items = reader.items(only)
    open_windows: dict[int, UnfinishedWindow] = {}
    batches = events = windows = 0
    await exporter.open(run)
    try:
        while (item := await call_in_thread(_next, items)) is not None:
            if isinstance(item, EventBatch):
                open_windows.setdefault(item.window, UnfinishedWindow(item.window)).add(item)
                await exporter.export(item)
                batches += 1
                events += len(item)
            elif isinstance(item, Window):
                open_windows.pop(item.index, None)
                await exporter.close_window(window if isinstance(window, Window) else item)
                windows += 1
        for unfinished in open_windows.values():
            given = window if isinstance(window, Window) else unfinished.close(run)
            await exporter.close_window(given)
    finally:
        with anyio.CancelScope(shield=True):
            await exporter.aclose()
    return Replayed(
        batches=batches,
        events=events,
        windows=windows + len(open_windows),
        unfinished=len(open_windows),
        damage=reader.damage,
    )


class UnfinishedWindow:
    """What is known of a window whose end was not read."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._first = self._last = 0
        self._events = 0
        self._starts: dict[int, int] = {}

    def add(self, batch: EventBatch) -> None:
        first, last = time_range(batch.events)
        self._first = min(self._first, first) if self._events else first
        self._last = max(self._last, last) if self._events else last
        self._events += len(batch)
        marks = batch.events[batch.events["kind"] == int(Kind.STEP)]
        self._starts.update(zip(marks["step"].tolist(), marks["ts"].tolist(), strict=True))

    def close(self, run: Run) -> Window:
        starts = sorted(self._starts.items(), key=lambda pair: pair[1])
        ends = [*(start for _, start in starts[1:]), max(self._last, starts[-1][1] if starts else 0)]
        return Window(
            index=self._index,
            profiler=run.name,
            start_ns=self._first,
            end_ns=self._last,
            steps=tuple(Step(number, start, end) for (number, start), end in zip(starts, ends, strict=False)),
            complete=False,
            diagnostics=("the journal ends inside this window: the run was interrupted, or goes on",),
            wall_start_ns=run.anchor.wall(self._first),
            metadata=run.metadata(),
        )


def _next(items: Iterator[JournalItem]) -> JournalItem | None:
    return next(items, None)
