"""`step()` where the schedule's action does not change."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from benchmarks import loops
from benchmarks.peers import peer, torch_profile
from benchmarks.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.scale import Scale
from benchmarks.session import session
from benchmarks.timing import per_turn

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
    before = os.environ["STEPSCOPE_SIGNALS"]
    os.environ["STEPSCOPE_SIGNALS"] = "all"
    try:
        with session() as profiler:
            loop = loops.calls(profiler.step)

            def once() -> Sample:
                profiler.flush()
                return per_turn(loop, max(scale.calls // 10, 1))

            yield once
    finally:
        os.environ["STEPSCOPE_SIGNALS"] = before


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
