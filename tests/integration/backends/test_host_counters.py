"""Counters of the machine, of its processor and of its devices: they have the values that the system has."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.backends.collecting import CollectingSink
from stepscope.backends.conformance import CHECKS, Case
from stepscope.backends.counters import perf
from stepscope.backends.counters.counting import CountingBackend
from stepscope.backends.counters.host import HostReadings
from stepscope.backends.counters.nvml import refusal
from stepscope.backends.counters.perf import refusals
from stepscope.runtime.events import strings
from tests.support import nvml
from tests.support.basics import missing
from tests.support.messages import refused

LATE = 1_000_000_000
"""A sample is taken when its thread gets a turn."""


@pytest.fixture
def perf_allowed() -> None:
    """For tests that take perf_event_open."""
    problems = refusals(["software"])
    if problems:
        missing("perf_event_open", f"{next(iter(problems.values()))}.")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_of_the_host(check: Callable[[Case], None]) -> None:
    """Each promise of a backend."""
    check(Case(lambda: sc.backends.HostBackend(interval=0.002), tolerance=LATE))


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_of_the_processor(check: Callable[[Case], None]) -> None:
    """Each promise of a backend."""
    check(Case(lambda: sc.backends.PerfBackend(["software"], 0.002), tolerance=LATE))


def record(
    backend: CountingBackend,
    work: Callable[[], object],
    done: Callable[[dict[str, list[float]]], bool],
    directory: Path,
) -> dict[str, list[float]]:
    """Does some work again and again until the counters show what is looked for; every value of each counter."""
    memory = sc.exporters.MemoryExporter()
    options = sc.Options(journal=False, drain_interval=0.02)
    with sc.trace(backends=[backend], exporters=[memory], output_dir=directory, options=options) as profiler:
        ending = time.monotonic() + 60
        while not done(values(memory)):
            assert time.monotonic() < ending, values(memory)
            work()
            profiler.step()
    profiler.raise_errors()
    return values(memory)


def values(memory: sc.exporters.MemoryExporter) -> dict[str, list[float]]:
    """The values of each counter so far, by name."""
    found: dict[str, list[float]] = {}
    for event in memory.events(kind=sc.exporters.Kind.COUNTER):
        found.setdefault(strings.name_of(event), []).append(float(event["value"]))
    return found


@pytest.mark.checklist("C9")
def test_counters_show_the_work_of_the_process(output_dir: Path) -> None:
    """It uses a processor, and writes to the disk if its directory is on one."""
    file = output_dir.with_suffix(".bin")

    def work() -> None:
        file.write_bytes(b"x" * (1 << 20))
        ending = time.thread_time() + 0.05
        while time.thread_time() < ending:
            pass

    def written() -> int:
        return next(
            int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if "write_bytes" in line
        )

    before = written()
    work()
    on_a_disk = written() > before  # and not in memory

    def busy(found: dict[str, list[float]]) -> bool:
        disk = max(found.get("process disk written B/s", [0])) > 0
        switched = max(found.get("host context switches /s", [0])) > 100  # it is no share
        return max(found.get("process cpu %", [0])) > 20 and switched and (disk or not on_a_disk)

    found = record(sc.backends.HostBackend(interval=0.01), work, busy, output_dir)
    assert all(0 <= value <= 100 for value in found["host cpu %"] + found["host waiting for disks %"])
    assert max(found["process user %"]) > 10 and min(found["process system %"]) >= 0
    assert max(found["process memory"]) > 10 << 20
    total = max(found["host memory used"]) + max(found["host memory available"])
    assert total >= max(found["process memory"])
    for name in ("disk read B/s", "network sent B/s", "process waited /s", "process page faults /s"):
        assert found[name] and min(found[name]) >= 0, name


def test_only_requested_groups_are_recorded(output_dir: Path) -> None:
    """By parts; one that there is not is named with the nearest."""
    found = record(sc.backends.HostBackend(["memory"], 0.005), lambda: time.sleep(0.01), bool, output_dir)
    assert all("memory" in name or "swap" in name for name in found)
    with refused(ValueError, "netwrk", "network"):
        sc.backends.HostBackend(["cpu", "netwrk"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    with refused(ValueError, "groups", "branch", "cache", "ipc", "software"):
        sc.backends.PerfBackend([])


def test_a_window_that_is_shorter_than_the_interval(output_dir: Path) -> None:
    """It has its levels at its begin, and its rates over the whole of it; nothing is measured across a pause."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(
        schedule=sc.schedule(wait=1, warmup=0, active=1, repeat=2),
        backends=[sc.backends.HostBackend(["cpu", "memory"], 3600)],
        exporters=[memory],
        output_dir=output_dir,
        options=sc.Options(journal=False),
    ) as profiler:
        for _ in range(4):
            ending = time.monotonic() + 0.3
            while time.monotonic() < ending:
                pass
            profiler.step()
    profiler.raise_errors()
    assert len(memory.windows) == 2
    for window in memory.windows:
        events = memory.events(window.index, sc.exporters.Kind.COUNTER)
        found = {strings.name_of(event): float(event["value"]) for event in events}
        assert len(events) == len(found) and {"host memory used", "process cpu %", "host cpu %"} <= set(found)
        assert found["process cpu %"] > 0
        assert all(window.start_ns <= at < window.end_ns for at in events["ts"].tolist())


