"""The recording that `set_config` and `set_state` control: a profiler of stepscope with MXNet's files."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec

from stepscope.build import trace
from stepscope.compat.mxnet.errors import MXNetError
from stepscope.compat.mxnet.memory import Allocations, MemoryBackend
from stepscope.compat.mxnet.objects.forwarding import forwarding
from stepscope.compat.mxnet.settings import SHAPES, MXNetSettings, capabilities_of, log_missing
from stepscope.compat.mxnet.statistics import FramePass, Statistics
from stepscope.compat.mxnet.tables import Row
from stepscope.exporters.base import Exporter
from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.output import SUFFIXES, numbered
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import real
from stepscope.runtime.loop.pipeline import DRAIN_S
from stepscope.runtime.profiler import Profiler
from stepscope.runtime.session.job import rank_from_environment
from stepscope.runtime.windows.open_window import STEPS


class Files:
    """The files that this process has written; a forked child gives its own other names than its parent."""

    def __init__(self, child: bool = False) -> None:
        self._used: set[str] = set()
        self._child = child
        self.latest: Path | None = None
        """The file that is being written, or was written last."""

    def next(self, filename: str) -> Path:
        """The file for another recording: the one that was asked for, with the rank of one of several, and numbered if this
        process has written that already. A file of an earlier process is replaced, as MXNet does."""
        path = self._named(filename)
        number = 0
        while real(numbered(path, number)) in self._used:
            number += 1
        self.latest = numbered(path, number)
        self._used.add(real(self.latest))
        return self.latest

    def _named(self, filename: str) -> Path:
        path = Path(filename)
        rank, world = rank_from_environment()
        if rank is not None and (world or rank + 1) > 1 and "{rank}" not in filename and "{pid}" not in filename:
            path = _before_the_ending(path, f"_rank{rank}")
        if self._child and "{pid}" not in filename:
            path = _before_the_ending(path, f"_pid{os.getpid()}")
        return path


def _before_the_ending(path: Path, text: str) -> Path:
    zipped = ".gz" if path.name.endswith(".gz") else ""
    name = path.name.removesuffix(zipped)
    suffix = next((one for one in SUFFIXES if name.endswith(one)), Path(name).suffix)
    return path.with_name(f"{name.removesuffix(suffix)}{text}{suffix}{zipped}")


log = logging.getLogger("stepscope")


class _WithoutImplicitStep(ChromeTraceExporter):
    """Leaves out the span of a step that no call of `step()` has ended: in a program without steps it is the whole run."""

    _ended = False
    """Whether a step has a number other than the first one's: `run` after `stop` goes on with the same step."""
    _first_number: int | None = None

    async def open(self, run: Run) -> None:
        self._implicit: list[EventBatch] = []
        await super().open(run)

    async def export(self, batch: EventBatch) -> None:
        kinds = batch.events["kind"]
        for number in batch.events["step"][kinds == int(Kind.STEP)].tolist():
            self._first_number = number if self._first_number is None else self._first_number
            self._ended = self._ended or number != self._first_number
        steps = batch.source == STEPS and bool((kinds == int(Kind.SPAN)).all())  # there are pauses, too
        if steps and not self._ended:
            self._implicit.append(batch)
            return
        if self._ended:
            implicit, self._implicit = self._implicit, []
            for each in implicit:
                await super().export(each)
        await super().export(batch)


