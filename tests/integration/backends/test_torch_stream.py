"""Stream mode of the torch backend, with real training."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope as sc
from stepscope.backends.torch import arm as torch_arm
from stepscope.backends.torch.backend import TorchBackend
from stepscope.backends.torch.kineto.symbols import enable_numbers
from stepscope.backends.torch.links import ENGINE, PENDING, SEQUENCE, ForwardBackwardLinker
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, empty_block, join_blocks
from stepscope.runtime.schedule.schedule import schedule
from tests.integration.backends.test_itt import python
from tests.support.basics import missing, require
from tests.support.block_contents import texts
from tests.support.messages import refused
from tests.support.operators import ARMED, environment, record, torch, train

pytestmark = pytest.mark.needs("torch")

if not ARMED:
    missing("torch with our ITT collector", f"{torch_arm.reason()}.")

ONE_WINDOW = schedule(wait=1, warmup=1, active=2, repeat=1)


def add() -> None:
    torch.add(torch.ones(2), 1)


def enclosed(memory: sc.exporters.MemoryExporter, kind: Kind) -> Counter[tuple[str, int]]:
    """For each flow event the name of the operator that begins where it points, with its step."""
    spans = memory.events(kind=Kind.SPAN)
    at = {(int(s["track"]), int(s["ts"])): strings.text(int(s["name"])) for s in spans if s["dur"]}
    return Counter((at[int(f["track"]), int(f["ts"])], int(f["step"])) for f in memory.events(kind=kind))


def test_operators_and_links_are_those_of_kineto(tmp_path: Path) -> None:
    """The same training gives the same operators, regions, steps and links in both modes."""
    seen: list[Any] = []
    for mode in ("stream", "kineto"):
        torch.manual_seed(1)
        memory = record(tmp_path / mode, lambda p: train(5, p), TorchBackend(mode), schedule=ONE_WINDOW)
        spans = memory.events(kind=Kind.SPAN)
        spans = spans[np.isin(spans["category"], [strings.category("cpu_op"), strings.category("user_annotation")])]
        operators = Counter(zip(texts(spans), texts(spans, "category"), spans["step"].tolist(), strict=True))
        seen.append((operators, enclosed(memory, Kind.FLOW_START), enclosed(memory, Kind.FLOW_END)))
    assert seen[0] == seen[1]
    operators, starts, ends = seen[0]
    names = {name for name, _, _ in operators}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names
    assert "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" in names
    assert starts["aten::convolution", 2] == ends["ConvolutionBackward0", 2] == 1


def test_custom_functions_are_linked(tmp_path: Path) -> None:
    """A class derived from torch.autograd.Function is linked to its backward node."""

    class Doubled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient * 2

    def work(_: sc.Profiler) -> None:
        Doubled.apply(torch.ones(2, requires_grad=True)).sum().backward()

    memory = record(tmp_path, work, TorchBackend("stream"))
    assert enclosed(memory, Kind.FLOW_START)["Doubled", 0] == 1
    assert enclosed(memory, Kind.FLOW_END)["DoubledBackward", 0] == 1
    backward = memory.events(kind=Kind.SPAN)
    assert texts(backward[[t == "DoubledBackward" for t in texts(backward)]], "category") == ["cpu_op"]


def test_two_graphs_are_not_mixed_up(tmp_path: Path) -> None:
    """Two networks with the same layers, run forward one after the other, are linked each to its own backward."""

    def work(_: sc.Profiler) -> None:
        losses: list[Any] = []
        for name in ("one", "two"):
            with sc.span(f"forward {name}"):
                losses.append(torch.nn.functional.linear(torch.ones(1, 3), torch.ones(2, 3, requires_grad=True)).sum())
        for name, loss in zip(("one", "two"), losses, strict=True):
            with sc.span(f"backward {name}"):
                loss.backward()

    memory = record(tmp_path, work, TorchBackend("stream"))
    spans = memory.events(kind=Kind.SPAN)
    regions = {name: span for name, span in zip(texts(spans), spans, strict=True) if name.startswith(("forw", "backw"))}

    def region(flow: Any) -> str:
        return next(
            name.split()[1] for name, span in regions.items() if 0 <= int(flow["ts"] - span["ts"]) <= int(span["dur"])
        )

    starts = {int(flow["id"]): region(flow) for flow in memory.events(kind=Kind.FLOW_START)}
    ends = {int(flow["id"]): region(flow) for flow in memory.events(kind=Kind.FLOW_END)}
    assert starts == ends
    assert Counter(starts.values())["one"] == Counter(starts.values())["two"] >= 2


@pytest.mark.parametrize("busy", [False, True])
def test_a_region_ends_where_it_ends(busy: bool, tmp_path: Path) -> None:
    """One that ends with a future, on another thread, is not open any longer than that; so is a function that waits."""

    def work(_: sc.Profiler) -> None:
        region, future = torch.autograd.profiler.record_function("ends with a future"), torch.futures.Future()
        with region:
            region._call_end_callbacks_on_future(future)
        with torch.profiler.record_function("around") if busy else nullcontext():
            thread = threading.Thread(target=future.set_result, args=[0])
            thread.start()
            thread.join()
        time.sleep(0.05)
        with torch.profiler.record_function("later"):
            add()

    for _ in range(2):
        spans = record(tmp_path, work, TorchBackend("stream")).events(kind=Kind.SPAN)
        names = texts(spans)
        assert names.count("ends with a future") == names.count("later") == 1
        region, later = spans[names.index("ends with a future")], spans[names.index("later")]
        assert region["ts"] + region["dur"] <= later["ts"]
        assert later["parent"] != region["id"]


def slow(x: torch.Tensor) -> torch.Tensor:  # pyright: ignore  # TorchScript reads the types
    for _ in range(8):
        x = torch.mm(x, x).clamp(-1.0, 1.0)
    return x  # pyright: ignore


def waits_for_slow(x: torch.Tensor) -> torch.Tensor:  # pyright: ignore
    future = torch.jit.fork(slow, x)
    return torch.jit.wait(future) + 1


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
def test_a_function_that_waits_ends_where_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of TorchScript that forks and waits goes on, and ends, on a thread of torch's pool."""
    monkeypatch.setitem(globals(), "torch", require("torch"))  # TorchScript looks at what the name stands for
    waits = torch.jit.script(waits_for_slow)
    x = torch.randn(256, 256)
    for _ in range(3):
        waits(x)

    def work(_: sc.Profiler) -> None:
        waits(x)
        time.sleep(0.01)
        with torch.profiler.record_function("later"):
            add()

    spans = record(tmp_path / "run", work, TorchBackend("stream")).events(kind=Kind.SPAN)
    names = texts(spans)
    region, later = spans[names.index("waits_for_slow")], spans[names.index("later")]
    assert region["ts"] + region["dur"] <= later["ts"]
    assert names.count("waits_for_slow") == 1 and later["parent"] != region["id"]


