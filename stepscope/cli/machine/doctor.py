"""`stepscope doctor`: says what can be recorded here, why not, and what helps."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from stepscope.backends.counters import nvml, perf
from stepscope.backends.counters.nvml import Nvml
from stepscope.backends.torch.kineto.symbols import TRIED_VERSIONS
from stepscope.cli.common import opening
from stepscope.cli.common.messages import Progress, add_json, print_json
from stepscope.cli.machine.trial import SPAN, TORCH, Trial
from stepscope.runtime import _core
from stepscope.runtime.control.entry_points.environment import options_from_environment, options_in_effect, with_signals
from stepscope.runtime.display.text_table import human_count, printable
from stepscope.runtime.errors import ControlError, SessionError
from stepscope.runtime.files.paths import absolute, can_create_in
from stepscope.runtime.lifecycle.output_directory import RUNS
from stepscope.runtime.options import Options
from stepscope.runtime.recovery.sweep import KilledSession
from stepscope.runtime.session.directory import PREFIX, places
from stepscope.runtime.version import VERSION

HELP = "say what can be recorded here, and why not"
DESCRIPTION = """\
Says what stepscope can record on this machine and in this environment: a line for each part, with the reason if something
is missing, and what helps. It records a span, and operators of torch if that is installed, in a process of its own.
"""

EPILOG = """\
examples:
  stepscope doctor
  stepscope doctor --json | jq '.checks[] | select(.state != "ok")'

exit codes: 0 recording works, 1 it does not, 2 wrong usage
"""

TRIAL_S = 120.0
"""Seconds after which the trial is ended: importing torch from a slow network disk takes a minute."""
MOST_RUNS = 5
"""Killed runs that are named."""
FRAMEWORKS: Mapping[str, str] = {
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "keras": "keras",
    "composer": "mosaicml",
    "mindspore": "mindspore",
}
"""Modules that a module of stepscope with the same name is for, and their distributions."""
_NOT_FOR_USERS = ("bench", "dev", "docs")
"""Extras of developers."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[([\w,-]+)\])?([^;]*)(?:;.*extra == [\"']([\w-]+)[\"'].*)?")

_MARKS: Mapping[State, tuple[str, str]] = {"ok": ("✓", "green"), "limited": ("!", "yellow"), "no": ("✗", "red")}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_json(parser, "it")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    with Progress("recording a span, and operators of torch"):
        trial, torch = _trials()
    worked = "a span was recorded, and read from the journal"
    records = Check("recording", "no" if trial.problem else "ok", trial.problem or worked)
    environment = _environment()
    checks = (
        _python(),
        records,
        environment,
        *_memory(),
        _directory(),
        *_sessions(),
        _zstd(),
        _torch(torch),
        nvidia(torch),
        processor_counters(),
        *_frameworks(),
        *_extras(),
    )
    works = "no" not in (records.state, environment.state)
    if arguments.json:
        print_json({"records": works, "checks": checks})
    elif sys.stdout.isatty():
        _show(checks)
    else:
        for check in checks:
            cure = f"; {check.cure}" if check.cure else ""
            print(f"{check.state:8}{check.name}: {printable(check.text)}{cure}")
    return 0 if works else 1


