"""Hand-made traces, whose numbers are known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.accounting.ledger import Ledger, SourceLedger
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EVENT_DTYPE, EventBatch, Flag, Kind
from stepscope.runtime.events.tracks import TrackKind
from stepscope.runtime.export.run import Run
from stepscope.runtime.windows.window import Step, Window

START = 5_000_123_456_789
"""Monotonic time of the run's beginning, in ns."""

PID = 4242

NAMES = ['with "quotes"', "new\nline \\ \x00\x1f\x7f", "emoji 🚂", "surrogate \ud800", "long " * 300, "</script>", ""]
"""Names of any kind."""


def make_run(directory: Path, rank: int | None = None, metadata: dict[str, Any] | None = None) -> Run:
    """A run that began at `START`; each rank is a process of its own."""
    return Run(
        name="scene",
        output_dir=directory,
        pid=PID + (rank or 0),
        host="machine",
        rank=rank,
        world_size=None if rank is None else 2,
        anchor=ClockAnchor(START, 1_700_000_000_250_000_000, 100),
        metadata=lambda: dict(metadata or {}),
    )


def make_window(index: int = 0, steps: tuple[int, ...] = (7, 8, 9), **fields: Any) -> Window:
    """A window of steps of one millisecond each, with a ledger that lost two events."""
    start = START + index * 10_000_000
    made = tuple(Step(n, start + i * 1_000_000, start + (i + 1) * 1_000_000) for i, n in enumerate(steps))
    ledger = Ledger(sources={"recorder": SourceLedger(100, 98, {"overflow": 2})})
    end = made[-1].end_ns if made else start
    values: dict[str, Any] = {"complete": True, "ledger": ledger, "metadata": {"lr": 0.1}, "wall_start_ns": 1} | fields
    return Window(index=index, profiler="scene", start_ns=start, end_ns=end, steps=made, **values)


class Scene:
    """Collects events; times in microseconds after the run's beginning, with fractions down to nanoseconds."""

    def __init__(self, run: Run) -> None:
        self.process = tracks.new(TrackKind.PROCESS, run.pid, 0, "trainer")
        self.main = tracks.new(TrackKind.THREAD, run.pid, run.pid, "MainThread", self.process)
        self.other = tracks.new(TrackKind.THREAD, run.pid, run.pid + 1000, "pin memory", self.process)
        self._records: list[bytes] = []
        self._heap = b""
        self._id = 1 << 36

    def add(self, kind: Kind, name: str, at: float, dur: float = 0, *, track: int = 0, category: str = "cpu_op",
            flags: int = 0, id: int | None = None, parent: int = 0, value: float = 0, **args: Any) -> int:  # fmt: skip
        """Adds an event and returns its id; further arguments become the event's arguments, `_` in keys a space."""
        self._id += 1
        record = np.zeros(1, EVENT_DTYPE)
        record["kind"], record["flags"], record["step"] = kind, flags, -1
        record["name"], record["category"] = strings.intern(name), strings.category(category)
        record["ts"], record["dur"] = START + round(at * 1000), round(dur * 1000)
        record["track"], record["parent"] = track or self.main, parent
        record["id"] = self._id if id is None else id
        if kind in (Kind.COUNTER, Kind.MEMORY):
            record["value"] = value
        encoded = _core.encode_arguments({key.replace("_", " "): item for key, item in args.items()})
        record["args_at"], record["args_len"] = len(self._heap), len(encoded)
        self._heap += encoded
        self._records.append(record.tobytes())
        return int(record["id"][0])

    def span(self, name: str, at: float, dur: float, **fields: Any) -> int:
        """Adds a span."""
        return self.add(Kind.SPAN, name, at, dur, **fields)

    def batch(self, window: int = 0) -> EventBatch:
        """The events that were added since the last call."""
        events = np.frombuffer(b"".join(self._records), EVENT_DTYPE)
        batch = EventBatch("recorder", window, events, self._heap)
        self._records, self._heap = [], b""
        return batch


