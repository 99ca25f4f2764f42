"""Checks of `stepscope doctor` on devices and counters, by directories that stand for those of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.backends.counters import perf
from stepscope.backends.counters.perf import permission
from stepscope.cli.machine.doctor import nvidia, processor_counters
from stepscope.cli.machine.trial import Trial
from tests.support import nvml

NO_KERNELS = Trial(version="2.13.0", mode="kineto", device="H200", kernels=False)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that stands for that of NVIDIA's driver."""
    return str(nvml.build(tmp_path_factory.mktemp("nvml")))


def proc(directory: Path, params: str = "") -> Path:
    """A directory as /proc is where the driver is loaded."""
    place = directory / "driver" / "nvidia"
    place.mkdir(parents=True)
    (place / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1\n")
    (place / "params").write_text(params)
    return directory


def test_a_container_without_the_libraries(tmp_path: Path, library: str) -> None:
    """The driver is loaded, and the container has neither its library for management nor that for computing."""
    loaded = proc(tmp_path)
    check = nvidia(None, loaded, tmp_path, "libno-such.so", "libno-such.so")
    assert check.state == "no" and "driver is loaded" in check.text and "--gpus all" in check.cure
    check = nvidia(None, loaded, tmp_path, library, "libno-such.so")
    assert check.state == "limited" and "no libno-such.so" in check.text
    assert "NVIDIA_DRIVER_CAPABILITIES=compute" in check.cure


def test_a_device_without_a_driver(tmp_path: Path) -> None:
    """The PCI bus has a device of NVIDIA's; where it has none, the driver is for those who have one."""
    (tmp_path / "0000:01:00.0").mkdir()
    assert nvidia(None, tmp_path, tmp_path, "libno-such.so").cure.startswith(
        "only with such a device: install its driver"
    )
    (tmp_path / "0000:01:00.0" / "vendor").write_text("0x10de\n")
    check = nvidia(None, tmp_path, tmp_path, "libno-such.so")
    assert check.state == "no" and "there is a device" in check.text and check.cure == "install the driver"


@pytest.mark.parametrize(
    ("params", "cure"),
    [
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("RmProfilingAdminOnly: 0\n", "end other profilers"),
    ],
)
def test_kernels_that_are_not_recorded(params: str, cure: str, tmp_path: Path, library: str) -> None:
    """CUPTI refuses: the driver's parameters say whether it is for administrators alone."""
    check = nvidia(NO_KERNELS, proc(tmp_path, params), tmp_path, library, library)
    assert check.state == "limited" and "no kernel" in check.text and cure in check.cure


def test_devices_that_can_be_recorded(tmp_path: Path, library: str) -> None:
    """Kernels were recorded, or torch is not there."""
    for trial in (None, Trial(device="H200", kernels=True)):
        assert nvidia(trial, proc(tmp_path / str(trial)), tmp_path, library, library).state == "ok"


def test_counters_that_are_hidden() -> None:
    """Those are named, and each reason once, with what shows them."""
    hidden = [event for group in perf.DEFAULT for event in perf.GROUPS[group]]
    refusals = {event: f"{event}: it is not allowed: {permission('4')}" for event in hidden}
    check = processor_counters(refusals, "4")
    assert check.state == "no" and all(event in check.text for event in hidden)
    assert check.cure.count("sysctl kernel.perf_event_paranoid=2") == 1 and "(it is 4)" in check.cure
    check = processor_counters({hidden[0]: f"{hidden[0]}: {permission('2')}"}, "2")
    assert check.state == "limited" and "--cap-add PERFMON" in check.cure
    assert permission("-1") == permission("unknown") == permission("2")
    assert processor_counters({}, "1").state == "ok"
