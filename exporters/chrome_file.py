"""One Chrome trace file while it is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from stepscope.exporters.chrome_rows import Rows
from stepscope.exporters.output import OutputFile
from stepscope.exporters.plainjson import dumps
from stepscope.exporters.rotation import part
from stepscope.runtime import _core
from stepscope.runtime.errors import OutputError
from stepscope.runtime.events import Block
from stepscope.runtime.run import Run
from stepscope.runtime.window import Window

Dialect: TypeAlias = Literal["kineto", "tensorboard"]
"""`kineto`: categories as torch names them today, for Perfetto and HTA. `tensorboard`: as torch-tb-profiler knows them."""

Form: TypeAlias = Literal["array", "object"]
"""`array`: a list of events that viewers load wherever it was cut. `object`: what tools of torch want; whole or nothing."""

SLICE = 16_384
"""Events that are encoded at a time: about a millisecond of the loop's time."""

TAIL = 16_384
"""Bytes below the size limit that events leave free: one half for marks, one for the end of the file."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a file is written."""

    dialect: Dialect = "kineto"
    form: Form = "array"
    gzip: bool = False
    limit: int | None = None
    """Largest size in bytes."""


def base_of(run: Run) -> int:
    """The monotonic time that is 0 in the run's files: a whole second of wall time, one to two before the run.

    Small numbers keep their nanoseconds in readers that use doubles, and readers drop times below 0.
    """
    return run.anchor.monotonic_ns - run.anchor.wall_ns % 1_000_000_000 - 1_000_000_000


class ChromeFile:
    """A Chrome trace being written, from its first event to its end.

    In array form the file is at its place from the beginning. In object form it grows under a temporary name, because
    no viewer loads it before it is complete; `stepscope.exporters.repair` completes one that was left behind.
    """

    def __init__(self, path: Path, run: Run, layout: Layout, output: OutputFile) -> None:
        self.path = path
        """Where the complete file will be."""
        self.events = 0
        """Events written."""
        self._run = run
        self._layout = layout
        self._output = output
        self._rows = Rows(run)
        self._pending = b""  # names of rows that no piece has carried to the file yet
        self._base = base_of(run)
        self._limit = None if layout.limit is None else max(layout.limit - TAIL, 0)
        self._slice = SLICE
        self._last = run.anchor.monotonic_ns
        self._ended = False

    @classmethod
    async def create(cls, path: Path, run: Run, layout: Layout) -> ChromeFile:
        """Creates the file and writes its head.

        Raises:
            OutputError: if it cannot be written.
        """
        output = await OutputFile.create(path if layout.form == "array" else part(path), gzip=layout.gzip)
        file = cls(path, run, layout, output)
        await output.write(file._head().encode())
        return file

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._output.size

    async def add(self, events: Block, args: bytes) -> int:
        """Writes events.

        Returns:
            How many were written: fewer than were given when the file is full.

        Raises:
            OutputError: if the system refused; the file ends with the last whole slice then.
        """
        done = 0
        while done < len(events):
            some = events[done : done + self._slice]
            self._pending += self._rows.before(some).encode()
            lines = _core.encode_chrome(some, args, self._base, self._layout.dialect)
            if await self._output.write(self._pending + lines, self._limit):
                self._pending = b""
                done += len(some)
                self.events += len(some)
            elif len(some) > 1:
                self._slice = len(some) // 2
            else:
                break
        return done

    async def mark(self, name: str, at: int, args: Mapping[str, Any]) -> bool:
        """Writes an instant event of the whole process, such as the end of a window, if there is room.

        Args:
            name: what is shown.
            at: monotonic time in ns.
            args: JSON-like values.
        """
        self._last = max(self._last, at)
        limit = None if self._limit is None else self._limit + TAIL // 2
        return await self._output.write((self._instant(name, at, args) + ",\n").encode(), limit)

    async def finish(self, args: Mapping[str, Any]) -> None:
        """Writes the end, closes the file and gives it its name; goes on where a cancelled call was.

        Args:
            args: JSON-like values for the last event, which is called `stepscope`.

        Raises:
            OutputError: if the system refused. An object keeps its temporary name then.
        """
        if not self._ended:
            self._ended = True  # also if this call is cancelled: what was begun is written
            close = "\n]\n" if self._layout.form == "array" else "\n]}\n"
            tail = self._instant("stepscope", self._last, args) + close
            if self._limit is not None and len(tail) > TAIL // 2:
                tail = self._instant("stepscope", self._last, {"left out": "more than the size limit allows"}) + close
            try:
                await self._output.write(tail.encode())
            except OutputError:
                await self._output.close()
                raise
        await self._output.close()
        if self._output.path != self.path:
            await self._output.rename(self.path)

    def _instant(self, name: str, at: int, args: Mapping[str, Any]) -> str:
        us, ns = divmod(at - self._base, 1000)
        pid = self._run.pid
        head = dumps({"ph": "i", "s": "p", "cat": "stepscope", "name": name, "pid": pid, "tid": pid})
        return f'{head[:-1]}, "ts": {us}.{ns:03}, "args": {dumps(args)}}}'

    def _head(self) -> str:
        run = self._run
        about = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": run.anchor.wall(self._base),
            "clock": run.anchor,
            "host_name": run.host,
            "displayTimeUnit": "ms",
        }
        if self._layout.form == "array":
            # Here the keys of the object form have no place but an event.
            return "[\n" + self._rows.head() + self._instant("run", self._last, {**about, "rank": run.rank}) + ",\n"
        added = dict(run.metadata())
        keys: dict[str, Any] = {}
        if run.rank is not None:
            # HTA takes the first `"rank": <n>` of the text, space included, for the rank of the file.
            keys["distributedInfo"] = {"rank": run.rank, "world_size": run.world_size or run.rank + 1}
            known: Any = added.pop("distributedInfo", None)
            if isinstance(known, dict):
                given = cast(dict[str, Any], known)
                keys["distributedInfo"] |= {key: value for key, value in given.items() if key != "rank"}
        keys |= about
        keys["deviceProperties"] = added.pop("deviceProperties", [])
        keys |= {key: value for key, value in added.items() if key not in (*keys, "traceEvents")}
        lines = ",\n".join(f"{dumps(key)}: {dumps(value)}" for key, value in keys.items())
        return "{\n" + lines + ',\n"traceEvents": [\n' + self._rows.head()


def about_run(run: Run) -> dict[str, Any]:
    """What a file says of the run at its end: the facts that were added, and its accounts."""
    return {"run": run.name, "metadata": dict(run.metadata()), "ledger": run.ledger()}


def about_window(window: Window) -> dict[str, Any]:
    """What a file says of a window: its steps, what was lost, and why it may be empty or partial."""
    return {
        "window": window.index,
        "profiler": window.profiler,
        "steps": [step.number for step in window.steps],
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "wall_start_ns": window.wall_start_ns,
        "complete": window.complete,
        "diagnostics": window.diagnostics,
        "ledger": window.ledger,
        "metadata": window.metadata,
    }
