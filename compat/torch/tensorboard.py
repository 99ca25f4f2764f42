"""`tensorboard_trace_handler`: files for TensorBoard's PyTorch profiler plugin."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any


class TensorBoardHandler:
    """An `on_trace_ready` that writes `<worker>.<nanoseconds>.pt.trace.json` for each window."""

    def __init__(self, dir_name: str | os.PathLike[str], worker_name: str | None, use_gzip: bool) -> None:
        if worker_name is not None and not re.fullmatch(r"[^/\\\0]+", worker_name):
            raise ValueError(f"worker_name must be a part of a file's name, got {worker_name!r}")
        self._directory = Path(dir_name)
        self._worker = worker_name
        self._suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
        self._stamp = 0

    def __call__(self, prof: Any) -> None:
        """Exports what a profile has, ours or torch's own."""
        worker = self._worker or f"{socket.gethostname()}_{os.getpid()}"
        # The plugin sorts by this number: two windows of one clock reading must not share it.
        self._stamp = max(time.time_ns(), self._stamp + 1)
        self._directory.mkdir(parents=True, exist_ok=True)
        prof.export_chrome_trace(str(self._directory / f"{worker}.{self._stamp}{self._suffix}"))


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str],
    worker_name: str | None = None,
    use_gzip: bool = False,
    use_python_export: bool = False,
) -> TensorBoardHandler:
    """An `on_trace_ready` with the arguments of `torch.profiler.tensorboard_trace_handler`.

    Args:
        dir_name: the run's directory, made where it is missing; give it to TensorBoard as `--logdir`.
        worker_name: must differ between processes of one run; by default `<host>_<pid>`.
        use_gzip: whether to compress.
        use_python_export: taken, as torch has it; there is one way of writing here.

    Raises:
        ValueError: if the worker's name cannot be part of a file's name.
    """
    return TensorBoardHandler(dir_name, worker_name, use_gzip)
