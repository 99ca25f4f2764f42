"""Names of the windows of `DynamicProfilerMonitor`: after the steps that were recorded, also where a process was killed."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from pathlib import Path
from typing import Any

from stepscope.runtime.requests.armed_window import recorded_name
from stepscope.runtime.windows.window import Window

log = logging.getLogger("stepscope")

METADATA = "dynamic_profiler"
"""Key of the request in the metadata of a window."""
STEPS_PER_CALL = "steps_per_call"
"""Steps of training for each step of the trace: more than one where a callback is called once for a group."""

_NAME = re.compile(r"rank(\d+)_start\d+_stop\d+")


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
    right = directory.parent.with_name(recorded_name(int(name[1]), steps[0], last))
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
    except (OSError, ValueError, KeyError, TypeError):  # none was written, or by another version
        return 1
