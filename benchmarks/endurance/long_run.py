"""One long run, watched: the program of `load.py`, with its memory sampled and its disk space bounded."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.endurance.load import End
from benchmarks.endurance.watch import Sample, sample, sessions, slope
from benchmarks.harness.worker_processes import ROOT

KEPT = 32 << 20
"""Bytes at the end of the journal that stay on the disk while it grows: space before them is freed."""
FALLOC_PUNCH_HOLE = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE. Source: fallocate(2)."""


class LongRun(msgspec.Struct, kw_only=True):
    """The measurements of a long run."""

    samples: list[Sample]
    last: Sample | None
    """When everything was closed, before the process ended."""
    end: End
    status: int
    """Of the process."""
    exit_seconds: float
    """From the moment that it was let go to its end."""
    left: list[str]
    """Leftovers in /dev/shm."""
    journal_bytes: int
    chrome_bytes: int

    @property
    def lost(self) -> int:
        """Events without a count, at any stage: all but 0 is a fault."""
        outputs = self.end.outputs.values()
        lost = [offered - exported - sum(dropped.values()) for offered, exported, dropped, _ in outputs]
        # Events that the recorder produced and did not drop were offered to each output; spans of steps come on top.
        lost += [max(self.end.produced - self.end.overflow - offered, 0) for offered, *_ in outputs]
        return sum(abs(count) for count in lost)

    @property
    def dropped(self) -> int:
        """Events dropped, and counted."""
        return self.end.overflow + sum(sum(dropped.values()) for _, _, dropped, _ in self.end.outputs.values())

    def per_million(self, of: Callable[[Sample], int]) -> float:
        """Growth over the second half, in bytes for a million spans."""
        half = [s for s in self.samples if s.spans >= self.end.spans / 2]
        return slope([(s.spans / 1e6, of(s)) for s in half])

    def grown(self, of: Callable[[Sample], int]) -> float:
        """Growth from the second quarter to the last, in bytes by their medians: what comes and goes does not count."""
        quarter = len(self.samples) // 4
        second, last = self.samples[quarter : 2 * quarter], self.samples[3 * quarter :]
        if not second:
            return 0.0
        return statistics.median(map(of, last)) - statistics.median(map(of, second))


def run(
    spans: int, rate: float, report: Callable[[Sample], object] = lambda sample: None, *, keep_last: int = 0
) -> LongRun:
    """Records spans in a process of its own, and watches it once a second.

    Args:
        spans: how many.
        rate: of them a second.
        report: called with each sample.
        keep_last: keep so many of the last steps instead of writing everything; the disk is left alone then.

    Raises:
        RuntimeError: if the process ends without an account.
    """
    with tempfile.TemporaryDirectory(prefix="endurance-") as name:
        directory = Path(name)
        command = [sys.executable, "-m", "benchmarks.endurance.load", str(spans), str(rate), name, str(keep_last)]
        before = time.time()
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            started = time.monotonic()
            samples: list[Sample] = []
            disk = None if keep_last else Disk(directory)
            line = b""
            while not line.startswith(b"{"):
                if not select.select([process.stdout], [], [], 60)[0]:
                    process.kill()
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the program ended with {process.wait()}")
                if line.strip().isdigit():
                    seen = sample(process.pid, time.monotonic() - started, int(line))
                    if disk is not None:
                        disk.clear()
                    if seen is not None:
                        samples.append(seen)
                        report(seen)
            end = msgspec.json.decode(line, type=End)
            last = sample(process.pid, time.monotonic() - started, end.spans)
            if disk is not None:
                disk.clear()
            let_go = time.monotonic()
            process.stdin.close()
            status = process.wait()
            exit_seconds = time.monotonic() - let_go
            # One that is older is of a killed process that had the same number.
            left = [path.name for path in sessions(process.pid) if path.stat().st_ctime >= before]
        return LongRun(
            samples=samples,
            last=last,
            end=end,
            status=status,
            exit_seconds=exit_seconds,
            left=left,
            journal_bytes=disk.journal_bytes() if disk is not None else 0,
            chrome_bytes=disk.chrome_bytes if disk is not None else 0,
        )


class Disk:
    """Keeps the outputs small while they are written: parts of the Chrome trace that are complete are removed, and of
    the journal all but its end is given back to the file system. The disk still writes all of it: nothing is saved."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._punched = 0
        self.chrome_bytes = 0
        """Of the parts so far."""

    def clear(self) -> None:
        """Gives back what is not written to any more."""
        self._punch(self._directory / "run" / "journal")
        parts = sorted(self._directory.glob("trace*.json"), key=_number)
        for part in parts[:-1]:
            self.chrome_bytes += part.stat().st_size
            part.unlink()

    def journal_bytes(self) -> int:
        """Size of the journal."""
        self.chrome_bytes += sum(part.stat().st_size for part in self._directory.glob("trace*.json"))
        return (self._directory / "run" / "journal").stat().st_size

    def _punch(self, journal: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            until = (journal.stat().st_size - KEPT) // 4096 * 4096
            if until <= self._punched:
                return
            descriptor = os.open(journal, os.O_RDWR)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                length = ctypes.c_int64(until - self._punched)
                if libc.fallocate(descriptor, FALLOC_PUNCH_HOLE, ctypes.c_int64(self._punched), length) == 0:
                    self._punched = until
            finally:
                os.close(descriptor)


def _number(part: Path) -> int:
    middle = part.name.removeprefix("trace").removesuffix(".json").strip(".")
    return int(middle) if middle else 0
