"""`MindSporeBackend`: MindSpore's operators, by its own profiler of the CPU."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from stepscope.backends.mindspore.blocks import MindSporeTracks, convert
from stepscope.backends.scratch import make_scratch, remove_scratch
from stepscope.runtime.errors import BackendError, ClosedError
from stepscope.runtime.events import clock
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.sources.sink import BackendReport, Sink
from stepscope.runtime.threads import locks
from stepscope.runtime.threads.job_thread import JobThread

log = logging.getLogger("stepscope")

_lock = locks.reentrant()
_owner: MindSporeBackend | None = None
"""The user of MindSpore's profiler, of which a process has one."""

BLOCK = 1 << 15
"""Events delivered at a time."""

TESTED = (2, 10)
"""The newest version of MindSpore whose profiler was driven in tests."""
_reported: set[str] = set()
"""Versions that the log has named."""


class _Recorded(msgspec.Struct, frozen=True):
    """A recording whose files are to be delivered to the sink."""

    directory: Path
    anchors: tuple[ClockAnchor, ClockAnchor]
    until: int
    shapes: bool


class MindSporeBackend:
    """Records operators of MindSpore (2.10 is tested) on the host, in graph and PyNative mode, with shapes and memory.

    MindSpore writes them when a window ends, which costs the training thread the time that the report states; they are
    read on another thread. Two windows that follow each other directly are recorded apart. At the borders of windows
    MindSpore is waited for, unless `synchronize` is off: without, what runs behind the program's back lands in the next
    window, or in none. A graph goes on after its call has returned, also on the CPU: whoever ends a step or a window calls
    `wait_for_operators()` before, so that what runs until then is in it.

    Args:
        operators: record operators.
        shapes: keep shapes of their inputs, where MindSpore says them: for operators of graphs.
        profile_memory: record MindSpore's pool of memory, as counters of category `memory`.
        synchronize: wait for MindSpore where a window begins and ends.
        name: of this source in ledgers and reports.
    """

    thread_bound = True

    def __init__(
        self,
        *,
        operators: bool = True,
        shapes: bool = True,
        profile_memory: bool = False,
        synchronize: bool = True,
        name: str = "mindspore",
    ) -> None:
        self.name = name
        self._made_for = {"operators": operators, "shapes": shapes, "memory": profile_memory}
        self._wanted = self._recorded = self._made_for
        self._synchronize = synchronize
        self._sink: Sink | None = None
        self._mindspore: Any = None
        self._profiler: Any = None
        self._directory: Path | None = None
        self._anchor: ClockAnchor | None = None
        self._problems: Counter[str] = Counter()
        self._cost_ns = 0
        self._error_ns = 0
        self._rows = MindSporeTracks()
        self._jobs = JobThread("stepscope mindspore")

    def stream_only(self) -> None:
        """Refuses: there is nothing of MindSpore before a window ends.

        Raises:
            ValueError: always.
        """
        raise ValueError(f"operators of backend {self.name!r} come when a window ends; record them by a schedule")

    def open(self, sink: Sink) -> None:
        try:
            self._mindspore = import_module("mindspore")
            factory: Any = import_module("mindspore._c_expression").Profiler
            self._profiler = factory.get_instance("CPU")
        except ImportError as error:
            raise BackendError(
                f"MindSpore cannot be imported ({error}); install it, or leave its backend out"
            ) from error
        except (AttributeError, TypeError, RuntimeError) as error:
            raise BackendError(f"this version of MindSpore has no profiler that can be driven: {error}") from error
        if self._profiler is None:
            raise BackendError("this build of MindSpore has no profiler of the CPU")
        _report_if_newer(str(getattr(self._mindspore, "__version__", "")))
        self._sink = sink

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        if self._sink is None:
            return
        began = clock.now()
        recorded = self._directory is not None
        if recorded and (not after.records or before is ProfilerAction.RECORD_AND_SAVE):
            self._stop(at)
        elif not recorded:
            self._put(at)
        if after.records and self._directory is None:
            self._start()
        self._cost_ns += clock.now() - began

    def can_choose(self, what: str, on: bool) -> str | None:
        """Operators, their shapes and memory can be chosen for each window."""
        return "" if what in self._made_for else None

    def choose(self, chosen: Mapping[str, bool]) -> None:
        """Sets the detail of windows that begin from now on."""
        self._wanted = {what: chosen.get(what, on) for what, on in self._made_for.items()}

    def wait_for_operators(self) -> None:
        """Waits, on the CPU and while it records, until MindSpore has run what it was given.

        The next graph would wait for the one before it in any case. On other devices nothing is waited for: what runs there
        is not recorded here, and training would lose its pipeline.
        """
        if self._directory is None or self._mindspore.get_context("device_target") != "CPU":
            return
        began = clock.now()
        self._wait()
        self._cost_ns += clock.now() - began

    def orphaned(self) -> None:
        """The thread that records has ended: stops MindSpore's profiler, which belongs to the process."""
        if self._directory is not None:
            self._stop(clock.now())

    async def aclose(self) -> None:
        if self._directory is not None:
            self._stop(clock.now())
        await asyncio.to_thread(self._jobs.wait)
        self._sink = None

    def report(self) -> BackendReport:
        return BackendReport(
            mode="MindSpore's profiler of the CPU",
            clock="CLOCK_REALTIME, mapped by two readings per recording; durations have six digits; "
            f"{self._error_ns} ns off at most",
            training_thread_ns=self._cost_ns,
            notes=tuple(text if n == 1 else f"{text} ({n} times)" for text, n in self._problems.items()),
        )

    def _start(self) -> None:
        global _owner
        with _lock:
            if _owner not in (None, self):
                self._problems["a window has no operators: another profiler of this process records MindSpore"] += 1
                return
            _owner = self
        directory = make_scratch("stepscope-mindspore-")
        try:
            self._wait()
            self._profiler.init(str(directory))
            self._profiler.step_profiling_enable(True)
            if self._wanted["operators"]:
                self._profiler.enable_op_time()
            if self._wanted["memory"]:
                self._profiler.enable_profile_memory()
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            self._problems[f"a window has no operators, MindSpore's profiler did not start: {_line(error)}"] += 1
            remove_scratch(directory)
            self._let_go()
            return
        self._recorded = self._wanted
        self._directory, self._anchor = directory, ClockAnchor.read()

    def _stop(self, at: int) -> None:
        assert self._directory is not None and self._anchor is not None
        directory = self._directory
        try:
            self._wait()
            self._profiler.stop()
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            self._problems[f"a window has no operators, MindSpore's profiler did not stop: {_line(error)}"] += 1
        finally:
            self._directory = None
            self._let_go()
        self._put(_Recorded(directory, (self._anchor, ClockAnchor.read()), at, self._recorded["shapes"]))

    def _wait(self) -> None:
        """Waits until MindSpore has run its operators."""
        if not self._synchronize:
            return
        api: Any = sys.modules.get("mindspore.common.api")
        executor: Any = getattr(api, "_pynative_executor", None)
        if executor is not None:
            executor.sync()
        wait: Any = getattr(sys.modules.get("mindspore._c_expression"), "_wait_pipeline", None)
        if wait is not None:
            wait()
        if self._mindspore.get_context("device_target") != "CPU":  # where it is refused
            self._mindspore.runtime.synchronize()

    def _let_go(self) -> None:
        global _owner
        with _lock:
            if _owner is self:
                _owner = None

    def _put(self, item: _Recorded | int) -> None:
        assert self._sink is not None
        if isinstance(item, int) and self._jobs.idle:
            self._sink.watermark(item)
        else:
            self._jobs.submit(partial(self._hand_over, item, self._sink))

    def _hand_over(self, item: _Recorded | int, sink: Sink) -> None:
        try:
            if isinstance(item, _Recorded):
                self._deliver(item, sink)
                item = item.until
            sink.watermark(item)
        except ClosedError:
            self._problems["the profiler was closed before a window was delivered"] += 1

    def _deliver(self, recorded: _Recorded, sink: Sink) -> None:
        try:
            made = convert(recorded.directory, recorded.anchors, self._rows, shapes=recorded.shapes)
        except Exception as error:
            self._problems[f"a window has no operators: {_line(error)}"] += 1
            return
        finally:
            remove_scratch(recorded.directory)
        self._error_ns = max(self._error_ns, made.error_ns)
        if made.unreadable:
            sink.dropped(made.unreadable, "source", recorded.until)
        for first in range(0, len(made.events), BLOCK):
            sink.deliver(made.events[first : first + BLOCK].copy(), made.args)


def _report_if_newer(version: str) -> None:
    """Warns, once for each version, of one that is newer than those tested."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers > TESTED and version not in _reported:
        _reported.add(version)
        log.warning(
            "MindSpore %s is newer than %s, the newest version that was tested: operators may be missing or wrong; compare "
            "them with those of MindSpore's own profiler once",
            version,
            ".".join(map(str, TESTED)),
        )


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
