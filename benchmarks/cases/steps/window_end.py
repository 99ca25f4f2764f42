"""How long the training thread stands still when a window ends that has many events."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.tools.session import Accounts, session
from benchmarks.cases.tools.small_operators import additions, live_operators
from benchmarks.cases.tools.span_load import emit
from benchmarks.harness.peers import peer, torch_profile
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale


def milliseconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start) / 1e6


@contextmanager
def _stepscope_spans(scale: Scale) -> Generator[Round]:
    import stepscope

    yield lambda: _stepscope((), lambda: emit(stepscope.span, scale.events))


@contextmanager
def _stepscope_operators(scale: Scale) -> Generator[Round]:
    backend = live_operators()
    loop = additions()
    yield lambda: _stepscope((backend(),), lambda: loop(scale.events))


def _stepscope(backends: tuple[Any, ...], work: Callable[[], object]) -> Sample:
    """Two windows of one step each; the end of the first begins the second, so that one call does both."""
    import stepscope

    schedule = stepscope.schedule(wait=0, warmup=0, active=1, repeat=2)
    with session(schedule=schedule, backends=backends) as profiler:
        accounts = Accounts(profiler)
        work()
        took = milliseconds(profiler.step)
        profiler.flush()
        return Sample(took, facts=accounts.facts())


def _torch(prepare: Callable[[], Callable[[int], object]]) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        work = prepare()

        def once() -> Sample:
            schedule = peer("torch.profiler").schedule(wait=0, warmup=0, active=1, repeat=1)
            with torch_profile(schedule=schedule) as profile:
                work(scale.events)
                return Sample(milliseconds(profile.step))

        yield once

    return probe


def _record_functions() -> Callable[[int], object]:
    span = peer("torch.profiler").record_function
    return lambda n: emit(span, n, pause=0)


ROWS = (
    Row(
        key="window_end.spans",
        what="training thread blocked when a window of {events:,} spans ends",
        unit="ms",
        budget=1.0,
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "step", _stepscope_spans),
            Contender(Tool.TORCH, "profile.step", _torch(_record_functions), every=2),
        ),
    ),
    Row(
        key="window_end.operators",
        what="training thread blocked when a window of {events:,} torch operators ends",
        unit="ms",
        budget=1.0,
        cited="MindSpore 2.10.0 1,250 ms for a window of two small steps",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "step, stream mode", _stepscope_operators),
            Contender(Tool.TORCH, "profile.step", _torch(additions), every=2),
        ),
    ),
)