class Recording:
    """The recording of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.files = Files()
        self.settings = MXNetSettings()
        self._requested: frozenset[str] = frozenset()
        self.profiler: Profiler | None = None
        """The profiler that records, or did last; `None` before the first `run`."""
        self._statistics = Statistics()
        self._allocations = Allocations()
        self._memory = MemoryBackend()
        self.running = False
        """True if the state is `run`."""
        self._recorded = False
        """True if it has run since `close`."""
        self._pauses = 0

    def configure(self, settings: MXNetSettings, requested: frozenset[str]) -> None:
        """Sets the settings. While it runs, a change that an open file does not allow begins another file; recorded events stay
        in the former one."""
        with self._lock:
            changes = any(getattr(settings, name) != getattr(self.settings, name) for name in SHAPES)
            self.settings, self._requested = settings, requested
            forwarding.to = settings.forward
            if self.profiler is None or not changes:
                return
            running, pauses = self.running, self._pauses
            self.stop()
            self.profiler.close()
            self.profiler = None
            if running:
                self.run()
                for _ in range(pauses):
                    self.pause()

    def set_state(self, state: str) -> None:
        """Sets the state: `run` or `stop`."""
        if state == "run":
            self.run()
        else:
            self.stop()

    def run(self) -> None:
        """Begins to record, or goes on after `stop` in the same file."""
        with self._lock:
            if self.running:
                return
            if self.profiler is None:
                self.profiler = self._make()
                log_missing(self.settings, self._requested)
            self.profiler.start()
            self.running = self._recorded = True

    def stop(self) -> None:
        """Stops recording. The file has everything then."""
        with self._lock:
            if self.running and self.profiler is not None:
                self.running = False
                self._pauses = 0
                self._memory.pause(False)
                self.profiler.stop()

    def pause(self) -> None:
        """Records nothing until `resume`; pauses nest."""
        with self._lock:
            if self.running and self.profiler is not None:
                self._pauses += 1
                self._memory.pause(True)
                self.profiler.pause()

    def resume(self) -> None:
        """Ends the latest pause."""
        with self._lock:
            if not self._pauses or self.profiler is None:
                return
            self._pauses -= 1
            self.profiler.resume()
            self._memory.pause(self._pauses > 0)

    def step(self) -> None:
        """Begins the next step."""
        if self.running and self.profiler is not None:
            self.profiler.step()

    def dump(self, finished: bool) -> None:
        """Writes everything recorded so far to the file, and stops if `finished`. A file that was left for another one is
        complete already.

        Raises:
            MXNetError: if nothing was recorded yet.
            OutputError: if the table of allocations cannot be written.
        """
        with self._lock:
            if not self._recorded:
                raise MXNetError("dump(): nothing was recorded yet; call set_config() and set_state('run') first")
            if finished:
                self.stop()
            self._flush()
            if self.settings.gpu_memory_profile_filename_prefix:
                self._allocations.write(self.settings.gpu_memory_profile_filename_prefix)

    def rows(self, reset: bool) -> list[Row]:
        """The statistics of everything recorded so far; nothing else changes, unless they begin anew."""
        with self._lock:
            self._flush()
            rows = self._statistics.rows()
            if reset:
                self._statistics.reset()
            return rows

    def passes(self, category: str, name: str) -> tuple[FramePass, ...]:
        """The passes of a frame."""
        with self._lock:
            self._flush()
            return self._statistics.passes(category, name)

    def close(self) -> None:
        """Ends the recording; the next `run` begins another one, with the same settings."""
        with self._lock:
            self.stop()
            self._recorded = False
            self._statistics, self._allocations = Statistics(), Allocations()
            if self.profiler is not None:
                self.profiler.close()
                self.profiler = None

    def of_child(self) -> Recording:
        """The recording of a forked child: the settings, and none of the locks and files."""
        child = Recording()
        child.settings, child._requested = self.settings, self._requested
        child.files = Files(child=True)
        return child

    def _flush(self) -> None:
        if self.profiler is not None and self.running and not self.profiler.flush():
            log.warning("stepscope.mxnet: not everything that was recorded is in %s yet", self.files.latest)

    def _make(self) -> Profiler:
        settings = self.settings
        path = self.files.next(settings.filename)
        exporters: list[Exporter] = [
            _WithoutImplicitStep(path, form="object", closed=True, dialect="mxnet"),
            self._statistics,
            *settings.exporters,
        ]
        if settings.gpu_memory_profile_filename_prefix:
            exporters.append(self._allocations)
        backends = [*settings.backends, *([self._memory] if settings.records("memory") else [])]
        interval = min(settings.options.drain_interval or DRAIN_S, settings.dump_period)
        made = trace(
            name="mxnet",
            schedule=settings.schedule,
            backends=backends,
            exporters=exporters,
            output_dir=settings.output_dir,
            metadata=settings.metadata,
            start=False,
            control=settings.control,
            options=msgspec.structs.replace(settings.options, drain_interval=interval),
        )
        made.add_metadata("capabilities", [msgspec.structs.asdict(one) for one in capabilities_of(settings)])
        return made
