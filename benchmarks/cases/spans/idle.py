"""A span while nothing records."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import session
from benchmarks.cases.tools.timing import per_turn
from benchmarks.harness.peers import peer, viztracer
from benchmarks.harness.row import Contender, Probe, Round, Row, Tool
from benchmarks.harness.scale import Scale


def _with(span: Callable[[], loops.Span], divide: int = 1) -> Probe:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        loop = loops.spans(span())
        yield lambda: per_turn(loop, max(scale.calls // divide, 1))

    return probe


def _no_profiler() -> loops.Span:
    import stepscope

    return stepscope.span


@contextmanager
def _between_windows(scale: Scale) -> Generator[Round]:
    import stepscope

    # A wait that does not end within the benchmark.
    with session(schedule=stepscope.schedule(wait=1 << 40, warmup=0, active=1)):
        loop = loops.spans(stepscope.span)
        yield lambda: per_turn(loop, scale.calls)


def _stopped_viztracer() -> loops.Span:
    span: loops.Span = viztracer(1000).log_event
    return span


_PEERS = (
    Contender(Tool.TORCH, "record_function", _with(lambda: peer("torch.profiler").record_function, 4)),
    Contender(Tool.VIZTRACER, "log_event", _with(_stopped_viztracer)),
    Contender(
        Tool.OPENTELEMETRY,
        "NoOpTracer",
        _with(lambda: peer("opentelemetry.trace").NoOpTracer().start_as_current_span, 4),
    ),
    Contender(Tool.NVTX, "annotate, no tool attached", _with(lambda: peer("nvtx").annotate)),
)

ROWS = (
    Row(
        key="idle.none",
        what='`with span("x")`, no profiler',
        unit="ns",
        budget=80,
        cited="MXNet 1.9.1 task 1,700 ns",
        contenders=(Contender(Tool.STEPSCOPE, "span", _with(_no_profiler)), *_PEERS),
    ),
    Row(
        key="idle.waiting",
        what='`with span("x")`, profiler between windows',
        unit="ns",
        budget=100,
        contenders=(Contender(Tool.STEPSCOPE, "span", _between_windows),),
    ),
)
