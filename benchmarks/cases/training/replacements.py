"""Drop-in replacements, and the profilers that they replace."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from benchmarks.cases.steps.window_end import milliseconds
from benchmarks.cases.tools import loops
from benchmarks.cases.tools.session import scratch
from benchmarks.cases.tools.small_operators import additions, live_operators
from benchmarks.cases.tools.timing import per_turn
from benchmarks.harness.peers import peer, torch_profile
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

Made = Callable[..., Any]
"""Makes a profile of the CPU."""


@contextmanager
def _ours() -> Generator[Made]:
    live_operators()
    replacement = peer("stepscope.torch")
    with scratch() as directory:

        def make(**arguments: Any) -> Any:
            return replacement.profile(
                activities=[replacement.ProfilerActivity.CPU], output_dir=directory, mode="stream", **arguments
            )

        yield make


@contextmanager
def _theirs() -> Generator[Made]:
    yield torch_profile


def _table(make: Callable[[], AbstractContextManager[Made]]) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with make() as profile:
            loop = additions()

            def once() -> Sample:
                with profile() as prof:
                    loop(scale.table_events)
                return Sample(milliseconds(prof.key_averages))

            yield once

    return probe


def _step(
    make: Callable[[], AbstractContextManager[Made]], module: str
) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with make() as profile:
            loop = additions()

            def ready(prof: Any) -> None:
                prof.key_averages()

            def once() -> Sample:
                schedule = peer(module).schedule(wait=0, warmup=0, active=1, repeat=1)
                with profile(schedule=schedule, on_trace_ready=ready) as prof:
                    loop(scale.table_events)
                    return Sample(milliseconds(prof.step))

            yield once

    return probe


def _region(
    make: Callable[[], AbstractContextManager[Made]], module: str
) -> Callable[[Scale], AbstractContextManager[Round]]:
    @contextmanager
    def probe(scale: Scale) -> Generator[Round]:
        with make() as profile:
            loop = loops.spans(peer(module).record_function)

            def once() -> Sample:
                with profile():
                    return per_turn(loop, max(scale.calls // 4, 1))

            yield once

    return probe


ROWS = (
    Row(
        key="door.torch.region",
        what="`record_function` of `stepscope.torch` and of torch, recorded",
        unit="ns",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "stepscope.torch.record_function", _region(_ours, "stepscope.torch")),
            Contender(Tool.TORCH, "torch.profiler.record_function", _region(_theirs, "torch.profiler")),
        ),
    ),
    Row(
        key="door.torch.step",
        what="`prof.step()` that ends a window of {table_events:,} operators, with a table made in `on_trace_ready`",
        unit="ms",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "stepscope.torch.profile", _step(_ours, "stepscope.torch")),
            Contender(Tool.TORCH, "torch.profiler.profile", _step(_theirs, "torch.profiler")),
        ),
    ),
    Row(
        key="door.torch.table",
        what="`key_averages()` of {table_events:,} operators",
        unit="ms",
        heavy=True,
        contenders=(
            Contender(Tool.STEPSCOPE, "stepscope.torch.profile", _table(_ours)),
            Contender(Tool.TORCH, "torch.profiler.profile", _table(_theirs)),
        ),
    ),
)
