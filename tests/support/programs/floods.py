"""Records and delivers more than anybody reads, and prints the most memory that this process has used meanwhile, as JSON.

`floods.py OUTPUT_DIR MEMORY_BYTES SPANS_PER_THREAD journal|none`
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import anyio
import numpy as np

import stepscope as sc
from stepscope.runtime.events import clock
from stepscope.runtime.events.record import EVENT_DTYPE, Kind
from stepscope.runtime.recording.recorder import current

THREADS = 4


class Hangs(sc.exporters.MemoryExporter):
    """Never returns from a batch after the first ones."""

    armed = False

    async def export(self, batch):
        if self.armed:
            await anyio.sleep_forever()


class Slow(sc.exporters.MemoryExporter):
    """Takes a while for each batch, and keeps none."""

    async def export(self, batch):
        await anyio.sleep(0.02)


class Device:
    """Delivers a block of its own on demand."""

    name = "device"
    thread_bound = False

    def open(self, sink):
        self.sink = sink

    def transition(self, before, after, at):
        pass

    def report(self):
        return sc.backends.BackendReport()

    async def aclose(self):
        pass

    def deliver(self, count):
        events = np.zeros(count, EVENT_DTYPE)
        events["kind"], events["ts"], events["dur"] = Kind.SPAN, clock.now(), 10
        self.sink.deliver(events, watermark=clock.now())


def memory_used(session):
    """Bytes of private and file memory of this process, and of the files of its session, whether mapped or not."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own = sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssFile"))
    files = 0
    with contextlib.suppress(FileNotFoundError):  # the profiler has closed
        files = sum(entry.stat().st_blocks * 512 for entry in os.scandir(session) if entry.is_file())
    return own, files


def spans(count):
    for number in range(count):
        with sc.span("work", number=number, text="x" * 100):
            pass
        if number % 500 == 0:
            time.sleep(0.001)  # else nothing but rings would fill up, as no other thread gets the interpreter's lock


def main():
    directory, memory, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    hangs, slow, device = Hangs(), Slow(), Device()
    hangs.name, slow.name = "hangs", "slow"
    options = sc.Options(memory_bytes=memory, close_timeout=4, journal=sys.argv[4] == "journal")
    profiler = sc.trace(output_dir=directory, exporters=[hangs, slow], backends=[device], options=options)
    profiler.start()
    spans(1000)  # everything that is imported or opened late
    device.deliver(10)
    assert profiler.flush(60)
    hangs.armed = True
    session = current().directory
    before = memory_used(session)
    peak, ended = [before], threading.Event()

    def watch():
        while not ended.wait(0.002):
            peak.append(memory_used(session))
            peak.sort(key=sum)
            del peak[:-1]

    def deliver():
        for _ in range(count // 500):
            device.deliver(2000)
            time.sleep(0.001)

    threads = [threading.Thread(target=spans, args=(count,)) for _ in range(THREADS)]
    threads.append(threading.Thread(target=deliver))
    watcher = threading.Thread(target=watch)
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            profiler.step()
            thread.join(0.01)
    profiler.close()
    ended.set()
    watcher.join()
    stats = profiler.statistics()
    outputs = {one.name: one.ledger for one in stats.pipeline.exporters}
    print(
        json.dumps(
            {
                "before": before,
                "peak": peak[0],
                "recorded": 1000 + THREADS * count,
                "delivered": 10 + count // 500 * 2000,
                "recorder": [stats.recorder.produced, stats.recorder.dropped],
                "outputs": {
                    name: [ledger.offered, ledger.exported, ledger.dropped] for name, ledger in outputs.items()
                },
                "sources": {
                    name: [ledger.produced, ledger.accepted, ledger.dropped]
                    for name, ledger in slow.run.ledger().sources.items()
                },
                "queues": [one.peak_bytes for one in stats.pipeline.exporters],
                "inbox": stats.pipeline.inbox.peak_bytes,
                "audit": [str(each) for each in profiler.audit()],
            }
        )
    )


if __name__ == "__main__":
    main()