def write(root: Path, files: dict[str, str]) -> None:
    """Writes files below a directory."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


MACHINE = {
    "proc/stat": "cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 50 0 25 400 25 0 0 0 0 0\ncpu1 50 0 25 400 25 0 0 0 0 0\nintr 1 2\nctxt 700\nprocs_running 3\n",
    "proc/meminfo": "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
    "proc/diskstats": (
        " 8 0 sda 1 0 10 0 1 0 20 0 0 0 0\n 8 1 sda1 1 0 10 0 1 0 20 0 0 0 0\n"
        " 7 0 loop0 1 0 99 0 1 0 99 0 0 0 0\n 253 0 dm-0 1 0 10 0 1 0 20 0 0 0 0\n"
    ),
    "proc/net/dev": "Inter-|\n face |\n    lo: 5 1 0 0 0 0 0 0 5 1 0\n  eth0: 70 1 0 0 0 0 0 0 30 1 0\n docker0: 9 1 0 0 0 0 0 0 9 1 0\n",
    "sys/block/sda/size": "1", "sys/block/loop0/size": "1", "sys/block/dm-0/size": "1",
    "sys/class/net/eth0/device/vendor": "", "sys/class/net/docker0/address": "",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data": "25\n",
    "sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data": "50\n",
}  # fmt: skip


def readings(root: Path, *parts: str) -> dict[str, float]:
    """The counters of a machine that has these files."""
    found = HostReadings(root)
    return {reading.name: reading.value for part in parts for reading in getattr(found, part)()}


def test_totals_of_the_system(tmp_path: Path) -> None:
    """Nothing is counted twice: parts of disks, disks made of disks, interfaces made of cards."""
    write(tmp_path, MACHINE)
    found = readings(tmp_path, "cpu", "memory", "disk", "network")
    assert (found["host cpu %"], found["host waiting for disks %"]) == (75, 25)
    assert (found["host user %"], found["host system %"], found["host idle %"]) == (50, 25, 400)
    assert (found["host processors"], found["host context switches /s"], found["host runnable threads"]) == (2, 700, 3)
    assert (found["host memory used"], found["host swap used"]) == (400 * 1024, 6 * 1024)
    assert (found["disk read B/s"], found["disk written B/s"]) == (5120, 10240)
    assert (found["network received B/s"], found["network sent B/s"], found["loopback B/s"]) == (70, 30, 5)
    assert (found["infiniband received B/s"], found["infiniband sent B/s"]) == (100, 200)
    assert not [name for name in found if name.startswith("cgroup")]


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 3000000\nthrottled_usec 500000\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/box/memory.max": "1000\n",
            "sys/fs/cgroup/pod/box/memory.current": "600\n",
            "sys/fs/cgroup/pod/box/memory.stat": "anon 1\ninactive_file 100\n",
        },
        {
            "proc/self/cgroup": "3:cpu,cpuacct:/pod\n2:memory:/pod\n0::/\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/pod/cpu.stat": "nr_throttled 1\nthrottled_time 500000000\n",
            "sys/fs/cgroup/cpuacct/pod/cpuacct.usage": "3000000000\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "600\n",
            "sys/fs/cgroup/memory/pod/memory.stat": "total_inactive_file 100\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_limits_of_groups(tmp_path: Path, files: dict[str, str]) -> None:
    """Shares are of what the group may use, at whatever level the limit is."""
    write(tmp_path, MACHINE | files)
    found = readings(tmp_path, "cpu", "memory")
    assert (found["cgroup cpu %"], found["cgroup throttled %"]) == (200, 50)
    assert (found["cgroup memory"], found["cgroup memory %"]) == (500, 50)


def test_unreadable_counters_are_noted(tmp_path: Path, output_dir: Path) -> None:
    """The other parts are recorded; if there are none, the error says why."""
    write(tmp_path, {name: text for name, text in MACHINE.items() if name != "proc/diskstats"})
    backend = sc.backends.HostBackend(["disk", "memory"], 0.005, root=tmp_path)
    assert "host memory used" in record(backend, lambda: time.sleep(0.01), bool, output_dir)
    assert [note for note in backend.report().notes if "disk cannot be read" in note and "diskstats" in note]
    with refused(sc.errors.BackendError, "host", "cpu", tmp_path / "no" / "proc" / "stat"):
        sc.backends.HostBackend(["cpu", "disk"], root=tmp_path / "no").open(CollectingSink())


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.checklist("A3", "C8")
def test_counters_of_the_processor(output_dir: Path) -> None:
    """All threads are counted, those that begin later as well; what the machine hides is noted."""
    backend = sc.backends.PerfBackend(["ipc", "cache", "branch", "software"], 0.01)

    def spin() -> None:
        ending = time.thread_time() + 0.1
        while time.thread_time() < ending:
            pass

    def work() -> None:
        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()

    def seen(found: dict[str, list[float]]) -> bool:
        return max(found.get("processor time /s", [0])) > 2e8

    found = record(backend, work, seen, output_dir)
    hidden = refusals(["ipc", "cache", "branch"])
    assert ("instructions per cycle" in found) == ("cycles" not in hidden and "instructions" not in hidden)
    for event, reason in hidden.items():
        assert reason in backend.report().notes and f"{event} /s" not in found
    if not hidden:
        assert max(found["instructions /s"]) > 1e6
        assert all(0 <= share <= 100 for share in found["branch misses %"])


@pytest.mark.usefixtures("perf_allowed")
def test_counts_are_exact() -> None:
    """Pages that are touched for the first time are faults, each one."""
    with mmap.mmap(-1, 512 * mmap.PAGESIZE) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        file = perf.open_event("page faults", 0)
        before = file.read()
        for page in range(512):
            pages[page * mmap.PAGESIZE] = 1
        after = file.read()
    assert 512 <= after - before < 1024


@pytest.mark.usefixtures("perf_allowed")
def test_unavailable_processor_counters_are_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event that there is not, a thread that has ended, and a profiler with nothing to count."""
    with refused(ProcessLookupError, "4194305"):
        perf.open_event("page faults", (1 << 22) + 1)
    monkeypatch.setitem(perf.EVENTS, "page faults", perf.Event(1, 999))
    with refused(perf.PerfError, "page faults"):
        perf.open_event("page faults", 0)
    assert perf.paranoia().lstrip("-").isdigit()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that stands for that of NVIDIA's driver."""
    return str(nvml.build(tmp_path_factory.mktemp("nvml")))


