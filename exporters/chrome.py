"""Chrome trace files, for Perfetto, Catapult, HTA and whatever else reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from stepscope.exporters.files.chrome_file import ChromeFile, Dialect, Form, Layout
from stepscope.exporters.files.trace_series import OnFull, TraceExporter
from stepscope.runtime.export.run import Run
from stepscope.runtime.session.note import TraceNote
from stepscope.runtime.settings.validation import suggesting


class ChromeTraceExporter(TraceExporter):
    """Writes Chrome trace JSON while the run goes on.

    In array form the file can be opened in Perfetto at any moment, also after the process was killed; after `aclose` it
    is valid JSON. Metadata, windows and their ledgers are instant events named `stepscope` and `window <n>`.

    Args:
        path: file to write; `{rank}`, `{pid}` and `{window}` are replaced. With `{window}` every window gets a file of
            its own, without it all share one. Missing directories are made, a file that is there is replaced.
        gzip: whether to compress; by default if the name ends in `.gz`.
        dialect: `kineto` writes categories as torch does today, `tensorboard` as its TensorBoard plugin knows them; `mxnet` is `kineto`
            with the value of a counter under the counter's name.
        form: `array`, readable wherever it is cut, or `object`, which HTA and torch's tools want; an object grows under
            the name with `.part` behind it and gets its own when it is complete.
        closed: whether the file is valid JSON after every piece, at least every `Options.drain_interval` seconds, also in
            object form and after the process was killed. A reader that reads it while a piece is written may have to read again.
        max_bytes: size in bytes of a file, at least 64 KiB; only an event with very large arguments at its end exceeds it.
            `None`: no limit.
        unix_times: whether times are Unix time in microseconds, as text that keeps their nanoseconds, as MindSpore writes them; by default
            they are numbers from a second before the run on, which readers that use doubles do not round.
        on_full: `rotate` goes on in `trace.1.json`, `trace.2.json` and so on; `stop` drops what comes later, says so in
            the file and counts it in `dropped_cap`.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: an argument is not one of these, or the path is a directory.
    """

    @suggesting
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gzip: bool | None = None,
        dialect: Dialect = "kineto",
        form: Form = "array",
        closed: bool = False,
        unix_times: bool = False,
        max_bytes: int | None = None,
        on_full: OnFull = "rotate",
    ) -> None:
        for argument, value, choices in (
            ("dialect", dialect, get_args(Dialect)),
            ("form", form, get_args(Form)),
        ):
            if value not in choices:
                raise ValueError(f"{argument} must be {' or '.join(map(repr, choices))}, got {value!r}")
        super().__init__("chrome", path, gzip, max_bytes, on_full)
        self._layout = Layout(
            dialect=dialect, form=form, gzip=self._gzip, limit=max_bytes, closed=closed, unix_times=unix_times
        )

    def _arguments(self) -> dict[str, str | int | bool | None]:
        layout = self._layout
        return super()._arguments() | {
            "dialect": layout.dialect,
            "form": layout.form,
            "closed": layout.closed,
            "unix_times": layout.unix_times,
        }

    async def _create(self, path: Path, run: Run, note: TraceNote) -> ChromeFile:
        return await ChromeFile.create(path, run, self._layout, note)
