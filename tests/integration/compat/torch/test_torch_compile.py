"""Regions in code that torch.compile compiles: they compile as torch's own does, and leave all operators in graphs."""

from __future__ import annotations

import contextvars
import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
import stepscope.nvtx as nvtx
import stepscope.torch as ours
from tests.support.basics import require
from tests.support.operators import cpu

# torch's own of compiling and of what it calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore")

REGIONS = {
    "record_function": ours.record_function,
    "span": sc.span,
    "Domain": sc.Domain("mine").span,
}
ALL = pytest.mark.parametrize("region", REGIONS.values(), ids=list(REGIONS))
FULL = pytest.mark.parametrize("fullgraph", [False, True], ids=["default", "fullgraph"])
Function = Callable[[Any], Any]
torch: Any = None
linear: Any = None


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """torch itself, and no stand-in: the compiler follows names to what they are."""
    global torch, linear
    torch = require("torch")
    linear = torch.nn.Linear(4, 4)


def with_region(region: Any) -> Function:
    """A block."""

    def forward(x: Any) -> Any:
        with region("inner"):
            y = linear(x)
        return torch.relu(y).sin()

    return forward


def with_object(region: Any) -> Function:
    """An object that was made before."""
    made = region("inner")

    def forward(x: Any) -> Any:
        with made:
            y = linear(x)
        return torch.relu(y).sin()

    return forward


def decorated(region: Any) -> Function:
    """A function with a decorator."""

    @region("inner")  # type: ignore[untyped-decorator, unused-ignore]
    def forward(x: Any) -> Any:
        return torch.relu(linear(x)).sin()

    return forward  # type: ignore[no-any-return]


def with_break(region: Any) -> Function:
    """A block in which the graph ends."""

    def forward(x: Any) -> Any:
        with region("inner"):
            y = linear(x)
            print(end="")
            y = y.cos()
        return torch.relu(y).sin()

    return forward


WAYS = pytest.mark.parametrize("way", [with_region, with_object, decorated, with_break], ids=lambda way: way.__name__)


def graphs_of(function: Function, fullgraph: bool) -> list[int] | str:
    """How many operators each graph has that the compiler makes; or the class of its error."""
    graphs: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(sum(node.op in ("call_function", "call_module", "call_method") for node in module.graph.nodes))
        return module.forward

    torch._dynamo.reset()
    try:
        torch.compile(function, backend=backend, fullgraph=fullgraph)(torch.randn(2, 4))
    except Exception as error:
        return type(error).__name__
    return graphs


@FULL
@WAYS
@ALL
def test_as_torchs_own(region: Any, way: Callable[[Any], Function], fullgraph: bool) -> None:
    """The same graphs, and an error where torch's own has one."""
    assert graphs_of(way(region), fullgraph) == graphs_of(way(torch.profiler.record_function), fullgraph)


@ALL
def test_in_the_graph_where_torch_puts_its_own(region: Any) -> None:
    """With `capture_profiler_record_function` regions are recorded when compiled code runs."""
    if not hasattr(torch._dynamo.config, "capture_profiler_record_function"):
        pytest.skip("this torch has no capture_profiler_record_function")
    with torch._dynamo.config.patch(capture_profiler_record_function=True):
        torch._dynamo.reset()
        compiled = torch.compile(with_region(region), backend="eager", fullgraph=True)
        with ours.profile(activities=cpu()) as prof:
            for _ in range(3):
                compiled(torch.randn(2, 4))
    assert [row.count for row in prof.key_averages() if row.key == "inner"] == [3]


@FULL
def test_instrumented_layers(fullgraph: bool) -> None:
    """`instrument` leaves a model one graph."""
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    sc.instrument(model)
    assert len(graphs_of(model, fullgraph)) == 1


@FULL
def test_events_without_a_duration(fullgraph: bool) -> None:
    """Instants, counters and flows end no graph, and are recorded after it."""

    def forward(x: Any) -> Any:
        sc.instant("now", layer=1)
        sc.counter("loss", 1.0)
        sc.flow("arrow", 1, "start")
        return linear(x).sin()

    assert graphs_of(forward, fullgraph) == [2]
    memory = sc.exporters.MemoryExporter()
    compiled = torch.compile(forward, backend="eager", fullgraph=fullgraph)
    with sc.trace(exporters=[memory]) as profiler:
        for _ in range(3):
            compiled(torch.ones(2, 4))
        profiler.step()
    assert [memory.names().count(name) for name in ("now", "loss", "arrow")] == [3, 3, 3]


@FULL
def test_events_in_another_context(fullgraph: bool) -> None:
    """The same in a thread or task that has none of the settings of the one that imported torch."""

    def forward(x: Any) -> Any:
        sc.instant("now")
        return linear(x).sin()

    assert contextvars.Context().run(graphs_of, forward, fullgraph) == [2]


@FULL
def test_ranges_of_nvtx(fullgraph: bool) -> None:
    """Whether pushed, started or annotated."""

    def forward(x: Any) -> Any:
        nvtx.push_range("pushed", domain="mine")
        with nvtx.annotate("annotated", color="red", domain="mine"), nvtx.range("formatted {}", 1):
            y = linear(x)
        nvtx.pop_range("mine")
        number = nvtx.start_range("started")
        nvtx.mark("now")
        nvtx.end_range(number)
        return y.sin()

    assert graphs_of(forward, fullgraph) == [2]


def model_with(region: Any) -> Any:
    """A model with a region in `forward`."""

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self.region, self.linear = region, torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            with self.region("inner"):
                return self.linear(x).relu()

    return Model()


@ALL
def test_other_ways_to_capture_a_model(region: Any) -> None:
    """Our region works wherever torch's own does."""
    from torch.fx.experimental.proxy_tensor import make_fx

    model, x = model_with(region), torch.randn(2, 4)
    expected = model(x)
    captured = {
        "export": torch.export.export(model, (x,)).module(),
        "strict export": torch.export.export(model, (x,), strict=True).module(),
        "symbolic_trace": torch.fx.symbolic_trace(model),
        "make_fx": make_fx(model)(x),
        "trace": torch.jit.trace(model, x),
        "compile": torch.compile(model, backend="aot_eager", fullgraph=True),
        "vmap": torch.func.vmap(model),
    }
    for name, function in captured.items():
        assert torch.allclose(function(x), expected), name


def test_a_step_in_compiled_code(tmp_path: Path) -> None:
    """Ends the graph, as torch's own does, and counts."""
    profiler = sc.trace(output_dir=tmp_path)

    def forward(x: Any) -> Any:
        y = linear(x)
        profiler.step()
        return y.sin()

    with profiler:
        assert graphs_of(forward, fullgraph=False) == [1, 1]
        assert profiler.step_num == 1


@pytest.mark.parametrize("first", ["import torch._dynamo", "import torch"])
def test_regions_compile_in_any_order_of_imports(first: str) -> None:
    """The compiler knows of regions when both are there."""
    program = f"""
{first}
import stepscope, torch
@torch.compile(backend="eager", fullgraph=True)
def forward(x):
    with stepscope.span("inner"):
        return x.sin()
forward(torch.ones(2))
print("compiled")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "compiled\n", done.stderr


def test_regions_are_copied_with_their_model() -> None:
    """Averaged and distributed models are copies; the drop-in is copied and pickled as torch's own is."""
    region = ours.record_function("x", "y")
    for copied in (copy.copy(region), copy.deepcopy(region), pickle.loads(pickle.dumps(region))):
        assert copied is not region and (copied.name, copied.args) == ("x", "y")
        with copied, region:
            pass
