"""Activity of devices from a backend to every file and to the answer: what ran in a window is there once, and is counted right."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.analysis.explain import explain
from stepscope.analysis.findings import DeviceAnswer
from stepscope.analysis.reading.torch_traces import trace_of
from stepscope.backends.simulated.replay import ReplayBackend
from stepscope.exporters.specimens import run_in
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.windows.window import Window
from tests.support import pftrace
from tests.support.basics import ROOT
from tests.support.kernels import Kernel, KnownDevice

STEP_S = 0.04
LONGEST_NS = 2_000_000_000
"""A longer recording is played faster."""
SHOWN = 200
"""Names of kernels are compared up to here: some are longer than the names that stepscope keeps."""
RECORDED = ROOT / "tests" / "support" / "data" / "h200_gpt_two_streams.json.xz"
"""One window of torch 2.11 on an H200."""


def outputs(directory: Path) -> list[sc.exporters.Exporter]:
    """Every exporter of trace files."""
    return [
        sc.ChromeTraceExporter(directory / "trace.json"),
        sc.PerfettoExporter(directory / "trace.pftrace"),
        sc.tensorboard_trace_handler(directory / "tb"),
    ]


def kernels_in(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Kernels of a Chrome trace, by name."""
    return Counter(event["name"][:SHOWN] for event in events if event.get("cat") == "kernel" and event["ph"] == "X")


def kernels_of(directory: Path) -> list[Counter[str]]:
    """Kernels by name in the Chrome trace, in all files for TensorBoard together, and in the Perfetto trace."""
    chrome = kernels_in(json.loads((directory / "trace.json").read_text()))
    board: Counter[str] = Counter()
    for path in (directory / "tb").rglob("*.pt.trace.json*"):
        data = path.read_bytes()
        text = gzip.decompress(data) if path.suffix == ".gz" else data
        board += kernels_in(json.loads(text)["traceEvents"])
    trace = pftrace.load(directory / "trace.pftrace")
    # Some kernels of a stream overlap: these do not nest.
    perfetto = Counter(one.name[:SHOWN] for one in [*trace.slices(), *trace.pairs()] if one.category == "kernel")
    return [chrome, board, perfetto]


def lengths(kernels: Iterable[Kernel], windows: list[Window]) -> tuple[int, int]:
    """Time in windows in which a kernel ran, and in which only kernels of collectives ran, in ns."""
    edges: list[tuple[int, bool, int]] = []
    for one in kernels:
        for window in windows:
            begin, end = max(one.start_ns, window.start_ns), min(one.start_ns + one.dur_ns, window.end_ns)
            if begin < end:
                edges += [(begin, "nccl" in one.name, 1), (end, "nccl" in one.name, -1)]
    busy = exposed = before = 0
    running = [0, 0]
    for at, collective, change in sorted(edges):
        busy += at - before if any(running) else 0
        exposed += at - before if running[1] and not running[0] else 0
        running[collective] += change
        before = at
    return busy, exposed


def test_a_simulated_device(tmp_path: Path) -> None:
    """200,000 kernels a second, late, out of order between streams, on a clock that is seconds ahead and drifts."""
    streams = 8
    device = KnownDevice(
        streams=streams, kernels_per_second=200_000, flush_delay=0.05, clock_skew=7_000_000_000, clock_drift=80.0
    )
    windows: list[Window] = []
    with sc.trace(
        schedule=sc.schedule(wait=2, warmup=0, active=3, repeat=2),
        backends=[device],
        exporters=outputs(tmp_path),
        on_trace_ready=windows.append,
        output_dir=tmp_path / "run",
    ) as profiler:
        for _ in range(10):
            with sc.span("work"):
                time.sleep(STEP_S)
            profiler.step()
    profiler.raise_errors()
    assert [window.complete for window in windows] == [True, True]
    ledgers = [window.ledger.sources["simulated"] for window in windows]
    assert all(ledger.balanced() and not ledger.dropped for ledger in ledgers)
    truth = device.truth
    there = Counter(
        one.name
        for one in truth.values()
        for window in windows
        if one.start_ns < window.end_ns and one.start_ns + one.dur_ns > window.start_ns
    )
    found = kernels_of(tmp_path)
    assert found[0] == found[1] == found[2]
    # Readings of the device's clock are off by less than a kernel: each stream and border may differ by one.
    assert abs(found[0].total() - there.total()) <= 2 * streams * len(windows)
    assert found[0].total() > 0.8 * 2 * 3 * STEP_S * 200_000
    answer = device_of(tmp_path / "run")
    total = sum(window.end_ns - window.start_ns for window in windows)
    busy, exposed = lengths(truth.values(), windows)
    assert answer.busy_ns + answer.idle_ns == answer.total_ns
    assert answer.computation_ns + answer.communication_ns + answer.copy_ns == answer.busy_ns
    assert answer.busy_ns / answer.total_ns == pytest.approx(busy / total, abs=0.02)
    assert answer.communication_ns / answer.total_ns == pytest.approx(exposed / total, abs=0.02)


def device_of(run: Path) -> DeviceAnswer:
    """The answer about the only device of a run."""
    (device,) = explain(run).ranks[0].devices
    return device


def real_traces() -> list[Path]:
    """Traces of real devices: the one here, and those in the folder that `STEPSCOPE_REAL_TRACES` names."""
    folder = os.environ.get("STEPSCOPE_REAL_TRACES")
    return [RECORDED, *(sorted(Path(folder).glob("*.json.gz")) if folder else ())]


@pytest.mark.parametrize("recorded", real_traces(), ids=lambda path: path.name.partition(".")[0])
def test_a_real_device_that_is_replayed(recorded: Path, tmp_path: Path) -> None:
    """A window of a GPU, played again through the runtime: the same kernels are in each file, and the answer is the same."""
    original = tmp_path / "original.json"
    data = recorded.read_bytes()
    original.write_bytes(lzma.decompress(data) if recorded.suffix == ".xz" else gzip.decompress(data))
    rank = trace_of(original)
    writer = JournalWriter(tmp_path / "journal")
    writer.open(run_in(tmp_path))
    for batch in rank.batches():
        writer.write_batch(batch)
    writer.close()
    speed = max(1.0, (rank.windows[0].end_ns - rank.windows[0].start_ns) / LONGEST_NS)
    replay = ReplayBackend(writer.path, speed=speed)
    windows: list[Window] = []
    with sc.trace(
        backends=[replay], exporters=outputs(tmp_path), on_trace_ready=windows.append, output_dir=tmp_path / "run"
    ) as profiler:
        assert replay.finished.wait(60)
    profiler.raise_errors()
    (window,) = windows
    assert window.ledger.sources["replay"].balanced() and not window.ledger.sources["replay"].dropped
    wanted = kernels_in(json.loads(original.read_text())["traceEvents"])
    assert kernels_of(tmp_path) == [wanted] * 3
    before, after = device_of(original), device_of(tmp_path / "run")
    for name in ("busy_ns", "computation_ns", "communication_ns", "copy_ns"):
        assert getattr(after, name) * speed == pytest.approx(getattr(before, name), rel=1e-3)
