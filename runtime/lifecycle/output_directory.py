"""The output of a run: its directory, and what can be asked of its windows later."""

from __future__ import annotations

import datetime
import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from stepscope.runtime.errors import OutputError, ProfilerStateError
from stepscope.runtime.export.exporter_worker import ExporterWorker
from stepscope.runtime.export.formats import writing
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute, writable_or_other
from stepscope.runtime.files.private_files import refuse_link
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.replay import replay_into, run_of
from stepscope.runtime.loop.pipeline import Pipeline
from stepscope.runtime.loop_threads.loop_thread import run_on_own_loop
from stepscope.runtime.session.directory import add_run, remove_run
from stepscope.runtime.session.launch import launch_directory, launch_name, own_directory
from stepscope.runtime.session.note import MAX_OUTPUTS, SessionNote, TraceNote, new_note, replace_note
from stepscope.runtime.session.system import process_identity
from stepscope.runtime.threads.native_threads import Lock
from stepscope.runtime.windows.summary import Summary
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

RUNS = Path("stepscope_runs")
"""The default directory of runs."""

_WRONG_NAMES = frozenset(
    getattr(errno, name) for name in "EACCES EPERM EROFS ENOENT ENOTDIR EEXIST EISDIR ELOOP EINVAL ENAMETOOLONG".split()
)
"""Errors of the name that the user gave, rather than of the machine at this moment, such as a full disk."""


@runtime_checkable
class _Journal(Protocol):
    """An exporter whose file can be read back."""

    is_journal: bool

    def path_of(self, window: int) -> Path | None:
        """The file that holds this window; `None` if none does any more."""
        ...


_warned: set[str] = set()
"""Why runs of this process are not in the working directory; logged once."""


