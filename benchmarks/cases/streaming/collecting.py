"""A collector in a process of its own, and streams that are made to measure it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.cases.tools.session import session
from benchmarks.cases.tools.span_load import emit

if TYPE_CHECKING:
    from stepscope.runtime.events.record import EventBatch

_TICKS = os.sysconf("SC_CLK_TCK")
_RUN = "import sys; from stepscope.cli.main import main; sys.exit(main())"


class Collecting:
    """A collector that runs."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, directory: Path) -> None:
        self._process, self.url, self.directory = process, url, directory

    def processor_seconds(self) -> float:
        """Processor time that it has had."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def peak_bytes(self) -> int:
        """The most memory that it had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) << 10


@contextmanager
def collecting(directory: Path, *arguments: str) -> Generator[Collecting]:
    """Starts a collector, with further arguments if need be; it is ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _RUN, "collect", "--dir", str(directory), "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None:
                raise RuntimeError(f"the collector has ended with {process.returncode}")
            time.sleep(0.05)
        yield Collecting(process, f"ws://127.0.0.1:{port}", directory)
    finally:
        process.terminate()
        process.wait()


def recorded(count: int) -> list[EventBatch]:
    """Batches of at least so many spans, as they left the recorder."""
    import stepscope

    memory = stepscope.exporters.MemoryExporter()
    with session(exporters=[memory], options=stepscope.Options(journal=False)) as profiler:
        emit(stepscope.span, count)
        profiler.flush()
    return memory.batches


def payload(count: int) -> tuple[int, int, bytes]:
    """A frame's payload of so many events, or of the most in one frame: (events, flags, bytes), as `CollectorExporter` makes it."""
    from stepscope.runtime import _core
    from stepscope.runtime.events.record import join_blocks
    from stepscope.runtime.journal import format as fmt

    events = join_blocks([batch.events for batch in recorded(count)])[:count]
    data, _, _ = _core.encode_frames(events, b"", b"sync", int(fmt.FrameType.EVENTS), 0, 0, b"recorder")
    (_, flags, _, payload), *_ = fmt.frames_in(data, b"sync")
    found = fmt.decode_events_header(bytes(payload[: fmt.MAX_EVENTS_HEADER]))
    assert found is not None
    return found[0].count, flags, bytes(payload)
