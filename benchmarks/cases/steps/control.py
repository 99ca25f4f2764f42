"""The cost, for a loop, of accepting requests for windows: the step, a look at what the watched file says, and the monitor that
scripts of MindSpore have."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import session
from benchmarks.cases.tools.timing import per_turn
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def _step(armed: bool) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        with TemporaryDirectory() as directory, session(control=directory) as profiler:
            if armed:
                assert profiler.arm(stepscope.control.WindowRequest(start_step=1 << 40, steps=1))
            loop = loops.calls(profiler.step)

            def once() -> Sample:
                profiler.flush()
                return per_turn(loop, scale.calls)

            yield once

    return probe


@contextmanager
def _look(scale: Scale) -> Generator[Round]:
    from stepscope.runtime.control.entry_points.control_file import decode_control_file, default_content
    from stepscope.runtime.control.entry_points.watched_file import WatchedFile

    with TemporaryDirectory() as directory:
        watched = WatchedFile(Path(directory) / "c.json", decode_control_file, default=default_content())
        watched.create()
        watched.look()
        loop = loops.reads(watched)
        yield lambda: per_turn(loop, scale.calls)


class _Context:
    """The context that MindSpore passes to its callbacks, as far as the monitor looks at it."""

    cur_step_num = 0

    def original_args(self) -> _Context:
        return self


def _monitor(*, callbacks: bool) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        from stepscope.compat.mindspore.monitor.dynamic_monitor import DynamicProfilerMonitor

        with TemporaryDirectory() as directory:
            monitor = DynamicProfilerMonitor(directory, directory)
            try:
                loop = loops.callbacks(monitor, _Context()) if callbacks else loops.calls(monitor.step)
                yield lambda: per_turn(loop, scale.calls)
            finally:
                monitor.close()

    return probe


ROWS = (
    Row(
        key="control.step",
        what="`step()` of a profiler that windows can be asked of, nothing asked for",
        unit="ns",
        budget=250,
        cited="MindSpore 2.10.0 DynamicProfilerMonitor, begin and end of a step, 44,000 ns",
        contenders=(Contender(Tool.STEPSCOPE, "step", _step(armed=False)),),
    ),
    Row(
        key="control.armed",
        what="the same while a window waits for its steps",
        unit="ns",
        budget=250,
        contenders=(Contender(Tool.STEPSCOPE, "step", _step(armed=True)),),
    ),
    Row(
        key="control.look",
        what="reading what a watched file says",
        unit="ns",
        budget=100,
        cited="MindSpore 2.10.0, reading its configuration once, 22,000 ns",
        contenders=(Contender(Tool.STEPSCOPE, "WatchedFile.current", _look),),
    ),
    Row(
        key="control.monitor.step",
        what="`step()` of `stepscope.mindspore.DynamicProfilerMonitor`, nothing asked for",
        unit="ns",
        budget=2000,
        cited="MindSpore 2.10.0 DynamicProfilerMonitor, reading its configuration once, 22,000 ns",
        contenders=(Contender(Tool.STEPSCOPE, "DynamicProfilerMonitor.step", _monitor(callbacks=False)),),
    ),
    Row(
        key="control.monitor.callbacks",
        what="`step_begin()` and `step_end()` of it, nothing asked for",
        unit="ns",
        budget=3000,
        cited="MindSpore 2.10.0 DynamicProfilerMonitor, begin and end of a step, 44,000 ns",
        contenders=(Contender(Tool.STEPSCOPE, "DynamicProfilerMonitor callbacks", _monitor(callbacks=True)),),
    ),
)
