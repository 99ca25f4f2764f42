"""Annotations of other tools' shapes, and functions that were instrumented."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from contextlib import contextmanager

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import Accounts, session
from benchmarks.cases.tools.timing import Loop, per_turn
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def _recorded(loops_with: Callable[[], tuple[Loop, Loop | None]]) -> Probe:
    """A loop, and the one that it is compared with, while a profiler records."""

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with session() as profiler:
            loop, bare = loops_with()

            def once() -> Sample:
                profiler.flush()
                accounts = Accounts(profiler)
                sample = per_turn(loop, scale.calls) if bare is None else per_turn(loop, scale.calls, bare)
                return Sample(sample.value, sample.baseline, accounts.facts())

            yield once

    return probe


def _annotations() -> tuple[Loop, None]:
    from stepscope import nvtx

    return loops.spans(nvtx.annotate), None


def _tasks() -> tuple[Loop, None]:
    from stepscope import mxnet

    task = mxnet.Domain("benchmark").new_task("x")

    def loop(n: int) -> None:
        for _ in range(n):
            task.start()
            task.stop()

    return loop, None


def _instrumented() -> tuple[Loop, Loop]:
    import stepscope

    source = "def instrumented(): pass\ndef bare(): pass"
    module = types.ModuleType("benchmarked")
    exec(source, module.__dict__)
    stepscope.instrument(module, include="instrumented")
    return loops.calls(module.instrumented), loops.calls(module.bare)


ROWS = (
    Row(
        key="annotation.nvtx",
        what='`with nvtx.annotate("x")` while recording',
        unit="ns",
        contenders=(Contender(Tool.STEPSCOPE, "stepscope.nvtx.annotate", _recorded(_annotations)),),
    ),
    Row(
        key="annotation.mxnet",
        what="`task.start()` and `task.stop()` while recording",
        unit="ns",
        cited="MXNet 1.9.1 1,900 ns",
        contenders=(Contender(Tool.STEPSCOPE, "stepscope.mxnet.Task", _recorded(_tasks)),),
    ),
    Row(
        key="annotation.instrument",
        what="a call of an instrumented function, while recording",
        unit="ns",
        contenders=(Contender(Tool.STEPSCOPE, "instrument", _recorded(_instrumented)),),
    ),
)
