"""Archives of streams: one that hangs, one that a process follows, and what is in one."""

from __future__ import annotations

import importlib
import io
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.collector.archive.archive import Archive
from stepscope.runtime.journal.frame_reader import FrameReader
from tests.support.launch import start


class HangingStore:
    """A file system of fsspec's in which some writes of parts hang, until they may go on."""

    PROTOCOL = "hanging"

    def __init__(self, directory: Path, *, after: int = 0) -> None:
        """Args: where its files lie; writes that do not hang."""
        self.url = f"{self.PROTOCOL}://{directory}"
        self.hangs = threading.Event()
        """Set when a write hangs."""
        self.go = threading.Event()
        """Nothing hangs any more when it is set."""
        self._left = after
        local: Any = importlib.import_module("fsspec.implementations.local").LocalFileSystem

        def opened(files: Any, path: str, mode: str = "rb", **options: Any) -> Any:
            file = local.open(files, path, mode, **options)
            return _HangingFile(file, self) if mode == "wb" and "/journal." in path else file

        def place(kind: Any, path: str) -> str:  # fsspec below 2024.9 knows only its own protocols
            return str(local._strip_protocol(path.removeprefix(f"{self.PROTOCOL}://")))

        functions = {"open": opened, "_strip_protocol": classmethod(place)}
        made = type("Hanging", (local,), {"protocol": self.PROTOCOL, **functions})
        importlib.import_module("fsspec").register_implementation(self.PROTOCOL, made, clobber=True)

    def writes(self) -> None:
        """Something is about to be written."""
        if self._left > 0:
            self._left -= 1
            return
        self.hangs.set()
        self.go.wait(60)


class _HangingFile:
    def __init__(self, file: Any, store: HangingStore) -> None:
        self._file, self._store = file, store

    def __enter__(self) -> _HangingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        self._store.writes()
        return int(self._file.write(data))


@contextmanager
def following(directory: Path, remote: Path, every: float, *options: str) -> Generator[subprocess.Popen[str]]:
    """`stepscope upload --follow`, until the end of the block."""
    command = (sys.executable, "-m", "stepscope", "upload")
    process = start(
        [*command, str(directory), f"file://{remote}", "--follow", str(every), *options],
        server="command",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def restored(archive: Archive, stream: str) -> bytes:
    """The journal of a stream, as an archive has it."""
    file = io.BytesIO()
    archive.restore(archive.manifest(stream), file)
    return file.getvalue()


def borders(path: Path) -> list[tuple[int, int]]:
    """Where each frame of a journal ends, and its type."""
    found: list[tuple[int, int]] = []
    reader = FrameReader(path)
    while (frame := reader.next()) is not None:
        found.append((reader.position[1], frame[0]))
    reader.close()
    return found


def parts_of(path: Path, most: int) -> list[int]:
    """Sizes of the parts of a journal that are as large as they may be, with whole frames; the last one is what is left."""
    sizes: list[int] = []
    start = end = 0
    for border, _ in borders(path):
        if end > start and border - start > most:
            sizes.append(end - start)
            start = end
        end = border
    return [*sizes, end - start]
