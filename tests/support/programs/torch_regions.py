"""A program whose torch profiler ends while a region or an operator is open: `torch_regions.py MODE DIRECTORY CASE...`.

torch crashes if another profiler is in its slot when such a region ends. Prints for each case its name, stepscope's log and
stepscope's report.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import stepscope as sc  # before torch: operators arrive live only then

torch: Any = __import__("torch")

MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2])
region = torch.profiler.record_function


def own(**more: Any) -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **more)


def started() -> Any:
    profile = own()
    profile.start()
    return profile


def work() -> None:
    """Operators, and memory that takes the place of what torch has freed."""
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    assert [torch.ones(64) for _ in range(50)]


def our_profiler(exporter: sc.exporters.MemoryExporter | None = None, **more: Any) -> sc.Profiler:
    return sc.trace(
        backends=[sc.TorchBackend(MODE)],
        exporters=[memory if exporter is None else exporter],
        output_dir=DIRECTORY / f"{len(list(DIRECTORY.iterdir()))}",
        **more,
    )  # type: ignore[arg-type]


def stops_inside() -> sc.Profiler:
    with our_profiler() as profiler:
        for _ in range(50):
            profile = started()
            with region("region"):
                work()
                profile.stop()
                del profile
                work()
    assert memory.names().count("aten::mm") == 50  # those after each profiler
    return profiler


def nested() -> sc.Profiler:
    """Some regions are open from one profiler of the program to the next."""
    with our_profiler() as profiler:
        for _ in range(30):
            first = started()
            with region("outer"), region("middle"):
                first.stop()
                del first
                work()
                second = started()
                with region("inner"):
                    work()
                second.stop()
                assert "inner" in [event.key for event in second.key_averages()]
                del second
                work()
    return profiler


def starts_inside() -> sc.Profiler:
    """The region begins under our recording, and ends under the program's."""
    with our_profiler() as profiler:
        for _ in range(30):
            with region("region"):
                work()
                profile = started()
                work()
            profile.stop()
    return profiler


def opened_inside() -> sc.Profiler:
    """The region and its profiler began before we did; the profiler may have ended before, too."""
    profilers = []
    for early in [True, False] * 10:
        profile = started()
        with ExitStack() as stack:
            with region("region"):
                work()
                if early:
                    profile.stop()
                    del profile
                profilers.append(stack.enter_context(our_profiler(sc.exporters.MemoryExporter())))
                if not early:
                    profile.stop()
                    del profile
                work()
            work()
    return profilers[1]


def closure() -> sc.Profiler:
    """`optimizer.step` has a region open while the closure runs."""
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        our_profiler() as profiler,
        own(schedule=torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=8)) as profile,
    ):

        def evaluate() -> Any:
            optimizer.zero_grad()
            loss = net(torch.randn(8, 32)).sum()
            loss.backward()
            profile.step()
            return loss

        for _ in range(30):
            optimizer.step(evaluate)
            profiler.step()
    return profiler


def in_operator() -> sc.Profiler:
    """The profiler ends in the forward of a custom function, which is an operator."""

    class Stops(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, value: Any) -> Any:
            profiles.pop().stop()
            work()
            return value.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient

    profiles: list[Any] = []
    with our_profiler() as profiler:
        for _ in range(30):
            value = torch.ones(4, requires_grad=True)
            profiles.append(started())
            Stops.apply(value)
            with region("next"):
                pass
            torch.sin(value)
    assert memory.names().count("aten::sin") == 30
    return profiler


def hooks() -> sc.Profiler:
    """The profiler begins and ends in a hook of backward, on the stack of torch's engine."""

    def hook(gradient: Any) -> Any:
        profile_work()
        return gradient

    return with_hooks(hook, lambda: torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value))


def packs() -> sc.Profiler:
    """The same in a hook of saved tensors, which an operator calls."""

    def pack(value: Any) -> Any:
        profile_work()
        return value

    return with_hooks(
        lambda gradient: gradient, lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
    )


def profile_work() -> None:
    with own() as profile:
        work()
    profile.key_averages().table()


def with_hooks(hook: Callable[[Any], Any], saved: Callable[[], Any]) -> sc.Profiler:
    layer = torch.nn.Linear(8, 8)
    with our_profiler() as profiler:
        for _ in range(12):
            with saved():
                loss = layer(torch.ones(4, 8)).relu()
            loss.register_hook(hook)
            loss.sum().backward()
            profiler.step()
    if MODE == "kineto":
        assert memory.names().count("aten::sum") >= 12
    return profiler


def windows() -> sc.Profiler:
    """A region is open from one of our windows to the next."""
    with our_profiler(schedule=sc.schedule(wait=0, warmup=0, active=1, repeat=30)) as profiler:
        for _ in range(30):
            with region("region"):
                work()
                profiler.step()
                work()
    return profiler


def scripted() -> sc.Profiler:
    """TorchScript compiles the methods of torch's regions from their source."""

    def function(value):  # type: ignore[no-untyped-def]
        with torch.autograd.profiler.record_function("scripted"):
            return value + 1

    with our_profiler() as profiler:
        assert torch.jit.script(function)(torch.ones(1)).item() == 2
    return profiler


def compiled() -> sc.Profiler:
    """torch compiles: it opens regions of its own meanwhile, and looks at the operator that ends them."""
    torch._dynamo.reset()
    layer = torch.compile(torch.nn.Linear(8, 8), backend="aot_eager")
    with our_profiler() as profiler:
        for _ in range(3):
            layer(torch.ones(4, 8)).sum().backward()
            profiler.step()
    return profiler


CASES: list[Callable[[], sc.Profiler]] = [
    stops_inside,
    nested,
    starts_inside,
    opened_inside,
    closure,
    in_operator,
    hooks,
    packs,
    windows,
    scripted,
    compiled,
]

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    ends = torch.ops.profiler._record_function_exit._RecordFunction
    methods = region.__enter__, ends._op
    for name in sys.argv[3:]:
        memory = sc.exporters.MemoryExporter()
        print(f"case {name}", flush=True)
        print({case.__name__: case for case in CASES}[name]().report())
        assert methods == (region.__enter__, ends._op)
    print("the program ended")