def _show(checks: tuple[Check, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # commands are copied
    for check in checks:
        mark, style = _MARKS[check.state]
        text = Text(printable(check.text)).append(f"\n{check.cure}" if check.cure else "", style="cyan")
        table.add_row(Text(mark, style), Text(check.name, "bold"), text)
    Console(highlight=False).print(table)


def _trials() -> tuple[Trial, Trial | None]:
    """The results of a trial recording in another process; without torch's if that process ended before."""
    # The variables are for the user's programs, and have a line of their own.
    ours = ("STEPSCOPE_OPTIONS", "STEPSCOPE_JOIN", "STEPSCOPE_SESSION")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-P", "-m", "stepscope.cli.machine.trial"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=TRIAL_S)
            ended = f"it ended with {process.returncode}: {(errors.strip().splitlines() or ['no message'])[-1]}"
        except subprocess.TimeoutExpired:
            process.kill()
            printed, ended = process.communicate()[0], f"it did not end in {TRIAL_S:.0f} s"
    span, torch = (
        next((line.removeprefix(begin) for line in printed.splitlines() if line.startswith(begin)), "")
        for begin in (SPAN, TORCH)
    )
    found = [msgspec.json.decode(each, type=Trial) if each else Trial(problem=ended) for each in (span, torch)]
    return found[0], found[1]


def _python() -> Check:
    core = Path(str(_core.__file__))
    built = datetime.fromtimestamp(core.stat().st_mtime)
    return Check(
        "stepscope",
        "ok",
        f"{VERSION} on Python {platform.python_version()}, {sys.executable}; native core {core}, built {built:%Y-%m-%d}",
    )


def _environment() -> Check:
    try:
        environment = options_from_environment()
        with_signals(Options())
    except ControlError as error:
        return Check("environment", "no", str(error), "correct it, or unset the variable: profilers do not start")
    if environment is not None and not environment.enabled:
        return Check("environment", "limited", "STEPSCOPE_OPTIONS has enabled: false", "unset it: profilers stay off")
    found = [name for name in ("STEPSCOPE_OPTIONS", "STEPSCOPE_SIGNALS", "STEPSCOPE_JOIN") if os.environ.get(name)]
    return Check("environment", "ok", f"followed: {', '.join(found)}" if found else "no variable of stepscope is set")


def _memory() -> Iterator[Check]:
    """The directory for rings, and its free room."""
    try:
        options = options_in_effect(Options())
    except ControlError:  # it has a line of its own
        options = Options()
    place = next(places(options.session_dir))
    try:
        about = os.statvfs(place)
    except OSError as error:
        yield Check(
            place, "limited", f"{error.strerror}; threads record into the directory for temporary files instead",
            "mount it, or set Options.session_dir to a place in memory",
        )  # fmt: skip
        return
    total, free = about.f_frsize * about.f_blocks, about.f_frsize * about.f_bavail
    text = (
        f"{total / 2**20:,.0f} MiB, {free / 2**20:,.0f} MiB free; a run takes {options.memory_bytes >> 20} MiB at most"
    )
    if free < options.memory_bytes:
        yield Check(place, "limited", text, "make it larger (docker run --shm-size=1g), or lower Options.memory_bytes")
    else:
        yield Check(place, "ok", text)


def _directory() -> Check:
    place = absolute(RUNS)
    if can_create_in(RUNS):
        return Check("runs", "ok", f"are written to {place}")
    return Check(
        "runs", "limited", f"{place} cannot be written; they go to the directory for temporary files",
        "change the working directory, or name one: --out, output_dir",
    )  # fmt: skip


def _sessions() -> Iterator[Check]:
    """Killed runs that can be recovered: those below the working directory first, then the newest."""
    found: dict[str, tuple[bool, float, str, Path]] = {}
    for directory in (session for place in places(None) for session in Path(place).glob(f"{PREFIX}*")):
        try:
            killed = KilledSession.of(directory)
        except (OSError, ValueError, SessionError):
            continue  # another user's, or removed meanwhile
        if killed is None:
            continue
        for path, _ in killed.unrecovered:
            run = opening.shown(path.parent)
            found[run] = (run.startswith(("..", "/")), -killed.last_used, run, directory)
    for _, _, run, directory in sorted(found.values())[:MOST_RUNS]:
        cure = f"stepscope recover --remove-session {shlex.quote(run)}"
        yield Check(
            "killed run", "limited", f"{run} was killed and can be recovered: its last moments are in {directory}", cure
        )
    if len(found) > MOST_RUNS:
        yield Check("killed runs", "limited", f"{len(found) - MOST_RUNS:,} more")


def _zstd() -> Check:
    if _core.has_zstd():
        return Check("libzstd", "ok", "journals are compressed")
    return Check(
        "libzstd", "limited", "libzstd.so.1 is missing: journals take twice the bytes, and compressed ones cannot be read",
        "Debian: apt-get install libzstd1; Fedora: dnf install libzstd",
    )  # fmt: skip


def _torch(trial: Trial | None) -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("torch", "no", "is not installed", _pip("torch"))
    if trial is None or trial.problem:
        return Check("torch", "no", "" if trial is None else f"operators cannot be recorded: {trial.problem}")
    tried = trial.version.partition("+")[0] in TRIED_VERSIONS
    versions = "" if tried else f"; tried with {', '.join(sorted(TRIED_VERSIONS))}"
    device = f", {trial.device}" if trial.device else ""
    notes = f"; {'; '.join(trial.notes)}" if trial.notes else ""
    if trial.mode == "stream":
        text = f"{trial.version}{device}: operators arrive live (stream mode){versions}{notes}"
        return Check("torch", "ok" if tried and not trial.notes else "limited", text)
    why = "" if trial.notes or not trial.device else ", as it has a device, whose kernels only that records"
    text = f"{trial.version}{device}: operators are recorded by torch's own engine (kineto mode){why}{versions}{notes}"
    return Check("torch", "ok" if tried and not trial.notes else "limited", text)


def _frameworks() -> Iterator[Check]:
    """Frameworks that stepscope has callbacks or a drop-in for."""
    for module, distribution in FRAMEWORKS.items():
        if importlib.util.find_spec(module) is not None:
            yield Check(module, "ok", f"{_version(distribution) or 'of unknown version'}: stepscope.{module}")


def _extras() -> Iterator[Check]:
    """The extras of stepscope's own metadata, each with the packages that are missing."""
    needed: dict[str, list[str]] = {}
    for text in importlib.metadata.requires("stepscope") or ():
        found = _REQUIREMENT.fullmatch(text)
        if found is not None and found[4] and found[4] not in _NOT_FOR_USERS:
            needed.setdefault(found[4], []).append(text)
    missing = {extra: dict.fromkeys(_missing(extra, needed)) for extra in needed}
    yield Check("extras", "ok", f"installed: {', '.join(extra for extra in needed if not missing[extra]) or 'none'}")
    for extra in (extra for extra in needed if missing[extra]):
        yield Check(f"extra {extra}", "no", f"missing: {', '.join(missing[extra])}", _pip(extra))


def _missing(extra: str, needed: Mapping[str, list[str]]) -> Iterator[str]:
    for text in needed.get(extra, ()):
        found = _REQUIREMENT.fullmatch(text)
        assert found is not None
        if found[1] == "stepscope":
            for other in (found[2] or "").split(","):
                yield from _missing(other, needed)
        elif _version(found[1]) is None:
            yield found[1] + (found[3] or "").strip()


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _pip(extra: str) -> str:
    return f'pip install "stepscope[{extra}]"'


State = Literal["ok", "limited", "no"]
PROC: Final = Path("/proc")
CUDA: Final = "libcuda.so.1"
"""The part of NVIDIA's driver that programs compute with."""
_NVIDIA: Final = "0x10de"
"""NVIDIA's number as a vendor of PCI devices."""
_CONTAINER = "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"


class Check(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the check: whether it works, and what helps if it does not."""

    name: str
    state: State
    text: str
    cure: str = ""


def nvidia(trial: Trial | None, proc: Path = PROC, pci: Path = Path("/sys/bus/pci/devices"),
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
        present = any(_read(vendor).strip() == _NVIDIA for vendor in pci.glob("*/vendor"))
        cure = (
            "install the driver"
            if present
            else f"only with such a device: install its driver; in a container: {_CONTAINER}"
        )
        return Check(name, "no", f"{why}{'; there is a device' if present else ''}", cure)
    opened = Nvml(library)
    count = human_count(opened.count, "device")
    opened.close()
    text = f"{count}: how busy, memory, power (--backend nvml)"
    if not _can_load(cuda):
        return Check(name, "limited", f"{text}; programs cannot use them: no {cuda}", f"in a container: {_CONTAINER}")
    if trial is None or trial.kernels is not False:
        return Check(name, "ok", text)
    return Check(name, "limited", f"{text}; torch's engine recorded no kernel (CUPTI)", _kernels_cure(proc))


def _kernels_cure(proc: Path) -> str:
    """The remedy if CUPTI, by which torch records kernels, is refused."""
    if re.search(r"^RmProfilingAdminOnly: 1", _read(proc / "driver" / "nvidia" / "params"), re.MULTILINE):
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
    paranoia = f"kernel.perf_event_paranoid is {perf.paranoia() if paranoid is None else paranoid}"
    if not refused:
        return Check(name, "ok", f"instructions, cycles, misses (--backend perf); {paranoia}")
    reasons = dict.fromkeys(reason.removeprefix(f"{event}: ") for event, reason in refused.items())
    state: State = "no" if len(refused) == len(counted) else "limited"
    return Check(name, state, f"hidden: {', '.join(refused)}; {paranoia}", "; ".join(reasons))


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
