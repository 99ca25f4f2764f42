"""Traces for TensorBoard's PyTorch profiler plugin."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Literal

from stepscope.exporters.chrome import ChromeTraceExporter
from stepscope.exporters.files.output import check_directory
from stepscope.runtime.export.run import Run
from stepscope.runtime.files.paths import absolute
from stepscope.runtime.settings.arguments import got, path_argument, switch_argument
from stepscope.runtime.windows.window import Window


class TensorBoardExporter(ChromeTraceExporter):
    """Writes one file per window for TensorBoard's PyTorch profiler plugin; may also be given as `on_trace_ready`.

    The files are called `<worker>.<nanoseconds>.pt.trace.json`. The plugin shows a directory as a run, its workers in
    one list and the windows of a worker, in order, in another ("span"). It looks at a directory once: windows that end
    after TensorBoard has found the directory appear when TensorBoard is started again. With `layout="runs"` every
    window has a directory of its own, `window_<n>`, and appears as a run while training goes on.

    A file grows under a name that the plugin does not see, and gets its name complete. One left behind by a process
    that was killed is written anew, from the journal, by `stepscope recover`. A window without events leaves no file: the plugin cannot show
    it.

    Args:
        dir_name: the run's directory, to be given to TensorBoard as `--logdir`, or one below that.
        worker_name: must differ between processes of one run; by default `<host>_<pid>`, which the plugin takes apart.
        use_gzip: whether to compress.
        layout: `spans` or `runs`, see above.

    Raises:
        TypeError: if an argument is not what it should be.
        ValueError: if the worker's name cannot be part of a file's name.
    """

    def __init__(
        self,
        dir_name: str | os.PathLike[str],
        worker_name: str | None = None,
        use_gzip: bool = False,
        *,
        layout: Literal["spans", "runs"] = "spans",
    ) -> None:
        directory = path_argument("dir_name", dir_name)
        switch_argument("use_gzip", use_gzip)
        if worker_name is not None and not isinstance(worker_name, str):
            raise TypeError(f"worker_name must be a str, {got(worker_name)}")
        if worker_name is not None and not re.fullmatch(r"[^/\\\0]+", worker_name):
            raise ValueError(f"worker_name must be a part of a file's name, got {worker_name!r}")
        if layout not in ("spans", "runs"):
            raise ValueError(f"layout must be 'spans' or 'runs', got {layout!r}")
        suffix = ".pt.trace.json.gz" if use_gzip else ".pt.trace.json"
        path = os.path.join(directory, f"{{window}}{suffix}")
        super().__init__(path, gzip=use_gzip, dialect="tensorboard", form="object")
        self.name = f"tensorboard:{directory}"
        self._directory = absolute(dir_name)
        self._worker = worker_name
        self._suffix = suffix
        self._runs = layout == "runs"
        self._stamp = 0

    async def open(self, run: Run) -> None:
        """Makes the directory and sees that it can be written.

        Raises:
            OutputError: if it cannot.
        """
        check_directory(self._directory)
        self._run = run

    async def close_window(self, window: Window) -> None:
        """Completes the window's file, if it has events, and shows it to TensorBoard."""
        if window.index in self._open:
            await super().close_window(window)

    async def discard_window(self, window: int) -> None:
        """Deletes the window's file, and its directory if it had one.

        Raises:
            OutputError: if the system refused.
        """
        paths = self._complete_files.get(window, [])
        await super().discard_window(window)
        for path in paths if self._runs else ():
            with contextlib.suppress(OSError):  # what else somebody put there stays
                path.parent.rmdir()

    def _path_of(self, run: Run, window: int | None) -> Path:
        # The plugin sorts windows by this number as text: all have 19 digits, and it must grow.
        self._stamp = max(time.time_ns(), self._stamp + 1)
        # The host may be what a journal says.
        host = re.sub(r"[/\\\0]", "_", run.host).encode(errors="replace")[:64].decode(errors="ignore")
        worker = self._worker or f"{host}_{run.pid}"
        directory = self._directory / f"window_{window}" if self._runs else self._directory
        return directory / f"{worker}.{self._stamp}{self._suffix}"


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> TensorBoardExporter:
    """An exporter of files for TensorBoard, with the arguments of `torch.profiler.tensorboard_trace_handler`.

    It may be given in `exporters` or as `on_trace_ready`.

    Args:
        dir_name: the run's directory.
        worker_name: must differ between processes of one run; by default `<host>_<pid>`.
        use_gzip: whether to compress.

    Raises:
        TypeError: if an argument is not what it should be.
        ValueError: if the worker's name cannot be part of a file's name.
    """
    return TensorBoardExporter(dir_name, worker_name, use_gzip)
