"""Training by turns with and without recording, under an overhead budget, for loads that cost more than it allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.cases.tools.network import Network
from benchmarks.cases.tools.session import session
from benchmarks.cases.tools.small_operators import additions, live_operators
from benchmarks.harness.row import Contender, Probe, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

if TYPE_CHECKING:
    from stepscope import Profiler

SETTLING = 8.0
"""Seconds of load at full scale before anything is measured: the governor has found its level by then."""

HALF = 0.5
"""Seconds of each half of a comparison, after `TURNING`, in which a window opens or closes."""
TURNING = 0.2

Step = Callable[[], object]


class Load(msgspec.Struct, frozen=True):
    """One step, and other sources than its spans."""

    step: Step
    backends: tuple[Any, ...] = ()


def few_spans() -> Load:
    """A training step of 10 ms with 100 spans: 10,000 spans a second."""
    import stepscope

    network = Network()
    return Load(lambda: network.step_with(stepscope.span))


def many_spans() -> Load:
    """A million spans a second, with as much work between them as that leaves time for."""
    import stepscope

    def step() -> None:
        for _ in range(5000):
            with stepscope.span("work"):
                sum(range(40))

    return Load(step)


def small_operators() -> Load:
    """Operators of torch on four numbers each, one after the other."""
    backend = live_operators()
    loop = additions()
    return Load(lambda: loop(5000), (backend(),))


def _mean_step(step: Step, profiler: Profiler, seconds: float) -> float:
    """ms of a step, on average. The profiler's own step() is called in either half: it costs the same 35 ns in both."""
    start = now = time.perf_counter()
    count = 0
    while now - start < seconds:
        step()
        profiler.step()
        count += 1
        now = time.perf_counter()
    return (now - start) * 1e3 / count


def _cost(profiler: Profiler) -> tuple[int, int, int]:
    """ns that recording cost by the runtime's own measure, that were recorded, and that were with lowered detail."""
    pipeline = profiler.statistics().pipeline
    assert pipeline is not None
    overhead = pipeline.overhead
    return overhead.training_ns + overhead.background_ns, overhead.recorded_ns, overhead.lowered_ns


def governed(make: Callable[[], Load], fraction: float) -> Probe:
    """Measures a load under a budget."""

    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        load = make()
        share = min(scale.steps / 100, 1)
        with session(backends=load.backends, overhead_budget=fraction) as profiler:
            _mean_step(load.step, profiler, SETTLING * share)

            def once() -> Sample:
                _mean_step(load.step, profiler, TURNING * share)
                before = _cost(profiler)
                traced = _mean_step(load.step, profiler, HALF * share)
                cost, recorded, lowered = (now - then for now, then in zip(_cost(profiler), before, strict=True))
                profiler.stop()  # and not pause(), in which torch goes on telling of its operators
                _mean_step(load.step, profiler, TURNING * share)
                bare = _mean_step(load.step, profiler, HALF * share)
                profiler.start()
                facts = {
                    "measured by itself, %": 100 * cost / max(recorded, 1),
                    "lowered, % of the time": 100 * lowered / max(recorded, 1),
                }
                return Sample(100 * (traced / bare - 1), bare, facts)

            yield once

    return probe


LOADS: tuple[tuple[str, str, Callable[[], Load]], ...] = (
    ("few", "a training step of 10 ms with 100 spans", few_spans),
    ("many", "a million spans a second", many_spans),
    ("operators", "small torch operators, nothing else", small_operators),
)

ROWS = tuple(
    Row(
        key=f"governor.{key}.{percent}",
        what=f"slowdown, {what}, `overhead_budget={percent / 100}`",
        unit="%",
        budget=float(percent),
        alternating=True,
        contenders=(Contender(Tool.STEPSCOPE, f"overhead_budget={percent / 100}", governed(make, percent / 100)),),
    )
    for key, what, make in LOADS
    for percent in (1, 5)
)
