"""A window that torch recorded of a training on an H200: two streams, and a device that runs a step behind its host."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepscope.backends.collecting import CollectingSink
from stepscope.backends.torch.kineto.worker import FinishedTrace, KinetoWorker, SharedResult
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import Kind
from tests.support.basics import ROOT
from tests.support.block_contents import decoded

pytestmark = pytest.mark.needs("torch")

RECORDED = ROOT / "tests" / "support" / "data" / "h200_gpt_two_streams.json.xz"
"""One window of torch 2.11 on CUDA 13, as `torch.profiler` exports it."""
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
Run = tuple[str, str, int, int, int, int]
"""Category, name (its first 200 characters), stream, correlation, begin in ns since the trace's base, duration in ns."""


class Saved:
    """The recording as torch holds it: it can be exported."""

    def trace_start_ns(self) -> int:
        return 1

    def save(self, path: str) -> None:
        Path(path).write_bytes(lzma.open(RECORDED).read())


@pytest.fixture(scope="module")
def export() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.open(RECORDED).read())
    return found


def runs_of_torch(export: dict[str, Any]) -> Counter[Run]:
    return Counter(
        (
            event["cat"],
            event["name"][:200],
            event["args"]["stream"],
            event["args"]["correlation"],
            round(event["ts"] * 1000),
            round(event["dur"] * 1000),
        )
        for event in export["traceEvents"]
        if event["ph"] == "X" and event.get("cat") in DEVICE
    )


async def test_each_run_of_the_device_is_delivered_once(export: dict[str, Any]) -> None:
    """Those that ended after the window did are reported as launched before; the host's events after it are not."""
    base = export["baseTimeNanoseconds"]
    host = [event for event in export["traceEvents"] if event["ph"] == "X" and event.get("cat") == "cpu_op"]
    until = base + round(max(event["ts"] for event in host) * 1000)
    sink = CollectingSink()
    worker = KinetoWorker(sink)
    worker.put(
        FinishedTrace(
            SharedResult(Saved()),
            until=until,
            anchors=(ClockAnchor(base, base, 0),),
            flops=False,
            since=base,
            left_out=frozenset(),
        )
    )
    await worker.aclose()
    ours: Counter[Run] = Counter()
    behind = 0
    for delivery in sink.deliveries:
        for event, args in zip(delivery.events, decoded(delivery.events, delivery.args), strict=True):
            category = strings.text(int(event["category"]))
            ends = int(event["ts"]) + int(event["dur"])
            if delivery.launched_before is not None:
                assert delivery.launched_before == until < ends
                track = tracks.get(int(event["track"]))
                assert track is not None and track.kind is tracks.TrackKind.STREAM
            if event["kind"] == Kind.SPAN and category in DEVICE:
                assert (delivery.launched_before is None) == (ends <= until)
                behind += ends > until
                name = strings.name_of(event)[:200]
                ours[
                    category, name, args["stream"], args["correlation"], int(event["ts"]) - base, int(event["dur"])
                ] += 1
    assert ours == runs_of_torch(export)
    assert behind > 900, "nearly all of the last step ran after its end"
    assert len({stream for _, _, stream, *_ in ours}) == 2