def test_auto_takes_the_mode_that_serves() -> None:
    """Stream where it is enough, kineto for what only that has; stream refuses what it cannot give."""
    assert TorchBackend("auto").report().mode == ""
    with refused(ValueError, "record_shapes", "profile_memory", "mode='stream'", "mode='kineto'"):
        TorchBackend("stream", record_shapes=True, profile_memory=True)
    with refused(ValueError, "mode", "auto", "stream", "kineto", "fast"):
        TorchBackend("fast")  # type: ignore[arg-type]
    with refused(TypeError, "activities", "torch.profiler.ProfilerActivity", "cpu"):
        TorchBackend(activities=["cpu"])


def test_without_arming_auto_falls_back_and_says_so(tmp_path: Path) -> None:
    """torch imported before stepscope: kineto records, and the report gives the reason."""
    code = (
        "import io, logging, torch, stepscope as sc; from stepscope.backends.torch.backend import TorchBackend\n"
        "from stepscope.backends.torch import arm as torch_arm; torch_arm.arm()\n"
        "logged = io.StringIO(); logging.getLogger('stepscope').addHandler(logging.StreamHandler(logged))\n"
        "backend, strict, memory = TorchBackend(), TorchBackend('stream', name='strict'), sc.exporters.MemoryExporter()\n"
        f"with sc.trace(backends=[backend, strict], exporters=[memory], output_dir={str(tmp_path)!r}) as profiler:\n"
        "    torch.ones(2) + 1\n"
        "print(backend.report().mode, 'aten::add' in memory.names(), *backend.report().notes)\n"
        "try: profiler.raise_errors()\n"
        "except ExceptionGroup as group: print(*group.exceptions)\n"
        f"with sc.trace(backends=[TorchBackend()], output_dir={str(tmp_path / 'second')!r}): pass\n"
        "print(logged.getvalue().count('which costs several times as much: operators cannot arrive live'))"
    )
    text, refused, warnings = python(code, **environment()).splitlines()
    assert warnings == "1"
    assert text.startswith("kineto True kineto mode was taken: operators cannot arrive live: torch was imported before")
    assert "operators cannot arrive live: torch was imported before stepscope" in refused


