"""A program that uses profilers of torch itself while stepscope records: `torch_own_profilers.py MODE DIRECTORY CASE...`.

Prints, for each case, a line of JSON: how often each operator is in stepscope's trace, and stepscope's report. Exits with an
error if one of the program's own profilers does not see what it should.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepscope as sc  # before torch: operators arrive live only then

torch: Any = __import__("torch")
__import__("torch.autograd.profiler_legacy")

MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2])
CPU = torch.profiler.ProfilerActivity.CPU
memory = sc.exporters.MemoryExporter()


def op(name: str) -> None:
    getattr(torch, name)(torch.ones(2))


def own(**more: Any) -> Any:
    return torch.profiler.profile(activities=[CPU], **more)


def expect(profile: Any, name: str, count: int) -> None:
    seen = {event.key: event.count for event in profile.key_averages()}
    assert seen.get(name, 0) == count, (name, count, seen)


def our_profiler(exporter: Any = None, **more: Any) -> sc.Profiler:
    exporter = memory if exporter is None else exporter
    where = DIRECTORY / str(id(exporter))
    return sc.trace(backends=[sc.TorchBackend(MODE)], exporters=[exporter], output_dir=where, **more)  # type: ignore[arg-type]


def inside() -> None:
    for make in (own, torch.autograd.profiler.profile):
        with make() as profile:
            op("tanh")
        expect(profile, "aten::tanh", 1)
    with torch.autograd.profiler.emit_nvtx() if torch.cuda.is_available() else torch.autograd.profiler.emit_itt():
        pass
    with torch.autograd.profiler_legacy.profile() as profile:
        op("tanh")
    expect(profile, "aten::tanh", 1)


def raw() -> None:
    functions, kineto = torch._C._autograd, torch.autograd.ProfilerState.KINETO
    config = torch.autograd.ProfilerConfig(kineto, *[False] * 5, torch._C._profiler._ExperimentalConfig())
    functions._prepare_profiler(config, {CPU})
    functions._enable_profiler(config, {CPU})
    op("tanh")
    assert "aten::tanh" in [event.name() for event in functions._disable_profiler().events()]


def scheduled() -> None:
    with own(schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)) as profile:
        for number in range(4):
            op("tanh" if number == 2 else "exp")
            profile.step()
    expect(profile, "aten::tanh", 1)


def refused() -> None:
    """A profiler inside of another one, which torch has no room for; and one that was never started is ended."""
    with own():
        try:
            with own():
                pass
        except RuntimeError:
            pass
    torch.autograd._disable_profiler()


def around(work: Callable[[], None]) -> sc.Profiler:
    with our_profiler() as profiler:
        op("sin")
        assert torch.autograd.profiler._is_profiler_enabled
        work()
        assert torch.autograd.profiler._is_profiler_enabled
        op("cos")
    return profiler


def before() -> sc.Profiler:
    profile = own()
    profile.start()
    with our_profiler() as profiler:
        op("sin")
        profile.stop()
        op("cos")
    expect(profile, "aten::sin", 1)
    return profiler


def outlives() -> sc.Profiler:
    profile = own()
    with our_profiler(schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=2)) as profiler:
        op("cos")
        profile.start()
        op("sin")
        profiler.step()
        op("sin")
        profiler.step()
    op("sin")
    profile.stop()
    expect(profile, "aten::sin", 3)
    return profiler


def two() -> sc.Profiler:
    inner = sc.exporters.MemoryExporter()

    def work() -> None:
        with our_profiler(inner) as profiler:
            op("exp")
            inside()
            op("exp")
        assert inner.names().count("aten::exp") == 2, inner.names()
        assert "missing" in str(profiler.report())

    return around(work)


def elsewhere(until: int) -> sc.Profiler:
    """Another thread profiles from the middle of the first step, or from before it, to the end of a step."""
    started, end = threading.Event(), threading.Event()

    def profile() -> None:
        with own() as profile:
            op("tanh")
            started.set()
            end.wait(30)
        expect(profile, "aten::tanh", 1)

    def run() -> None:
        try:
            profile()
        except BaseException as error:
            failed.append(error)

    failed: list[BaseException] = []
    thread = threading.Thread(target=run)

    def let_end() -> None:
        end.set()
        thread.join()

    if until < 0:
        thread.start()
        started.wait(30)
    with our_profiler(schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=3)) as profiler:
        for number in range(3):
            op("cos")
            if number == 0 and until >= 0:
                thread.start()
                started.wait(30)
            if number == abs(until):
                let_end()
            op("sin")
            profiler.step()
    assert not failed, failed
    return profiler


CASES: dict[str, Callable[[], sc.Profiler]] = {
    "inside": lambda: around(inside),
    "raw": lambda: around(raw),
    "scheduled": lambda: around(scheduled),
    "refused": lambda: around(refused),
    "before": before,
    "outlives": outlives,
    "two": two,
    "elsewhere": lambda: elsewhere(0),
    "elsewhere_long": lambda: elsewhere(1),
    "elsewhere_before": lambda: elsewhere(-1),
}

if __name__ == "__main__":
    original = torch.autograd._enable_profiler
    for case in sys.argv[3:]:
        memory = sc.exporters.MemoryExporter()
        report = CASES[case]().report()
        assert torch.autograd._enable_profiler is torch.autograd.profiler._enable_profiler is original
        assert not torch.autograd._profiler_enabled()
        names = Counter(name.removeprefix("aten::") for name in memory.names() if name.startswith("aten::"))
        print(json.dumps({"case": case, "names": names, "report": str(report)}))
