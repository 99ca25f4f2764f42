"""`step()` where the schedule's action does not change."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import session, signals
from benchmarks.cases.tools.timing import per_turn
from benchmarks.harness.peers import peer, torch_profile
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

FOR_EVER = 1 << 40
"""Steps: more than any benchmark takes."""


def _stepscope(**schedule: int) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        import stepscope

        with session(schedule=stepscope.schedule(**schedule)) as profiler:
            loop = loops.calls(profiler.step)

            def once() -> Sample:
                profiler.flush()
                return per_turn(loop, scale.calls)

            yield once

    return probe


@contextmanager
def _with_signals(scale: Scale) -> Generator[Round]:
    with signals("all"), session() as profiler:
        loop = loops.calls(profiler.step)

        def once() -> Sample:
            profiler.flush()
            return per_turn(loop, max(scale.calls // 10, 1))

        yield once


SLOW_STEPS = 250
"""Of 20 ms each: what signals cost by time is to be seen, and not what they cost by step."""


def _others_ns() -> int:
    """ns for which threads of this process other than the main one were on processors, each as the scheduler counts it."""
    tids = [tid for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
    return sum(int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[0]) for tid in tids)


@contextmanager
def _processor(scale: Scale) -> Generator[Round]:
    def used(names: str) -> float:
        """ms a second that threads other than the main one are on processors; that one runs Python for a fifth of the time."""
        with signals(names), session() as profiler:
            time.sleep(1)  # threads begin
            begin, others = time.perf_counter(), _others_ns()
            for _ in range(SLOW_STEPS):
                end = time.thread_time() + 0.004
                while time.thread_time() < end:
                    pass
                time.sleep(0.016)
                profiler.step()
            return (_others_ns() - others) / 1e6 / (time.perf_counter() - begin)

    def once() -> Sample:
        baseline = used("none")
        return Sample(value=used("all") - baseline, baseline=baseline)

    yield once


def _torch(**schedule: int) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        def once() -> Sample:
            profile: Any = torch_profile(schedule=peer("torch.profiler").schedule(**schedule))
            with profile:
                return per_turn(loops.calls(profile.step), max(scale.calls // 10, 1))

        yield once

    return probe


ROWS = (
    Row(
        key="step.recording",
        what="`step()` between transitions, recording",
        unit="ns",
        budget=250,
        contenders=(
            Contender(Tool.STEPSCOPE, "step", _stepscope(wait=0, warmup=0, active=FOR_EVER)),
            Contender(Tool.TORCH, "profile.step", _torch(wait=0, warmup=0, active=FOR_EVER)),
        ),
    ),
    Row(
        key="step.signals",
        what="`step()` between transitions, recording, with all signals",
        unit="ns",
        budget=10_000,
        contenders=(Contender(Tool.STEPSCOPE, "step", _with_signals),),
    ),
    Row(
        key="signals.processor",
        what="processor time that all signals take beside the thread that steps, at 50 steps a second",
        unit="ms/s",
        budget=2,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "Options.signals", _processor),),
    ),
    Row(
        key="step.waiting",
        what="`step()` between transitions, not recording",
        unit="ns",
        budget=250,
        cited="MindSpore 2.10.0 DynamicProfilerMonitor, begin and end of a step, 44,000 ns",
        contenders=(
            Contender(Tool.STEPSCOPE, "step", _stepscope(wait=FOR_EVER, warmup=0, active=1)),
            Contender(Tool.TORCH, "profile.step", _torch(wait=FOR_EVER, warmup=1, active=1)),
        ),
    ),
)
