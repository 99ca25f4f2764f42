"""Names of output directories, how their files are written, and the files of a window that need no events."""

from __future__ import annotations

import contextlib
import csv
import datetime
import itertools
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.backends.parallel_layout import DECLARED, layout_now, of_mindspore
from stepscope.compat.mindspore.errors import ProfilerIOException
from stepscope.compat.mindspore.options.options import DEFAULT_PATH, ProfilerOptions
from stepscope.compat.mindspore.sources.device import DeviceTarget
from stepscope.exporters.files.output import whole_file
from stepscope.runtime.events.json_values import plain
from stepscope.runtime.files.paths import absolute, writable_or_other
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import WindowOpened
from stepscope.runtime.requests.armed_window import recorded_name
from stepscope.runtime.session.job import job_from_environment, this_host
from stepscope.runtime.windows.window import Window


def write_text(path: Path, text: str) -> Path:
    """Writes a text; every name is legal in it.

    Raises:
        OSError: if it cannot be written; write_json and write_csv, too.
    """
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Writes a value as JSON, over several lines."""
    return write_text(path, json.dumps(value, indent=4, ensure_ascii=False) + "\n")


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Writes a table."""
    with whole_file(path) as place, place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return path


log = logging.getLogger("stepscope")

METADATA = "dynamic_profiler"
"""Key of the request in the metadata of a window."""
STEPS_PER_CALL = "steps_per_call"
"""Steps of training for each step of the trace: more than one where a callback is called once for a group."""

_NAME = re.compile(r"rank(\d+)_start\d+_stop\d+(?:_(.+))?")

_DEVICE = re.compile(r"_(?:cpu|gpu)_ms(-\d+)?$")

_LAST_NS = 253_402_300_799_000_000_000
"""The end of the year 9999, in ns of Unix time."""

PRODUCTS_OF = "products_of"
"""Key of `profiler_info_<rank>.json` in a directory with products only: the name of the directory that was recorded."""

RAW = "FRAMEWORK"
"""Directory of raw data in that of a window: the journal of stepscope."""


def default_or_other(output_path: str) -> str:
    """The output path; where it is the default, which nobody chose, and cannot be written, another place, with a warning."""
    if output_path not in (DEFAULT_PATH, str(absolute(DEFAULT_PATH))):
        return output_path
    place = writable_or_other(Path(output_path), "stepscope_mindspore")
    if place != Path(output_path):
        log.warning("%s cannot be written, so output goes to %s; output_path names another place", output_path, place)
    return str(place)


def named_device(options: ProfilerOptions, device: str) -> str:
    """The device that names of directories have."""
    return "Ascend" if options.ascend_names else device


def new_directory(output_path: str | os.PathLike[str], worker: str | None, device: str) -> Path:
    """Makes a directory that was not there before: `<worker>_<pid>_<UTC, to the ms>_<device>_ms`, for its owner only.

    Raises:
        ProfilerIOException: if it cannot be made; says where and why.
    """
    base = Path(output_path)
    name = window_name(worker or this_host(), os.getpid(), time.time_ns(), device)
    try:
        base.mkdir(parents=True, exist_ok=True)
        return make_numbered(base, name).resolve()
    except OSError as error:
        text = f"cannot write below {base}: {error.strerror}; choose another output_path"
        raise ProfilerIOException(error.errno, text) from error


