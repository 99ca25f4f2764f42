"""The cost of an operator of torch for the training thread, the end of the window included."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools.session import Accounts, session
from benchmarks.cases.tools.small_operators import additions, live_operators
from benchmarks.cases.tools.timing import Loop, took
from benchmarks.harness.peers import peer, torch_profile
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def _cost(loop: Loop, n: int, profiler: Any) -> Sample:
    """Nanoseconds per operator of a step with `n`, up to the return of the `step()` that ends the window."""
    start = time.perf_counter_ns()
    loop(n)
    ran = time.perf_counter_ns()
    profiler.step()
    ended = time.perf_counter_ns()
    return Sample((ended - start) / n, facts={"recording": (ran - start) / n, "end of window": (ended - ran) / n})


def _beyond(sample: Sample, baseline: float) -> Sample:
    facts = {**sample.facts, "recording": sample.facts["recording"] - baseline}
    return Sample(sample.value - baseline, baseline, facts)


@contextmanager
def _stepscope(scale: Scale) -> Generator[Round]:
    import stepscope

    backend = live_operators()
    loop = additions()
    schedule = stepscope.schedule(wait=0, warmup=0, active=1, repeat=1)

    def once() -> Sample:
        baseline = took(loop, scale.operators)
        with session(schedule=schedule, backends=[backend()]) as profiler:
            accounts = Accounts(profiler)
            sample = _cost(loop, scale.operators, profiler)
            profiler.flush()
            return _beyond(Sample(sample.value, facts={**sample.facts, **accounts.facts()}), baseline)

    yield once


@contextmanager
def _torch(scale: Scale) -> Generator[Round]:
    loop = additions()
    schedule = peer("torch.profiler").schedule(wait=0, warmup=0, active=1, repeat=1)

    def once() -> Sample:
        baseline = took(loop, scale.operators)
        with torch_profile(schedule=schedule) as profile:
            return _beyond(_cost(loop, scale.operators, profile), baseline)

    yield once


ROWS = (
    Row(
        key="operators.all",
        what="a torch CPU operator, all costs on the training thread, end of the window included",
        unit="ns",
        budget=600,
        contenders=(
            Contender(Tool.STEPSCOPE, "TorchBackend, stream mode", _stepscope),
            Contender(Tool.TORCH, "profile", _torch),
        ),
    ),
)
