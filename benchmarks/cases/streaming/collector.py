"""Streaming to a collector over loopback: what it costs the training process, what the collector takes in, and when it shows it.

Costs are processor time: of the collector's process for what it takes in, of the training process, less that of the same load
without the exporter, for what it costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.cases.streaming import display_delay
from benchmarks.cases.streaming.collecting import Collecting, collecting, payload
from benchmarks.cases.streaming.ranks import SYNC
from benchmarks.cases.streaming.ranks import run as run_ranks
from benchmarks.cases.tools.session import scratch, session
from benchmarks.harness.row import Contender, Round, Row, Sample, Tool
from benchmarks.harness.scale import Scale

RATE = 100_000
"""Events a second of the training process."""
CHUNK = 50_000
"""Events of a frame: what is between two drains at that rate."""
SMALL = 1000
"""Events of a small frame: what a rank of a training of 2,000 events a second has between two drains."""
RANKS = 1000


def _ingest(scale: Scale) -> AbstractContextManager[Round]:
    # Processor time is counted in hundredths of a second: it takes many events.
    return _ingest_time(scale, CHUNK, 400, lambda collector: collector.processor_seconds)


def _small(scale: Scale) -> AbstractContextManager[Round]:
    return _ingest_time(scale, SMALL, 40, lambda collector: collector.processor_seconds)


def _synced(scale: Scale) -> AbstractContextManager[Round]:
    return _ingest_time(scale, CHUNK, 20, lambda _: time.monotonic, "--fsync")


@contextmanager
def _ingest_time(
    scale: Scale, chunk: int, times: int, clock: Callable[[Collecting], Callable[[], float]], *options: str
) -> Generator[Round]:
    """Millions of events that a collector takes in a second of a clock, so many times those of the scale.

    Args:
        chunk: events of a frame.
    """
    count, flags, data = payload(min(chunk, scale.events))
    frames = max(scale.events * times // count, 1)

    def once() -> Sample:
        with scratch() as directory, collecting(directory, *options) as collector:
            now = clock(collector)
            began = now()
            asyncio.run(_send(collector.url, frames, flags, data))
            spent = max(now() - began, 1e-3)
            return Sample(frames * count / spent / 1e6, facts={"bytes per event": len(data) / count})

    yield once


async def _send(url: str, frames: int, flags: int, data: bytes) -> None:
    from websockets.asyncio.client import connect
    from websockets.typing import Subprotocol

    from stepscope.exporters.stream import protocol
    from stepscope.runtime.events.clock import ClockAnchor
    from stepscope.runtime.journal import format as fmt
    from stepscope.runtime.journal.records import RunRecord

    subprotocols = [Subprotocol(protocol.SUBPROTOCOL)]
    async with connect(url + protocol.PATH, subprotocols=subprotocols, compression=None, proxy=None) as socket:
        await socket.send(
            protocol.encode(protocol.Hello("0" * 32, SYNC, RunRecord(name="", anchor=ClockAnchor.read())))
        )
        await socket.recv()
        confirmed = 0
        for number in range(frames):
            frame = fmt.encode_frame(SYNC, fmt.FrameType.EVENTS, number, [data], flags)
            await socket.send(protocol.encode(protocol.Frames(number, 1, 0, 20), *map(bytes, frame)))
            while confirmed < number - 8:
                await socket.recv()
                confirmed += 1
        while confirmed < frames:
            await socket.recv()
            confirmed += 1


@contextmanager
def _exporter(scale: Scale) -> Generator[Round]:
    from stepscope.exporters.stream.exporter import CollectorExporter

    seconds = max(scale.events / RATE, 0.01)
    with scratch() as directory, collecting(directory) as collector:
        yield lambda: streamed(CollectorExporter(collector.url), seconds)


def streamed(exporter: object, seconds: float) -> Sample:
    """The cost of streaming for so long, in percent of a core, beyond recording."""
    without = _cost([], seconds)
    return Sample((_cost([exporter], seconds) - without) / seconds * 100, without / seconds * 100)


def _cost(exporters: list[object], seconds: float) -> float:
    """Processor seconds of recording for so long, and of delivering all of it."""
    import stepscope

    with session(exporters=exporters, options=stepscope.Options(journal=False)) as profiler:
        begun, start = time.process_time(), time.monotonic()
        for turn in range(int(seconds * 100)):
            time.sleep(max(start + turn / 100 - time.monotonic(), 0))
            for _ in range(RATE // 100 // 10):
                with stepscope.span("forward"):
                    for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i"):
                        with stepscope.span(name):
                            pass
            profiler.step()
        profiler.close()
        return time.process_time() - begun


@contextmanager
def _ranks(scale: Scale) -> Generator[Round]:
    def once() -> Sample:
        seconds = scale.events / 500_000 * 60
        result = run_ranks(RANKS if seconds > 1 else 10, 1000, seconds)
        facts = {
            "events missing": float(result.missing),
            "slowest confirmation, s": result.slowest_ack,
            "collector, % of a core": 100 * result.collector_seconds / result.seconds,
        }
        return Sample(result.collector_peak_bytes / 1e6, facts=facts)

    yield once


@contextmanager
def _shown(scale: Scale) -> Generator[Round]:
    def once() -> Sample:
        seconds = scale.events / 500_000 * 60
        if seconds > 1:
            result = run_ranks(RANKS, 1000, seconds, browser=display_delay.browser())
        else:
            result = run_ranks(10, 1000, seconds)
        facts = {
            "live events, median, s": result.events_delay.median,
            "live events, worst, s": result.events_delay.worst,
        }
        worst = result.events_delay.worst
        if result.page_delay is not None:
            facts |= {"page, median, s": result.page_delay.median, "page, worst, s": result.page_delay.worst}
            worst = max(worst, result.page_delay.worst)
        return Sample(worst, facts=facts)

    yield once


ROWS = (
    Row(
        key="collector.ingest",
        what="a collector's ingest over loopback with a durable journal, one core",
        unit="M events/s",
        budget=2.0,
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect", _ingest),),
    ),
    Row(
        key="collector.small_frames",
        what=f"the same in frames of {SMALL:,} events",
        unit="M events/s",
        budget=2.0,
        more_is_better=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect", _small),),
    ),
    Row(
        key="collector.synced",
        what="the same with `--fsync`: confirmed is what the disk has; by the clock on the wall",
        unit="M events/s",
        budget=2.0,
        more_is_better=True,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect --fsync", _synced),),
    ),
    Row(
        key="collector.exporter",
        what="streaming 100,000 events/s to a collector: processor time of the training process",
        unit="% of a core",
        budget=2.0,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "CollectorExporter", _exporter),),
    ),
    Row(
        key="collector.ranks",
        what="a collector's memory, 1,000 ranks that stream 1,000 events/s each for a minute",
        unit="MB",
        budget=1000.0,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect", _ranks, every=5),),
    ),
    Row(
        key="collector.shown",
        what="from the sending of a step until live events and the page show it, the worst of a minute, 1,000 ranks that stream 1,000 events/s each",
        unit="s",
        budget=2.0,
        heavy=True,
        contenders=(Contender(Tool.STEPSCOPE, "stepscope collect", _shown, every=5),),
    ),
)
"""Costs of a collector and of its exporter."""