def window_name(worker: str, pid: int, wall_ns: int, device: str) -> str:
    """`<worker>_<pid>_<UTC, to the ms>_<device>_ms`; a time that no calendar has, as of a damaged file, is the nearest that there is."""
    wall_ns = min(max(wall_ns, 0), _LAST_NS)
    at = datetime.datetime.fromtimestamp(wall_ns // 1_000_000_000, datetime.UTC)
    return f"{worker}_{pid}_{at:%Y%m%d%H%M%S}{wall_ns // 1_000_000 % 1000:03}_{device.lower()}_ms"


def ascend_directory(window: Path) -> Path:
    """Makes the directory beside that of a window that has MindSpore's name, if that is another one, with the window's facts."""
    name = _DEVICE.sub(r"_ascend_ms\1", window.name)
    if name == window.name:
        return window
    place = window.with_name(name)
    place.mkdir(mode=0o700, exist_ok=True)
    for facts in sorted(window.glob("*.json")):
        try:
            values: Any = json.loads(facts.read_bytes())
            if facts.name.startswith("profiler_info_"):
                values = {**values, PRODUCTS_OF: window.name}
        except (TypeError, ValueError) as error:
            log.warning("%s is damaged, and not copied to %s: %s", facts, place, error)
            continue
        write_json(place / facts.name, values)
    return place


def make_numbered(base: Path, name: str) -> Path:
    """Makes a directory that was not there before, for its owner only: its name ends with a number if it has to. Raises
    `OSError` if it cannot be made."""
    path = base / name
    for number in itertools.count(2):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            break
        path = base / f"{name}-{number}"
    return path


def write_facts(
    directory: Path, target: DeviceTarget, about: Mapping[str, Any], metadata: Mapping[str, Any], *, strategy: bool
) -> None:
    """Writes `profiler_info_<rank>.json`, `profiler_metadata.json` if the program added any, and, if asked,
    `parallel_strategy_<rank>.json`. Raises `OSError` if a file cannot be written."""
    info = {
        **about,
        "device_target": target.device,
        "device_id": target.device_id,
        "rank_id": str(target.rank),
        "rank_size": target.rank_size,
        "context_mode": target.mode,
        "ms_version": target.version,
        "frameworks": list(target.frameworks),
    }
    write_json(directory / f"profiler_info_{target.rank}.json", plain(info))
    if metadata:
        write_json(directory / "profiler_metadata.json", plain(metadata))
    if strategy:
        found = parallel_strategy(target, metadata.get(DECLARED))
        write_json(directory / f"parallel_strategy_{target.rank}.json", plain(found))


def windows_in(journal: Path) -> set[int]:
    """Numbers of the windows that have begun in a journal of a run. Events are not read.

    Raises:
        OSError: if it cannot be read.
        FormatError: if it is no journal.
    """
    with JournalReader(journal) as reader:
        items = reader.items(wanted=lambda header: False)
        return {item.index for item in items if isinstance(item, Window | WindowOpened)}


def parallel_strategy(target: DeviceTarget, declared: Any = None) -> dict[str, Any]:
    """The rank and layout of this process: as declared by `add_metadata("parallel_layout", {"data": 2, "tensor": 4})`, and as
    torch.distributed and MindSpore have it.
    """
    mindspore: Any = sys.modules.get("mindspore") if "mindspore" in target.frameworks else None
    context: dict[str, Any] = {} if mindspore is None else of_mindspore(mindspore)["sharding"]
    return {
        "rank_id": target.rank,
        "rank_size": target.rank_size,
        "job": job_from_environment(),
        "host": this_host(),
        "device_target": target.device,
        "device_id": target.device_id,
        **context,
        "layout": layout_now(declared),
    }


def named_after(directory: Path, window: Window | None, below: Path) -> Path:
    """Renames the window that a killed process left, which has the name that was requested, after the steps in it.

    The last step has not ended, so it does not count unless it is the only one. Directories outside of `below` are not renamed.

    Returns:
        Its directory now: the same one, if it is no window of a monitor, or cannot be moved, which is logged.
    """
    name = _NAME.fullmatch(directory.parent.name)
    if name is None or window is None or not window.steps or below.resolve() not in directory.parent.resolve().parents:
        return directory
    steps = [step.number for step in window.steps]
    steps = steps if window.complete or len(steps) == 1 else steps[:-1]
    last = steps[0] + len(steps) * _steps_per_call(directory) - 1
    right = directory.parent.with_name(recorded_name(int(name[1]), steps[0], last, name[2] or ""))
    if right == directory.parent:
        return directory
    try:
        right.mkdir(exist_ok=True)
        new = directory.rename(right / directory.name)
    except OSError as error:
        log.warning("%s holds steps %d to %d and cannot be renamed: %s", directory, steps[0], last, error)
        return directory
    with contextlib.suppress(OSError):  # it has other files
        directory.parent.rmdir()
    return new


def _steps_per_call(directory: Path) -> int:
    try:
        metadata: Any = json.loads((directory / "profiler_metadata.json").read_bytes())
        return int(metadata[METADATA][STEPS_PER_CALL])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):  # none was written, or by another version
        return 1
