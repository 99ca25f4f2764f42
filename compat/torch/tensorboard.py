"""`tensorboard_trace_handler`: files for TensorBoard's PyTorch profiler plugin."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.runtime.settings.validation import suggesting


@suggesting
def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> Callable[[Any], None]:
    """An `on_trace_ready` that writes `<worker>.<nanoseconds>.pt.trace.json` for each window of a profile, ours or torch's own.

    Args:
        dir_name: the run's directory, made where it is missing; give it to TensorBoard as `--logdir`.
        worker_name: must differ between processes of one run; by default `<host>_<pid>`.
        use_gzip: whether to compress.
        use_python_export: taken, as torch has it; there is one way of writing here.

    Raises:
        ValueError: if the worker's name cannot be part of a file's name.
    """
    if worker_name is not None and not re.fullmatch(r"[^/\\\0]+", worker_name):
        raise ValueError(f"worker_name must be a part of a file's name, got {worker_name!r}")
    suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
    stamp = 0

    def export(prof: Any) -> None:
        nonlocal stamp
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        # The plugin sorts by this number: two windows of one clock reading must not share it.
        stamp = max(time.time_ns(), stamp + 1)
        directory = Path(dir_name)
        directory.mkdir(parents=True, exist_ok=True)
        prof.export_chrome_trace(str(directory / f"{worker}.{stamp}{suffix}"))

    return export
