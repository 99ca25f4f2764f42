"""Exporters that misbehave next to good ones: the good ones get everything, and nothing waits longer than promised."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Generator
from functools import cache, partial
from pathlib import Path
from typing import Any

from stepscope.exporters.base import EventBatch
from stepscope.runtime.events import strings
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.options import Options
from tests.stress.torture import faulty_exporter_loop, servers
from tests.stress.torture.fault import Fault, Outcome
from tests.support.basics import ROOT
from tests.support.disks import small_disk
from tests.support.launch import run_to_end

SLACK = 0.5
"""Seconds by which closing may exceed its deadline, as promised."""
DEFAULT = Options().close_timeout
"""Seconds of the deadline for closing, unless it is set."""
LONGEST = 20
"""Entries of a traceback that is stored; one that grows with each batch has twice as many at the least."""
DISK = 128 << 10
"""Bytes of a disk that fills up."""


def trial(
    how: str,
    method: str,
    server: Callable[[Path], contextlib.AbstractContextManager[int]],
    place: Path,
    _: int,
    *,
    seconds: float = faulty_exporter_loop.TIMEOUT,
) -> Outcome:
    """Trains with an exporter that misbehaves, in one method or all, and reads what the others have written.

    Args:
        seconds: deadline for closing.
    """
    with server(place) as port:
        command = [
            sys.executable,
            "-m",
            "tests.stress.torture.faulty_exporter_loop",
            how,
            method,
            str(place),
            str(port),
            str(seconds),
        ]
        done = run_to_end(command, cwd=ROOT, timeout=60)
        written = cut_short(place / "disk" / "trace.json") if how == "full" else []
    ended = time.monotonic_ns()
    if done.returncode or not done.stdout:
        return Outcome(problems=(f"the program ended with {done.returncode}: {done.stderr[-500:]}",))
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    leaving = ended - report["ending"]
    problems: list[str] = []
    if max(leaving, report["closing"]) > (seconds + SLACK) * 1e9:
        problems.append(f"closing took {report['closing'] / 1e9:.2f} s and the exit {leaving / 1e9:.2f} s")
    spans = faulty_exporter_loop.STEPS * faulty_exporter_loop.SPANS
    problems += [
        f"{output} has {report[output]} of {spans} spans"
        for output in ("journal", "chrome", "memory")
        if report[output] != spans
    ]
    problems += [f"{name} still has {row[3]} events in flight" for name, row in report["ledger"].items() if row[3]]
    problems += written
    if report["longest"] > LONGEST:
        problems.append(f"a traceback of {report['longest']} entries is stored")
    if how != "slow":
        problems += [f"no error names {name}" for name, named in report["named"].items() if not named]
    rows = report["ledger"].values()
    return Outcome(
        produced=sum(row[0] for row in rows),
        exported=sum(row[1] for row in rows),
        dropped=sum(sum(row[2].values()) for row in rows),
        blocked_ns=report["blocked"],
        shutdown_ns=max(leaving, report["closing"]),
        problems=tuple(problems),
    )


def cut_short(trace: Path) -> list[str]:
    """Faults of a trace whose disk was too small: as viewers read it, up to where it was cut, it must have events."""
    text = trace.read_bytes().rstrip(b"]\n").rstrip(b",\n")
    rows: list[dict[str, Any]] = json.loads(text + b"]")
    full = trace.stat().st_size > DISK // 2
    return (
        [] if full and any(row.get("name") == "work" for row in rows) else [f"the full disk holds {len(rows)} events"]
    )


BARE = """
import time
import stepscope as sc
from tests.stress.torture import faulty_exporter_loop
print(time.monotonic_ns(), flush=True)
"""


@cache
def bare_exit() -> int:
    """ns in which the interpreter ends that has imported the same and traced nothing; the longest of some."""
    longest = 0
    for _ in range(3):
        done = run_to_end([sys.executable, "-c", BARE], cwd=ROOT, timeout=60)
        longest = max(longest, time.monotonic_ns() - int(done.stdout))
    return longest


LEAVING = """
import time
import stepscope as sc
from stepscope.exporters.memory import MemoryExporter
from tests.stress.torture.faulty_exporter_loop import Threaded
bad = {bad}
profiler = sc.trace(exporters=[bad], output_dir={place!r}, options=sc.Options(close_timeout={seconds}, drain_interval=0.05))
profiler.start()
for _ in range(100):
    with sc.span("work"):
        pass
    profiler.step()
