"""The output of a run: its directory, and what can be asked of its windows later."""

from __future__ import annotations

import datetime
import errno
import logging
import os
import re
import threading
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio
import anyio.from_thread
import msgspec

from stepscope.runtime.aggregates import Aggregates
from stepscope.runtime.errors import OutputError, ProfilerStateError
from stepscope.runtime.formats import exporter_for, replay_into, run_of
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.launch import launch_directory, launch_name, own_directory
from stepscope.runtime.outlet import Outlet
from stepscope.runtime.pipeline import Pipeline
from stepscope.runtime.private_files import refuse_link
from stepscope.runtime.processes import process_identity
from stepscope.runtime.run import Run
from stepscope.runtime.session import forget_run, keep_run
from stepscope.runtime.session_note import MAX_OUTPUTS, SessionNote, new_note, replace_note
from stepscope.runtime.summary import Summary
from stepscope.runtime.trace_note import TraceNote
from stepscope.runtime.window import Window

log = logging.getLogger("stepscope")

RUNS = Path("stepscope_runs")
"""Where runs have their directories, if nothing is said."""


@runtime_checkable
class _Journal(Protocol):
    """An exporter whose file can be read back."""

    is_journal: bool

    def path_of(self, window: int) -> Path | None:
        """The file that holds this window; `None` if none does any more."""
        ...


def file_name(name: str) -> str:
    """The name of a run as it is fit for a directory."""
    return re.sub(r"[^\w.-]+", "_", name).strip(".").encode()[:64].decode(errors="ignore") or "run"


class Output:
    """The directory of one run of one rank.

    Args:
        path: its name.
        ours: whether that was not chosen by the user: a link of this name is not followed then.
    """

    def __init__(self, path: Path, *, ours: bool = False) -> None:
        self.path = path
        self._ours = ours
        self.pipeline: Pipeline | None = None
        self._note: tuple[Path, SessionNote] | None = None
        self._noting = threading.Lock()

    @classmethod
    def choose(cls, output_dir: str | os.PathLike[str] | None, name: str, rank: int | None) -> Output:
        """The directory that was asked for, or a new one under `stepscope_runs`; ranks get one each, in that of their launch
        if it has a name."""
        if output_dir is None and (launch := launch_name()):
            path = launch_directory(RUNS, file_name(name), file_name(launch))
        elif output_dir is None:
            now = datetime.datetime.now(datetime.UTC)
            path = own_directory(RUNS / f"{file_name(name)}-{now:%Y%m%d-%H%M%S}-{os.getpid()}", rank)
        else:
            path = Path(output_dir)
        return cls(path) if rank is None else cls(path / f"rank{rank}", ours=True)

    def make(self) -> None:
        """Makes the directory.

        Raises:
            OutputError: if it cannot be made or written; says where and why.
        """
        try:
            if self._ours:
                refuse_link(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self.path = self.path.resolve()
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
        except ValueError as error:
            raise OutputError(errno.EINVAL, f"cannot write the run to {self.path!r}: {error}") from error
        except OSError as error:
            raise OutputError(
                error.errno, f"cannot write the run to {self.path}: {error.strerror}; choose another output_dir"
            ) from error

    def announce(self, session: Path, profiler: int, run: Run, keep_last: int = 0) -> None:
        """Notes for `stepscope recover` where the rings are, and whose.

        Args:
            session: directory of the rings.
            profiler: its number in them.
            run: whose name and rank are noted, as there may be no journal that says them.
            keep_last: steps that a flight recorder keeps.

        Raises:
            OutputError: if the note cannot be written, as on a full disk.
        """
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
                raise OutputError(
                    error.errno, f"cannot write to {self.path}: {error.strerror}; choose another output_dir"
                ) from error
            keep_run(session, profiler, self._note[0])

    def note_output(self, file: Path, being_written: bool, trace: TraceNote | None = None) -> None:
        """Notes which files are being written, and how recovery would write a trace anew; from any thread."""
        name = os.path.abspath(file)
        with self._noting:
            if self._note is None:
                return
            path, note = self._note
            outputs = [output for output in note.outputs if output != name]
            outputs = [*outputs, name][-MAX_OUTPUTS:] if being_written else outputs
            traces = [known for known in note.traces if known.file != self._shortened(name)]
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
                forget_run(Path(note.directory), note.profiler)

    def _journal(self) -> Outlet | None:
        for outlet in self.pipeline.outlets if self.pipeline else ():
            if isinstance(outlet.exporter, _Journal):
                return outlet
        return None

    async def written(self, window: Window) -> Window:
        """The window once the journal has it, so that it can be exported, with the accounts as they are then."""
        journal = self._journal()
        if journal is None or self.pipeline is None:
            return window
        await journal.window_closed(window.index)
        outputs = window.ledger.outputs | self.pipeline.fanout.outputs(window.index)
        return msgspec.structs.replace(window, ledger=msgspec.structs.replace(window.ledger, outputs=outputs))

    def saved(self) -> tuple[Path, ...]:
        """The journals of the windows that a flight recorder has saved and kept, the oldest first."""
        journal = self._journal()
        flight = None if self.pipeline is None else self.pipeline.flight
        if flight is None or journal is None or not isinstance(journal.exporter, _Journal):
            return ()
        paths = [journal.exporter.path_of(window) for window in flight.staying]
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    # WindowActions

    def summary(self, window: Window) -> Summary:
        """The table of a window.

        Raises:
            ProfilerStateError: if so many windows have followed that it was let go.
        """
        table = self.pipeline.tables.get(window.index) if self.pipeline else None
        if table is None:
            raise ProfilerStateError(f"the table of window {window.index} is not kept any more; use the journal")
        return Summary.of(table)

    def total(self) -> Summary:
        """The table of all closed windows."""
        return Summary.of(self.pipeline.total if self.pipeline else Aggregates())

    def export(self, window: Window, path: Path, format: str | None) -> Path:
        """Replays a window from the journal into a file."""
        journal = self._journal()
        if journal is None or not isinstance(journal.exporter, _Journal):
            raise ProfilerStateError(
                "this run keeps no journal (Options.journal is off), so windows cannot be exported"
            )
        source = journal.exporter.path_of(window.index)
        if source is None:
            raise ProfilerStateError(
                f"window {window.index} has no file any more: newer and slower ones were saved since"
            )
        directory = path.absolute().parent
        exporter = exporter_for(path, format)

        async def replay() -> None:
            with JournalReader(source) as reader:
                await replay_into(reader, exporter, run_of(reader, directory), window)

        # On a loop of its own, so that it can be called from callbacks and coroutines alike.
        with anyio.from_thread.start_blocking_portal(name="stepscope export") as portal:
            portal.call(replay)
        written = getattr(exporter, "path", path)  # a journal does not overwrite another
        return written if isinstance(written, Path) else path
