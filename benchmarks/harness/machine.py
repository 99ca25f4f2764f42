"""The machine that was measured on. Nothing that names it or a person."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import msgspec

PACKAGES = ("stepscope", "torch", "viztracer", "opentelemetry-sdk", "nvtx", "perfetto", "numpy", "uvloop")


class Machine(msgspec.Struct, frozen=True):
    """Facts that figures depend on."""

    processor: str
    cores: int
    memory: int
    """Bytes."""
    kernel: str
    python: str
    packages: dict[str, str]
    """Versions; empty for what is not installed."""
    load: float
    """Load average of the minute before: what else ran, or had just run."""

    @classmethod
    def this(cls) -> Machine:
        """Where we are."""
        return cls(
            processor=_processor(),
            cores=os.cpu_count() or 1,
            memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            kernel=f"{platform.system()} {platform.release()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            packages={name: _version(name) for name in PACKAGES},
            load=os.getloadavg()[0],
        )


def file_system(path: Path) -> str:
    """Type of the file system that holds a path. Source: proc(5), /proc/[pid]/mountinfo; the longest mount wins."""
    place, found = path.resolve(), (0, "unknown")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        point = mount.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(point) and len(point) >= found[0]:
            found = len(point), kind.split()[0]
    return found[1]


def _processor() -> str:
    """Source: proc(5), /proc/cpuinfo, `model name` on x86; elsewhere the architecture must do."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
