"""Checks of `stepscope doctor` on devices and counters of the processor, and what helps where they are refused.

Sources: <https://developer.nvidia.com/ERR_NVGPUCTRPERM>, the user guide of NVIDIA's container toolkit, and
<https://docs.docker.com/engine/security/seccomp/>.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from stepscope.backends.counters import nvml, perf
from stepscope.backends.counters.nvml import Nvml
from stepscope.cli.machine.trial import TorchTrial
from stepscope.runtime.display.text_table import human_count

State = Literal["ok", "limited", "no"]
PROC: Final = Path("/proc")
CUDA: Final = "libcuda.so.1"
"""The part of NVIDIA's driver that programs compute with."""
_NVIDIA: Final = "0x10de"
"""NVIDIA's number as a vendor of PCI devices."""
_CONTAINER = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part: whether it works, and what helps if it does not."""

    name: str
    state: State
    text: str
    cure: str = ""


def nvidia(trial: TorchTrial | None, proc: Path = PROC, pci: Path = Path("/sys/bus/pci/devices"),
           library: str = nvml.LIBRARY, cuda: str = CUDA) -> Check:  # fmt: skip
    """Says whether NVIDIA's devices can be read, and their kernels recorded.

    Args:
        trial: of recording with torch.
        proc: where the kernel's files are.
        pci: where it lists devices.
        library: NVIDIA's management library.
        cuda: the library that programs compute with.
    """
    name = "NVIDIA devices"
    loaded = (proc / "driver" / "nvidia" / "version").exists()
    why = nvml.refusal(library)
    if why and loaded:
        return Check(name, "no", f"the machine's driver is loaded, but: {why}", f"in a container: {_CONTAINER}")
    if why:
        present = any(_text(vendor).strip() == _NVIDIA for vendor in pci.glob("*/vendor"))
        return Check(name, "no", f"{why}{'; there is a device' if present else ''}", present * "install the driver")
    opened = Nvml(library)
    count = human_count(opened.count, "device")
    opened.close()
    text = f"{count}: how busy, memory, power (--backend nvml)"
    if not _loads(cuda):
        return Check(name, "limited", f"{text}; programs cannot use them: no {cuda}", f"in a container: {_CONTAINER}")
    if trial is None or trial.kernels is not False:
        return Check(name, "ok", text)
    return Check(name, "limited", f"{text}; torch's engine recorded no kernel (CUPTI)", _kernels_cure(proc))


def _kernels_cure(proc: Path) -> str:
    """What helps where CUPTI, by which torch records kernels, is refused."""
    if re.search(r"^RmProfilingAdminOnly: 1", _text(proc / "driver" / "nvidia" / "params"), re.MULTILINE):
        return (
            "the driver lets only administrators profile: docker run --cap-add SYS_ADMIN, or on the machine "
            'echo "options nvidia NVreg_RestrictProfilingToAdminUsers=0" >/etc/modprobe.d/nvidia-profiling.conf, and restart it'
        )
    return "end other profilers of this device (nsys, ncu, dcgm), and see what torch says of CUPTI"


def processor_counters(refusals: Mapping[str, str] | None = None, paranoid: str | None = None) -> Check:
    """Says which counters of the processor can be read.

    Args:
        refusals: the events that cannot be counted, each with the reason; default: those of this machine.
        paranoid: the value of `kernel.perf_event_paranoid`; default: this machine's.
    """
    name = "processor counters"
    counted = [event for group in perf.DEFAULT for event in perf.GROUPS[group]]
    refused = perf.refusals(perf.DEFAULT) if refusals is None else refusals
    beside = f"kernel.perf_event_paranoid is {perf.paranoia() if paranoid is None else paranoid}"
    if not refused:
        return Check(name, "ok", f"instructions, cycles, misses (--backend perf); {beside}")
    reasons = dict.fromkeys(reason.removeprefix(f"{event}: ") for event, reason in refused.items())
    state: State = "no" if len(refused) == len(counted) else "limited"
    return Check(name, state, f"hidden: {', '.join(refused)}; {beside}", "; ".join(reasons))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
