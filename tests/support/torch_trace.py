"""Small traces as torch.profiler saves them: a loop with a host that launches and a device that computes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HOST, THREAD, DEVICE = 4242, 4243, 0
Event = dict[str, Any]


def span(category: str, name: str, begin: float, dur: float, *, tid: int = THREAD, **arguments: Any) -> Event:
    """A span of the host; times in µs."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": HOST, "tid": tid, "ts": begin, "dur": dur, "args": arguments
    }  # fmt: skip


def kernel(
    name: str, begin: float, dur: float, *, stream: int = 7, device: int = DEVICE, category: str = "kernel"
) -> Event:
    """An event of a device; times in µs."""
    return span(category, name, begin, dur, tid=stream, device=device, stream=stream) | {"pid": device}


def step(number: int, begin: float, dur: float) -> Event:
    """The span that torch.profiler puts around a step."""
    return span("user_annotation", f"ProfilerStep#{number}", begin, dur)


def rows(*devices: int) -> list[Event]:
    """Names of processes and devices."""
    labels = {HOST: "CPU", **{device: f"GPU {device}" for device in devices or (DEVICE,)}}
    return [
        {"ph": "M", "name": f"process_{what}", "pid": pid, "tid": 0, "ts": 0, "args": {what.removesuffix("s") if what == "name" else what: text}}
        for pid, label in labels.items()
        for what, text in (("name", "python"), ("labels", label))
    ]  # fmt: skip


def loop(steps: int = 30, *, collective: float = 0.0, kernel_us: float = 200.0) -> list[Event]:
    """Steps of 1 ms: Python, a slow operator that launches a kernel, perhaps a collective, a wait for the device."""
    made: list[Event] = []
    for number in range(steps):
        at = 1_000.0 * number
        made += [
            step(number, at, 990),
            span("python_function", "train.py(3): step", at + 1, 980),
            span("cpu_op", "aten::mm", at + 20, 870),
            span("cuda_runtime", "cudaLaunchKernel", at + 120, 20, correlation=number),
            kernel("gemm", at + 150, kernel_us),
            span("cuda_runtime", "cudaStreamSynchronize", at + 900, 50),
        ]
        if collective:
            made.append(kernel("ncclDevKernel_AllReduce", at + 150 + kernel_us - 50, collective + 50, stream=20))
    return made


def kineto_text(events: Iterable[Event], head: Mapping[str, Any] | None = None) -> bytes:
    """A file as kineto lays it out: an event every few lines, which begin with two spaces."""
    text = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in {"schemaVersion": 1, **(head or {})}.items())
    texts = ",\n  ".join(json.dumps(event, indent=2).replace("\n", "\n  ") for event in events)
    return f'{{\n{text}  "traceEvents": [\n  {texts}\n  ]}}'.encode()


def save(path: Path, events: Iterable[Event], **head: Any) -> Path:
    """Writes a trace in kineto's layout; compressed, if the name says so."""
    data = kineto_text(events, head)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