@pytest.fixture
def begun(library: str) -> Iterator[Callable[[], int]]:
    """How often the library is in use; it must not be at the end."""
    loaded: Any = ctypes.CDLL(library)
    yield loaded.begun_now
    assert loaded.begun_now() == 0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract_of_devices(check: Callable[[Case], None], library: str, begun: Callable[[], int]) -> None:
    """Each promise of a backend."""
    check(Case(lambda: sc.backends.NvmlBackend(interval=0.002, library=library), tolerance=LATE))


@pytest.mark.checklist("C9")
def test_counters_of_devices(library: str, begun: Callable[[], int], output_dir: Path) -> None:
    """Each device has its own; what one does not support is noted once, and the rest goes on."""
    backend = sc.backends.NvmlBackend(interval=0.005, library=library)

    def enough(found: dict[str, list[float]]) -> bool:
        return len(found.get("gpu0 memory used", ())) > 3

    found = record(backend, lambda: time.sleep(0.01), enough, output_dir)
    assert set(found["gpu0 busy %"]) == {40} and set(found["gpu1 busy %"]) == {50}
    assert set(found["gpu0 pcie sent B/s"]) == {1.5e6} and set(found["gpu0 pcie received B/s"]) == {2.5e6}
    used = found["gpu0 memory used"]
    assert used == sorted(set(used)) and used[0] > 10 << 30
    assert max(found["gpu0 nvlink sent B/s"]) > 4 << 20 and set(found["gpu0 nvlink received B/s"]) == {0}
    assert "gpu1 pcie sent B/s" not in found and "gpu1 nvlink sent B/s" not in found and "gpu1 memory busy %" in found
    assert backend.report().notes == (
        "power of gpu0 cannot be read: nvmlDeviceGetPowerUsage: this driver does not have it",
        "pcie of gpu1 cannot be read: nvmlDeviceGetPcieThroughput: Not Supported",
        "nvlink of gpu1 cannot be read: nvmlDeviceGetFieldValues: Not Supported",
        "power of gpu1 cannot be read: nvmlDeviceGetPowerUsage: this driver does not have it",
    )


def test_a_device_is_chosen_by_its_number(library: str, begun: Callable[[], int], output_dir: Path) -> None:
    """Chosen by number; one that there is not is named with those that there are."""
    backend = sc.backends.NvmlBackend(["utilization"], 0.005, devices=[1], library=library)
    assert record(backend, lambda: time.sleep(0.01), bool, output_dir).keys() == {"gpu1 busy %", "gpu1 memory busy %"}
    with refused(sc.errors.BackendError, "nvml", "device 2", "0, 1"):
        sc.backends.NvmlBackend(devices=[2], library=library).open(CollectingSink())


def test_without_a_driver(library: str, begun: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Why there is nothing: no library, or one whose driver is not loaded."""
    assert refusal(library) == ""
    assert refusal("libno-such-driver.so.1").startswith("NVIDIA's driver is not there: libno-such-driver.so.1: ")
    monkeypatch.setenv("TEST_NVML_BROKEN", "1")
    assert refusal(library) == "[Errno 9] nvmlInit_v2: Driver Not Loaded"