def test_without_torch_the_reason_is_reported(tmp_path: Path) -> None:
    """Making the backend and importing stepscope need no torch; recording without it says what is missing."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import stepscope as sc; from stepscope.backends.torch.backend import TorchBackend\n"
        f"with sc.trace(backends=[TorchBackend()], output_dir={str(tmp_path)!r}) as profiler: profiler.step()\n"
        "try: profiler.raise_errors()\n"
        "except ExceptionGroup as group: print(*group.exceptions)"
    )
    assert "torch cannot be imported" in python(code)


def test_sequence_numbers_are_had_from_this_torch() -> None:
    """The numbers that are read in torch's memory agree with those that torch reports."""
    assert enable_numbers() == ""


def spans_of(rows: list[tuple[str, int, int, int]]) -> Block:
    """Spans as the collector writes them, from (name, track, sequence number, ts)."""
    block = empty_block(len(rows))
    for span, (name, track, number, ts) in zip(block, rows, strict=True):
        strings.intern(name if name.startswith(ENGINE) else ENGINE + name) if name.endswith("0") else None
        span["name"], span["track"], span["ts"], span["args_len"] = strings.intern(name), track, ts, number
    block["args_at"], block["flags"], block["kind"] = strings.intern(SEQUENCE), Flag.ARG_INLINE, Kind.SPAN
    block["id"], block["dur"] = np.arange(1, len(rows) + 1), 1
    return block


@given(
    links=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 9)), unique=True, max_size=20),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    data=st.data(),
)
def test_links_are_found_across_batches(links: list[tuple[int, int]], cuts: list[int], data: st.DataObject) -> None:
    """However spans are cut into batches, each node is linked to the operator with its number that began last."""
    forward = [("aten::outer", track, number, 10 * i) for i, (track, number) in enumerate(links)]
    forward += [("aten::inner", track, number, 10 * i + 1) for i, (track, number) in enumerate(links)]
    nodes = [("InnerBackward0", track, number, 1000 + i) for i, (track, number) in enumerate(links)]
    rows = data.draw(st.permutations(forward)) + data.draw(st.permutations(nodes))
    block = spans_of(rows)
    linker = ForwardBackwardLinker()
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    flows = join_blocks(linker.feed(block[a:b]) for a, b in zip(borders, borders[1:], strict=False))
    starts = {int(f["id"]): (int(f["track"]), int(f["ts"])) for f in flows if f["kind"] == Kind.FLOW_START}
    ends = {int(f["id"]): (int(f["track"]), int(f["ts"])) for f in flows if f["kind"] == Kind.FLOW_END}
    assert sorted((starts[i], ends[i]) for i in ends) == sorted(
        ((track, 10 * i + 1), (track, 1000 + i)) for i, (track, _) in enumerate(links)
    )
    assert len(starts) == len(ends) == len(links)


def test_a_node_on_another_thread_is_linked_by_its_number() -> None:
    """Autograd's threads run nodes of operators that ran elsewhere; later operators are no candidates."""
    linker = ForwardBackwardLinker()
    linker.feed(spans_of([("aten::mm", 1, 7, 10), ("aten::mm", 2, 7, 500)]))
    flows = linker.feed(spans_of([("MmBackward0", 3, 7, 100)]))
    assert len(flows) == 0 or flows["track"].tolist() == [1, 3]
    assert ForwardBackwardLinker().feed(spans_of([("MmBackward0", 3, 7, 100)])).size == 0


def test_waiting_operators_are_bounded() -> None:
    """Operators that never run backward are dropped, the oldest first, and counted."""
    linker = ForwardBackwardLinker()
    rows = [("aten::mm", 1, number, number) for number in range(PENDING + 10)]
    linker.feed(spans_of(rows))
    assert linker.dropped == PENDING // 2 + 10
    assert linker.feed(spans_of([("MmBackward0", 1, PENDING, 1 << 40)]))["ts"].tolist() == [PENDING, 1 << 40]
