"""How busy the machine is, and this process on it, as counters.

Sources: proc(5) (`/proc/stat`, `/proc/meminfo`, `/proc/net/dev`, `/proc/self/statm`, `/proc/self/io`), the kernel's
iostats.rst (`/proc/diskstats`), cgroup-v2.rst (`cpu.max`, `cpu.stat`) and sched-bwc.rst (`cpu.cfs_quota_us`),
sysfs-class-infiniband (`port_rcv_data`, in 4 bytes), clock_gettime(2), getrusage(2).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

from stepscope.backends.base import Sink
from stepscope.backends.counters.counting import CountingBackend, Reading, chosen
from stepscope.runtime.flight.triggers.memory_high import ProcessMemory
from stepscope.runtime.session.system import field, groups, number
from stepscope.runtime.settings.arguments import path_argument

_SECTOR = 512
"""Bytes of a sector in diskstats, whatever the device's own are."""
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md")
"""Devices that are made of others, or of memory: what goes through them would be counted twice, or is on no disk."""
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class HostReadings:
    """Reads the figures below `root`, where `/proc` and `/sys` are; each part raises `OSError` where the system does not have it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stat, self._meminfo = root / "proc/stat", root / "proc/meminfo"
        self._diskstats, self._dev = root / "proc/diskstats", root / "proc/net/dev"
        self._statm, self._io = Path("/proc/self/statm"), Path("/proc/self/io")
        self._memory = ProcessMemory(root=root)
        self._groups = [_Group(directory, old, root) for directory, old in groups("cpu", root)]
        self._ports = list((root / "sys/class/infiniband").glob("*/ports/*/counters"))
        self._disks: dict[bytes, bool] = {}
        self._cards: dict[str, bool] = {}

    def cpu(self) -> Iterator[Reading]:
        """Shares in %: of all processors, of one processor for the process, and of what the cgroup may use; and how often the
        processors change threads."""
        lines = self._stat.read_bytes().splitlines()
        user, nice, system, idle, waiting, irq, soft_irq, steal = (int(text) for text in lines[0].split()[1:9])
        processors = sum(line.startswith(b"cpu") for line in lines) - 1
        percent = 100 / _TICK / max(processors, 1)
        busy = user + nice + system + irq + soft_irq + steal
        yield Reading("host cpu %", busy * percent, total=True)
        yield Reading("host user %", (user + nice) * percent, total=True)
        yield Reading("host system %", (system + irq + soft_irq) * percent, total=True)
        yield Reading("host idle %", idle * percent, total=True)
        yield Reading("host waiting for disks %", waiting * percent, total=True)
        yield Reading("host processors", processors)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Reading("process cpu %", time.process_time_ns() / 1e7, total=True)
        yield Reading("process user %", usage.ru_utime * 100, total=True)
        yield Reading("process system %", usage.ru_stime * 100, total=True)
        limited = [(limit, index) for index, group in enumerate(self._groups) if (limit := group.processors())]
        if limited:
            limit, tightest = min(limited)
            used, throttled = self._groups[tightest].seconds()
            yield Reading("cgroup cpu %", used * 100 / limit, total=True)
            yield Reading("cgroup throttled %", throttled * 100, total=True)
        for name, _, value in (line.partition(b" ") for line in lines):
            if name == b"ctxt":
                yield Reading("host context switches /s", int(value), total=True)
            elif name == b"procs_running":
                yield Reading("host runnable threads", int(value))

    def memory(self) -> Iterator[Reading]:
        """Bytes of memory of the machine and of the process."""
        kilobytes: dict[bytes, int] = {}
        for line in self._meminfo.read_bytes().splitlines():
            name, _, value = line.partition(b":")
            kilobytes[name] = int(value.split()[0])
        yield Reading("host memory used", (kilobytes[b"MemTotal"] - kilobytes[b"MemAvailable"]) * 1024)
        yield Reading("host memory available", kilobytes[b"MemAvailable"] * 1024)
        yield Reading("host swap used", (kilobytes[b"SwapTotal"] - kilobytes[b"SwapFree"]) * 1024)
        yield Reading("process memory", int(self._statm.read_bytes().split()[1]) * _PAGE)
        of_groups = [usage for usage in self._memory.read() if usage.what.startswith("memory of the cgroup")]
        if of_groups:
            tightest = max(of_groups, key=lambda usage: usage.share)
            yield Reading("cgroup memory", tightest.used)
            yield Reading("cgroup memory %", tightest.share * 100)

    def disk(self) -> Iterator[Reading]:
        """Bytes in a second, of the machine's disks and of the process."""
        read = written = 0
        for line in self._diskstats.read_bytes().splitlines():
            _, _, name, _, _, sectors_read, _, _, _, sectors_written, *_ = line.split()
            if self._is_disk(name):
                read += int(sectors_read)
                written += int(sectors_written)
        yield Reading("disk read B/s", read * _SECTOR, total=True)
        yield Reading("disk written B/s", written * _SECTOR, total=True)
        own = dict(line.split(b": ") for line in self._io.read_bytes().splitlines())
        yield Reading("process disk read B/s", int(own[b"read_bytes"]), total=True)
        yield Reading("process disk written B/s", int(own[b"write_bytes"]), total=True)

    def network(self) -> Iterator[Reading]:
        """Bytes in a second, of the machine's cards; in a container, of its own interfaces."""
        counts: dict[str, tuple[int, int]] = {}
        for line in self._dev.read_text().splitlines()[2:]:
            name, _, rest = line.partition(":")
            columns = rest.split()
            counts[name.strip()] = (int(columns[0]), int(columns[8]))
        cards = [name for name in counts if self._is_card(name)]
        chosen = [counts[name] for name in cards or counts if name != "lo"]
        yield Reading("network received B/s", sum(received for received, _ in chosen), total=True)
        yield Reading("network sent B/s", sum(sent for _, sent in chosen), total=True)
        if "lo" in counts:
            yield Reading("loopback B/s", counts["lo"][1], total=True)
        if self._ports:
            for what, file in (("received", "port_rcv_data"), ("sent", "port_xmit_data")):
                yield Reading(
                    f"infiniband {what} B/s", sum(4 * (number(port / file) or 0) for port in self._ports), total=True
                )

    def scheduling(self) -> Iterator[Reading]:
        """How often in a second the process was taken off its processors, gave them up, and found a page missing."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        yield Reading("process preempted /s", usage.ru_nivcsw, total=True)
        yield Reading("process waited /s", usage.ru_nvcsw, total=True)
        yield Reading("process page faults /s", usage.ru_minflt, total=True)
        yield Reading("process page faults from disk /s", usage.ru_majflt, total=True)

    def _is_disk(self, name: bytes) -> bool:
        """True if it is a device by itself, and no part of one."""
        if name not in self._disks:
            text = name.decode()
            whole = (self._root / "sys/block" / text.replace("/", "!")).exists()
            self._disks[name] = whole and not text.startswith(_NOT_DISKS)
        return self._disks[name]

    def _is_card(self, name: str) -> bool:
        """True if an interface is a device, and not made of others."""
        if name not in self._cards:
            self._cards[name] = (self._root / "sys/class/net" / name / "device").exists()
        return self._cards[name]


class _Group:
    """A cgroup that may limit processors."""

    def __init__(self, directory: Path, old: bool, root: Path) -> None:
        self._old = old
        self._max, self._stat = directory / "cpu.max", directory / "cpu.stat"
        self._quota, self._period = directory / "cpu.cfs_quota_us", directory / "cpu.cfs_period_us"
        place = directory.relative_to(root / "sys/fs/cgroup" / ("cpu" if old else ""))
        self._usage = root / "sys/fs/cgroup/cpuacct" / place / "cpuacct.usage"

    def processors(self) -> float | None:
        """Number of processors that it may use; `None` for any number."""
        if self._old:
            quota, period = number(self._quota), number(self._period)
        else:
            try:
                first, _, second = self._max.read_text().partition(" ")
            except OSError:  # the outermost group has none
                return None
            quota, period = (None if first == "max" else int(first)), int(second)
        return quota / period if quota is not None and quota > 0 and period else None

    def seconds(self) -> tuple[float, float]:
        """Seconds of processors that it used, and seconds in which it waited because of the limit."""
        if self._old:
            return (number(self._usage) or 0) / 1e9, field(self._stat, b"throttled_time") / 1e9
        return field(self._stat, b"usage_usec") / 1e6, field(self._stat, b"throttled_usec") / 1e6


HostPart = Literal["cpu", "memory", "disk", "network", "scheduling"]
PARTS: tuple[HostPart, ...] = get_args(HostPart)


class HostBackend(CountingBackend):
    """Records how busy the machine is, and this process on it, as counters of category `host`. It reads /proc, on a thread
    of its own. Where a cgroup limits the process, there are counters of that as well.

    Args:
        what: which figures: `cpu` (shares in %, and context switches), `memory` (bytes), `disk` and `network` (bytes in a
            second), `scheduling` (how often in a second the process was preempted, waited, and found a page missing).
        interval: seconds between two samples. The kernel counts the time of processors in hundredths of a second.
        root: where /proc and /sys of the machine are, if that is elsewhere, as in a container.
        name: of this source.

    Raises:
        ValueError: for a part that there is none of, with the nearest; if the interval is not above 0.
    """

    category = "host"

    def __init__(
        self,
        what: Sequence[HostPart] = PARTS,
        interval: float = 0.1,
        *,
        root: str | os.PathLike[str] = "/",
        name: str = "host",
    ) -> None:
        super().__init__(name, interval)
        self._parts = chosen("what", what, PARTS)
        self._readings = HostReadings(Path(path_argument("root", root)))

    def open(self, sink: Sink) -> None:
        """Starts the thread.

        Raises:
            BackendError: if the system has none of the figures.
        """
        problems = [problem for part in self._parts if (problem := self._problem_of(part))]
        if len(problems) == len(self._parts):
            raise self._nothing(problems[0])
        super().open(sink)

    def _read(self) -> Iterator[Reading]:
        for part in self._parts:
            try:
                yield from getattr(self._readings, part)()
            except (OSError, ValueError, KeyError, IndexError) as error:
                self._note(_text(part, error))

    def _rates(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        # Ticks of the kernel and our interval are not cut at the same moment.
        shares = {
            name: min(rate, 100.0) for name, rate in rates.items() if name.startswith("host") and name.endswith("%")
        }
        return {**rates, **shares}

    def _problem_of(self, part: str) -> str:
        try:
            found = list(getattr(self._readings, part)())
        except (OSError, ValueError, KeyError, IndexError) as error:
            return _text(part, error)
        return "" if found else f"{part}: the system has no figures"


def _text(part: str, error: Exception) -> str:
    return f"{part} cannot be read: {error}" if isinstance(error, OSError) else f"{part} cannot be read: {error!r}"