def training(scene: Scene, start: float = 0, steps: tuple[int, ...] = (7, 8, 9)) -> None:
    """Steps of 1000 us: data loader 100, forward 300 with operators inside, optimizer 200; no device."""
    for number, at in zip(steps, (start + 1000 * i for i in range(len(steps))), strict=True):
        mark: dict[str, Any] = {"category": "user_annotation"}
        scene.span(f"ProfilerStep#{number}", at, 1000, **mark)
        scene.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100, **mark)
        module = scene.span("nn.Module: Linear_0", at + 100, 300, category="python_function",
                            Python_id=number, Python_parent_id=None, Python_module_id=0)  # fmt: skip
        scene.span("forward", at + 100, 300, parent=module, **mark)
        linear = scene.span(
            "aten::linear", at + 120, 100, Input_Dims=[[8, 16], [32, 16]], Input_type=["float", "float"]
        )
        scene.span("aten::addmm", at + 130, 90, parent=linear)  # ends with its parent, to the nanosecond
        scene.add(Kind.FLOW_START, "fwdbwd", at + 130, category="fwdbwd", id=number)
        memory: dict[str, Any] = {
            "category": "cpu_instant_event",
            "Device_Type": 0,
            "Device_Id": -1,
            "Total_Reserved": 0,
        }
        scene.add(Kind.MEMORY, "memory", at + 150, value=4096, Addr=number, Bytes=4096, Total_Allocated=4096, **memory)
        scene.span("autograd::engine::evaluate_function: AddmmBackward0", at + 450, 100, track=scene.other)
        scene.span("AddmmBackward0", at + 460, 80, track=scene.other)
        scene.add(Kind.FLOW_END, "fwdbwd", at + 460, category="fwdbwd", id=number, track=scene.other)
        scene.span("Optimizer.step#SGD.step", at + 700, 200, **mark)
        scene.add(Kind.MEMORY, "memory", at + 800, value=0, Addr=number, Bytes=-4096, Total_Allocated=0, **memory)


def device_work(scene: Scene, device: int, start: float = 0, steps: int = 3) -> None:
    """In every step: a kernel of 150 us, a copy of 40 us and a collective of 200 us, launched by operators."""
    stream = tracks.new(TrackKind.STREAM, device, 7, "stream 7")
    comm = tracks.new(TrackKind.STREAM, device, 20, "stream 20")
    gpu: dict[str, Any] = {"device": device}
    for step in range(steps):
        at, link = start + 1000 * step, 100 * step + 10 * device
        op = scene.span("aten::mm", at + 230, 100)
        reduce = scene.span("nccl:all_reduce", at + 560, 50, category="user_annotation",
                            Input_Dims=[[1024]], Input_type=["float"])  # fmt: skip
        for n, (parent, name, begin) in enumerate(
            ((op, "cudaLaunchKernel", 240), (op, "cudaMemcpyAsync", 260), (reduce, "cudaLaunchKernel", 570))
        ):
            scene.span(name, at + begin, 2, category="cuda_runtime", parent=parent, correlation=link + n + 1)
        kernel = {**gpu, "stream": 7, "grid": [160, 1, 1], "block": [256, 1, 1]}
        scene.span(
            "sgemm_128x64", at + 250, 150, category="kernel", track=stream, parent=op, correlation=link + 1, **kernel
        )
        scene.span("Memcpy HtoD (Pinned -> Device)", at + 410, 40, category="gpu_memcpy", track=stream, parent=op,
                   correlation=link + 2, bytes=4096, stream=7, **gpu)  # fmt: skip
        scene.span("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 580, 200, category="kernel", track=comm, parent=reduce,
                   correlation=link + 3, stream=20, **gpu)  # fmt: skip


def everything(scene: Scene) -> None:
    """Three steps, two devices whose streams have equal numbers, and the odd kinds."""
    training(scene)
    device_work(scene, device=0)
    device_work(scene, device=1)
    odd_kinds(scene)


def odd_kinds(scene: Scene) -> None:
    """After the steps, on the host: every kind of event, names of any kind, spans that touch to the nanosecond."""
    for n, name in enumerate(NAMES):
        scene.span(name, 4000 + n * 10, 10, number=n, ratio=n + 0.5, text=name)
    scene.span("touching parent", 5000.001, 20.002)
    scene.span("touching child", 5010, 10.003)
    scene.span("touching next", 5020.003, 0.001)
    for n in range(3):
        scene.span("request", 5000 + n, 30, flags=Flag.ASYNC)
        scene.add(Kind.COUNTER, "loss", 5100 + n, value=1.5 * n)
    for value in (math.nan, math.inf):
        scene.add(Kind.COUNTER, "loss", 5110, value=value)
    scene.add(Kind.ASYNC_BEGIN, "download", 5000, id=2**64 - 1)
    scene.add(Kind.ASYNC_END, "download", 5060, id=2**64 - 1)
    scene.add(Kind.GAP, "dropped", 5005, 100, id=17)
    scene.add(Kind.GAP, "paused", 5006, 100, track=scene.other, id=0)
    scene.add(Kind.INSTANT, "checkpoint", 5001)
    scene.add(Kind.METADATA, "batch size", 5002, size=32)
    task = tracks.new(TrackKind.TASK, PID, 1 << 30, "task 3", scene.main)
    scene.span("in a task", 5000, 40, track=task)