def file_name(name: str) -> str:
    """The name of a run as it is fit for a directory."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".").encode(errors="replace")[:64].decode(errors="ignore") or "run"


class Output:
    """The directory of one run of one rank.

    Args:
        path: its name.
        ours: whether that was not chosen by the user: a link of this name is not followed then.
        named: whether the user named it, or the directory that it is in.
        elsewhere: why it is not in the working directory, where it would be by default.
    """

    def __init__(self, path: Path, *, ours: bool = False, named: bool = True, elsewhere: str = "") -> None:
        self.path = path
        self.made = False
        """Whether the directory can be written."""
        self._ours, self._named, self._elsewhere = ours, named, elsewhere
        self.pipeline: Pipeline | None = None
        self._note: tuple[Path, SessionNote] | None = None
        self._noting = Lock()

    @classmethod
    def choose(cls, output_dir: str | os.PathLike[str] | None, name: str, rank: int | None) -> Output:
        """The directory that was asked for, or a new one under `stepscope_runs`; ranks get one each, in that of their launch
        if it has a name. An `Output` is a path, too: one that was chosen before is taken as it is.

        `stepscope_runs` is in the working directory. If that cannot be written, it is `stepscope_runs-<user's number>` in
        the directory for temporary files, and `make` warns.
        """
        if isinstance(output_dir, Output):
            output = output_dir
        elif output_dir is not None:
            output = cls(Path(output_dir))
        else:
            runs, launch = writable_or_other(RUNS, RUNS.name), launch_name()
            now = datetime.datetime.now(datetime.UTC)
            if launch:
                path = launch_directory(runs, file_name(name), file_name(launch))
            else:
                path = own_directory(runs / f"{file_name(name)}-{now:%Y%m%d-%H%M%S}-{os.getpid()}", rank)
            output = cls(path, named=False, elsewhere="" if runs == RUNS else "the working directory cannot be written")
        return output if rank is None else output.below(f"rank{rank}", ours=True)

    def below(self, name: str, *, ours: bool = False) -> Output:
        """A directory in this one, chosen by the same."""
        return Output(self.path / name, ours=ours, named=self._named, elsewhere=self._elsewhere)

    def __fspath__(self) -> str:
        return str(self.path)

    def make(self) -> None:
        """Makes the directory. If it cannot be written, one warning says so, and exporters that write to it fail, and no
        others. Raises `OutputError` if the user named it and the name is wrong, as where there is no permission."""
        try:
            if self._ours:
                refuse_link(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self.path = self.path.resolve()
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except ValueError as error:
            raise OutputError(errno.EINVAL, f"cannot write the run to {self.path!r}: {error}") from error
        except OSError as error:
            self._cannot_be_written(error)
            return
        self.made = True
        if self._elsewhere and self._elsewhere not in _warned:
            _warned.add(self._elsewhere)
            log.warning("%s, so the run is written to %s; output_dir names another place", self._elsewhere, self.path)

    def _cannot_be_written(self, error: OSError) -> None:
        is_file = error.errno == errno.EEXIST and self.path.is_file()
        problem = f"cannot write the run to {self.path}: {'it is a file' if is_file else error.strerror}"
        if self._named and error.errno in _WRONG_NAMES:
            hint = "name a directory" if is_file else "choose another output_dir"
            raise OutputError(error.errno, f"{problem}; {hint}") from error
        log.warning(
            "%s. The program goes on; what would be written there is not written, and a killed run cannot be recovered: "
            "choose another output_dir",
            problem,
        )

    def announce(self, session: Path, profiler: int, run: Run, keep_last: int = 0) -> None:
        """Notes for `stepscope recover` where the rings are, whose, and how many steps a flight recorder keeps. `profiler` is
        its number in the rings. Name and rank are noted, too, as there may be no journal that has them."""
        if not self.made:
            return
        me = process_identity()
        note = SessionNote(
            directory=str(session),
            pid=me["pid"],
            start_time=me["start_time"],
            profiler=profiler,
            keep_last=keep_last,
            run=run.id,
            name=run.name,
            rank=run.rank,
            world_size=run.world_size,
        )
        with self._noting:
            try:
                self._note = new_note(self.path, note), note
            except OSError as error:
                log.warning(
                    "cannot write to %s: %s. The program goes on; if it is killed, the run cannot be recovered",
                    *(self.path, error.strerror),
                )
                return
            add_run(session, profiler, self._note[0])

    @property
    def announced(self) -> bool:
        """Whether `stepscope recover` would find the rings of this run."""
        return self._note is not None

    def note_output(self, file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
        """Notes which files are being written, and how recovery would write a trace anew; from any thread."""
        name = os.path.normpath(absolute(file))
        with self._noting:
            if self._note is None:
                return
            path, note = self._note
            outputs = [output for output in note.outputs if output != name]
            outputs = [*outputs, name][-MAX_OUTPUTS:] if being_written else outputs
            traces = [earlier for earlier in note.traces if earlier.file != self._shortened(name)]
            if trace is not None and being_written:
                file_name, first = self._shortened(name), self._shortened(os.path.abspath(trace.first))
                traces.append(msgspec.structs.replace(trace, file=file_name, first=first))
            note = msgspec.structs.replace(note, outputs=tuple(outputs), traces=tuple(traces[-MAX_OUTPUTS:]))
            self._note = path, note
            try:
                replace_note(path, note)
            except OSError as error:
                log.warning("%s cannot be written, so recovery would not know of %s: %s", path, name, error.strerror)

    def _shortened(self, name: str) -> str:
        """A name below the run's directory, which may be moved, is relative to it."""
        return name.removeprefix(f"{self.path}/")

    def finish(self) -> None:
        """The run ended well: nothing is left to recover. A note that cannot be deleted stays, with a warning."""
        with self._noting:
            if self._note is not None:
                path, note = self._note
                self._note = None
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    log.warning(
                        "%s cannot be deleted: %s; the run has ended, so there is nothing to recover: delete it when you can",
                        *(path, error.strerror),
                    )
                remove_run(Path(note.directory), note.profiler)

    def _journals(self) -> Iterator[tuple[ExporterWorker, _Journal]]:
        for worker in self.pipeline.workers if self.pipeline else ():
            if isinstance(worker.exporter, _Journal):
                yield worker, worker.exporter

    def _path_of(self, window: int) -> Path | None:
        for _, journal in self._journals():
            return journal.path_of(window)
        raise ProfilerStateError("this run keeps no journal (Options.journal is off), so it cannot be read back")

    async def written(self, window: Window) -> Window:
        """The window once the journal has it, so that it can be exported, with the accounts as they are then."""
        worker, _ = next(self._journals(), (None, None))
        if worker is None or self.pipeline is None:
            return window
        await worker.window_closed(window.index)
        outputs = window.ledger.outputs | self.pipeline.fanout.outputs(window.index)
        return msgspec.structs.replace(window, ledger=msgspec.structs.replace(window.ledger, outputs=outputs))

    def saved(self) -> tuple[Path, ...]:
        """The journals of the windows that a flight recorder has saved and kept, the oldest first."""
        _, journal = next(self._journals(), (None, None))
        flight = None if self.pipeline is None else self.pipeline.flight
        if flight is None or journal is None:
            return ()
        paths = [journal.path_of(window) for window in flight.remaining]
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    def journal_path(self) -> Path | None:
        """The file that can be read back, of a flight recorder the directory of those that it saved; `None` if there is none
        yet. Raises `ProfilerStateError` if the run keeps no journal."""
        saved = self.saved()
        return saved[-1].parent if saved else self._path_of(0)

    # WindowActions

    def summary(self, window: Window) -> Summary:
        """The table of a window. Raises `ProfilerStateError` if so many windows have followed that it was dropped."""
        table = self.pipeline.tables.get(window.index) if self.pipeline else None
        if table is None:
            raise ProfilerStateError(f"the table of window {window.index} is not kept any more; use the journal")
        return Summary.of_table(table)

    def total(self) -> Summary:
        """The table of all windows; of one that is open, as far as it was sorted."""
        return Summary.of_table(self.pipeline.tables.so_far()) if self.pipeline else Summary()

    def export(self, window: Window, path: Path, format: str | None) -> Path:
        """Replays a window from the journal into a file."""
        source = self._path_of(window.index)
        if source is None:
            raise ProfilerStateError(
                f"window {window.index} has no file any more: newer and slower ones were saved since"
            )
        directory = absolute(path).parent
        with writing(path, format) as exporter:

            async def replay() -> None:
                with JournalReader(source) as reader:
                    await replay_into(reader, exporter, run_of(reader, directory), window)

            run_on_own_loop(replay)
        if not getattr(exporter, "is_journal", False):
            return path
        written = getattr(exporter, "path", path)  # a journal does not overwrite another
        return written if isinstance(written, Path) else path
