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

import stepscope as sc
from stepscope.backends.torch import arm as torch_arm
from stepscope.backends.torch.backend import TorchBackend
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
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


def test_operators_are_those_of_kineto(tmp_path: Path) -> None:
    """The same training gives the same operators, regions and steps in both modes."""
    seen: list[Counter[Any]] = []
    for mode in ("stream", "kineto"):
        torch.manual_seed(1)
        memory = record(tmp_path / mode, lambda p: train(5, p), TorchBackend(mode), schedule=ONE_WINDOW)
        spans = memory.events(kind=Kind.SPAN)
        spans = spans[np.isin(spans["category"], [strings.category("cpu_op"), strings.category("user_annotation")])]
        seen.append(Counter(zip(texts(spans), texts(spans, "category"), spans["step"].tolist(), strict=True)))
    assert seen[0] == seen[1]
    names = {name for name, _, _ in seen[0]}
    assert {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= names
    assert "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" in names


def test_nodes_of_custom_functions_are_operators(tmp_path: Path) -> None:
    """The backward node of a class derived from torch.autograd.Function is one."""

    class Doubled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return gradient * 2

    def work(_: sc.Profiler) -> None:
        Doubled.apply(torch.ones(2, requires_grad=True)).sum().backward()

    spans = record(tmp_path, work, TorchBackend("stream")).events(kind=Kind.SPAN)
    assert texts(spans[[t == "DoubledBackward" for t in texts(spans)]], "category") == ["cpu_op"]


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
