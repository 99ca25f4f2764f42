"""Options of MindSpore's profiler that ask for counters: those that the machine has are in the timeline."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.backends.counters.nvml import refusal
from stepscope.backends.counters.perf import GROUPS, refusals
from stepscope.compat.mindspore.sources.backends import HARDWARE, HOST, METRICS
from stepscope.mindspore import AicoreMetrics, HostSystem, Profiler
from tests.support import mindspore_output as output
from tests.support import nvml
from tests.support.basics import ROOT
from tests.support.launch import run_to_end

HIDDEN = len(refusals(HARDWARE)) == sum(len(GROUPS[group]) for group in HARDWARE)
"""Whether this machine hides all counters of its processor."""


def counters(directory: Path, **options: Any) -> set[str]:
    """Names of the counters of a recording of a few steps."""
    with output.recording(directory, **options) as profiler:
        for _ in range(3):
            time.sleep(0.06)
            profiler.step()
    (window,) = profiler.directories
    return {event["name"] for event in output.events(window) if event.get("ph") == "C"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("cpu", {"host cpu %", "process cpu %"}),
        ("mem", {"host memory used", "process memory"}),
        ("disk", {"disk read B/s", "process disk written B/s"}),
        ("network", {"network received B/s", "network sent B/s"}),
        ("osrt", {"process preempted /s", "process page faults /s"}),
    ],
)
def test_the_host(tmp_path: Path, asked: str, expected: set[str]) -> None:
    """Each part that is asked for, and no other."""
    found = counters(tmp_path, host_sys=[asked])
    assert expected <= found
    others = counters(tmp_path, host_sys=[each for each in HostSystem if each.value != asked])
    assert others and not expected & others


def test_network_cards(tmp_path: Path) -> None:
    """What goes through them, once, whoever asks."""
    assert counters(tmp_path, sys_io=True) == counters(tmp_path, sys_io=True, host_sys=["network"])
    assert "network sent B/s" in counters(tmp_path, sys_io=True)


@pytest.mark.checklist("A3", "C8", "C9")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"aicore_metrics": "PipeUtilization"}, "instructions per cycle"),
        ({"aicore_metrics": "ResourceConflictRatio"}, "branch misses %"),
        ({"aicore_metrics": 6}, "cache misses %"),
        ({"l2_cache": True}, "cache misses %"),
    ],
)
def test_the_processor(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    """Counters in place of those of an Ascend core; a machine that hides them is said to, when the profiler is made."""
    limitations = Profiler(output_path=tmp_path, start_profile=False, **options).limitations
    assert bool(limitations) == HIDDEN
    found = counters(tmp_path, **options)
    if HIDDEN:
        assert "gives nothing on CPU: instructions: " in limitations[0] and not found
    else:
        assert expected in found


def test_every_member_has_counters() -> None:
    """None is ignored silently."""
    assert set(METRICS) == set(AicoreMetrics) - {AicoreMetrics.AiCoreNone}
    assert set(HOST) == set(HostSystem)


@pytest.mark.checklist("C9")
def test_devices(tmp_path: Path) -> None:
    """Rates of PCIe and the use of memory come of the driver, where there is one; else it is said that there is none."""
    program = """
import sys; sys.path.append(sys.argv[1])
import stepscope as sc
from stepscope.compat.mindspore.sources.backends import limits
from stepscope.compat.mindspore.sources.backends import choose
from stepscope.compat.mindspore.options.options import read_options
from stepscope.compat.mindspore.sources.device import DeviceTarget
options, target = read_options({"pcie": True, "hbm_ddr": True, "sys_interconnection": True}, "test"), DeviceTarget(device="GPU")
print(len(limits(options.requested(), target)))
memory = sc.exporters.MemoryExporter()
with sc.trace(backends=choose(options, target), exporters=[memory], options=sc.Options(journal=False)):
    import time; time.sleep(0.3)
print(*sorted(set(memory.names(kind=sc.exporters.Kind.COUNTER))), sep=",")
"""
    nvml.build(tmp_path)
    names = [f"gpu{number} {what}busy %" for number in (0, 1) for what in ("", "memory ")]
    names += [f"gpu0 {link} {way} B/s" for link in ("pcie", "nvlink") for way in ("received", "sent")]
    for path, said in ((str(tmp_path), f"0\n{','.join(sorted(names))}\n"), ("", "3\n\n")):
        if not path and not refusal():
            continue  # this machine has a driver of its own
        environment = {**os.environ, "LD_LIBRARY_PATH": path}
        done = run_to_end(
            [sys.executable, "-c", program, str(ROOT)], environment=environment, timeout=100, cwd=tmp_path
        )
        assert (done.returncode, done.stdout) == (0, said), done.stderr