time.sleep(0.2)
print(time.monotonic_ns(), flush=True)
"""


def leaving(bad: str, place: Path, _: int, *, seconds: float = faulty_exporter_loop.TIMEOUT) -> Outcome:
    """The program ends without closing its profiler: the interpreter's exit keeps the deadline, too."""
    program = LEAVING.format(bad=bad, place=str(place / "run"), seconds=seconds)
    done = run_to_end([sys.executable, "-c", program], cwd=ROOT, timeout=60)
    took = time.monotonic_ns() - int(done.stdout) - bare_exit()
    with JournalReader(place / "run" / "journal") as reader:
        batches = [item.events for item in reader if isinstance(item, EventBatch)]
        ended = reader.end is not None
    found = sum(int((events["name"] == strings.intern("work")).sum()) for events in batches)
    problems = [] if took < (seconds + SLACK) * 1e9 else [f"the exit took {took / 1e9:.2f} s"]
    problems += [] if ended and not done.returncode else [f"exit status {done.returncode}: {done.stderr[-300:]}"]
    return Outcome(produced=100, exported=found, shutdown_ns=took, problems=tuple(problems))


@contextlib.contextmanager
def nobody(place: Path) -> Generator[int]:
    """No server is needed."""
    yield 0


@contextlib.contextmanager
def full_disk(place: Path) -> Generator[int]:
    """A disk that is too small for a trace."""
    with small_disk(place / "disk", DISK):
        yield 0


def serving(
    server: Callable[[], contextlib.AbstractContextManager[int]],
) -> Callable[[Path], contextlib.AbstractContextManager[int]]:
    """A server, which needs no place."""

    def serve(place: Path) -> contextlib.AbstractContextManager[int]:
        return server()

    return serve


def _fault(
    name: str, how: str, method: str = "export", server: Callable[[Path], Any] = nobody, short: int = 0
) -> Fault:
    return Fault(
        family="exporters", alone=True, name=name, trial=partial(trial, how, method, server), trials=1, short=short
    )


FAULTS = (
    *(
        Fault(family="exporters", alone=True, name=f"the interpreter exits while one {what}", trial=partial(leaving, bad), trials=1)
        for what, bad in (
            ("hangs", 'MemoryExporter(hang_in="export")'),
            ("blocks its thread", 'MemoryExporter(block_in="export")'),
            ("hangs in asyncio.to_thread", "Threaded()"),
        )
    ),
    *(_fault(f"raises in {method}", "raise", method) for method in ("open", "export", "close_window", "aclose")),
    *(_fault(f"raises CancelledError in {method}", "cancel", method) for method in ("open", "export", "close_window", "aclose")),
    _fault("raises the same exception each time", "again"),
    _fault("raises SystemExit", "exit"),
    *(_fault(f"hangs in {method}", "hang", method, short=method == "export") for method in ("open", "export", "close_window", "aclose")),
    *(_fault(f"blocks its thread in {method}", "block", method, short=method == "export") for method in ("open", "export", "close_window", "aclose")),
    _fault("hangs in asyncio.to_thread", "thread"),
    _fault("four of them hang or block at once", "several", short=1),
    _fault("takes 3 s for a batch", "slow"),
    _fault("its disk is full", "full", server=full_disk, short=1),
    *(
        Fault(
            family="exporters", alone=True, name=f"{what} in export, deadline of {DEFAULT:g} s as by default",
            trial=partial(trial, how, "export", nobody, seconds=DEFAULT), trials=1, short=0,
        )
        for what, how in (("hangs", "hang"), ("blocks its thread", "block"), ("hangs in asyncio.to_thread, several,", "several"))
    ),
    Fault(
        family="exporters", alone=True, name=f"the interpreter exits while one hangs, deadline of {DEFAULT:g} s as by default",
        trial=partial(leaving, 'MemoryExporter(hang_in="export")', seconds=DEFAULT), trials=1, short=0,
    ),
    _fault("its server refuses", "connect", server=serving(servers.refusing)),
    _fault("its server does not answer", "connect", server=serving(servers.dead)),
    _fault("its server never reads", "connect", server=serving(servers.half_open)),
    _fault("its server reads 1 byte/s", "connect", server=serving(servers.trickling), short=1),
    _fault("its server resets the connection", "connect", server=serving(servers.resetting)),
    *(
        _fault(
            f"{kind} exporter, its server {what}", how, server=serving(server),
            short=server in (servers.half_open, servers.trickling),
        )
        for kind, how in (("OTLP", "otlp"), ("collector", "collector"), ("NATS", "nats"))
        for what, server in (
            ("refuses", servers.refusing), ("does not answer", servers.dead), ("never reads", servers.half_open),
            ("reads 1 byte/s", servers.trickling), ("resets the connection", servers.resetting),
        )
    ),
)  # fmt: skip
