"""Downloads: a file is made by a process of its own, and sent while it grows."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from stepscope.collector.downloads.bounded import AT_ONCE, CHUNK, ProcessBounds, Turns, bounded, ended
from stepscope.collector.files.blocking_pool import BlockingPool
from stepscope.collector.problems import ProblemError
from stepscope.runtime.errors import INCOMPLETE, NoWindowError
from stepscope.runtime.files.private_files import make_directories
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.segments import segment_paths

log = logging.getLogger("stepscope.collector")

THREADS = 4
"""Threads that look at unfinished files and read them."""
_LOOK_EVERY = 0.05
_MAX_ERROR_TEXT = 300
"""Last characters of a process's error output that an error message has."""
_AROUND = 16 << 10
"""Bytes on disk of the directories in which a file lies, and of the rest of its last block."""
_FIRST_PIECE = 1 << 16
"""Bytes before which nothing is sent, unless it is all: an error until then can still become a status."""

READ_BYTES = 1 << 20
"""Bytes of a journal that are read together."""


class Bounds(ProcessBounds, frozen=True, kw_only=True):
    """Limits of one file that is made and sent. `stepscope merge` makes larger ones."""

    file_bytes: int = 64 << 30
    grace: float = 60.0
    """Seconds that a reader may keep it waiting at first."""
    least_rate: float = 32 << 10
    """Bytes a second that a reader must take afterwards, on average."""


class Source(msgspec.Struct, frozen=True):
    """A stream's file, with its rank and job."""

    rank: str
    path: Path
    job: str = ""
    """Name of its job; empty: unknown."""


Command = Callable[[Sequence[Source], int | None, Path], Sequence[str]]
_SUFFIXES = {"chrome": ".json.gz", "perfetto": ".pftrace", "parquet": ".parquet"}


class Download(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of file that can be downloaded."""

    name: str
    """Its name in addresses, such as `chrome`."""
    suffix: str
    """Ending of the file's name, such as `.json.gz`."""
    command: Command
    """The arguments of Python that write it: of the streams, the window's index in the first (`None`: all) and the file."""
    grows: bool = True
    """Whether what was written stays as it is, so that it can be sent while it grows."""


def of_one(format: str) -> Download:
    """A window of one stream, as `stepscope convert` writes it. Bytes of `chrome` and `perfetto` that are written never change."""

    def command(sources: Sequence[Source], window: int | None, target: Path) -> Sequence[str]:
        chosen = [] if window is None else ["--window", str(window)]
        return ["-m", "stepscope", "convert", str(sources[0].path), str(target), "--format", format, *chosen]

    return Download(name=format, suffix=_SUFFIXES[format], command=command, grows=format != "parquet")


def merged(format: str) -> Download:
    """A window of all ranks of a job, as `stepscope merge` writes it."""

    def command(sources: Sequence[Source], window: int | None, target: Path) -> Sequence[str]:
        chosen = [] if window is None else ["--window", str(window), "--windows-of", sources[0].path.parent.name]
        chosen += [f"--job={sources[0].job}"] if sources[0].job else []
        # A command line has room for some ten thousand sources.
        listed = target.absolute().with_name(f"{target.name}.sources")
        listed.write_bytes(b"\0".join(os.fsencode(source.path.absolute()) for source in sources))
        output = ["--out", str(target.absolute()), "--format", format]
        return ["-m", "stepscope", "merge", "--sources", str(listed), *output, *chosen]

    return msgspec.structs.replace(of_one(format), command=command)


class Downloads:
    """The kinds of files there are, and the making of them.

    A process of its own keeps the collector's memory and its tables of names as they are, whatever is in the file; it is
    killed when nobody waits for it any more, when it takes more than it may, and when the collector ends. Its file lies in
    the collector's directory and is deleted when it was sent.
    """

    def __init__(self, directory: Path, bounds: Bounds | None = None) -> None:
        """Args: where files are made; what each may take. Tables are made if the package for that is installed."""
        self._directory = directory / "downloads"
        self._bounds = bounds or Bounds()
        self._turns = Turns("downloads")
        self._disk = BlockingPool(THREADS)
        self.of_rank = {name: of_one(name) for name in ("chrome", "perfetto")}
        """Kinds of files with a window of one stream."""
        tables = [] if find_spec("pyarrow") is None else ["parquet"]
        self.of_all = {name: merged(name) for name in ("perfetto", "chrome", *tables)}
        """Kinds of files with a window of all ranks."""

    @property
    def most(self) -> int:
        """Bytes on disk that all files may take which are made at the same time."""
        return AT_ONCE * (self._bounds.file_bytes + _AROUND)

    def clear(self) -> None:
        """Deletes what a collector that was killed left."""
        _remove(self._directory)

    async def journal(self, path: Path) -> AsyncGenerator[bytes]:
        """The bytes of a stream's segments, as far as they are written now.

        Raises:
            ProblemError: before the first byte, if it is there no more.
            StuckError: before the first byte, if the disk does not answer.
            OSError: if it cannot be read.
        """
        copy = journal_copy(path)
        try:
            piece = await self._disk.try_run(lambda: next(copy, b""))
        except FileNotFoundError as error:
            raise ProblemError(404, "the file of this stream was deleted") from error
        try:
            while piece:
                for at in range(0, len(piece), CHUNK):
                    yield piece[at : at + CHUNK]
                piece = await self._disk.run(lambda: next(copy, b""))
        finally:
            with contextlib.suppress(ValueError):  # the disk hangs: it is closed when nobody reads it any more
                await self._disk.run(copy.close)

    async def send(self, kind: Download, sources: Sequence[Source], window: int | None) -> AsyncGenerator[bytes]:
        """The bytes of a file.

        Raises:
            ProblemError: before the first byte, if too many wait, or it cannot be made.
            StuckError: before the first byte, if the disk does not answer.
            RuntimeError: later, if it cannot be finished.
        """
        async with self._turns.one(), contextlib.aclosing(self._made(kind, sources, window)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _made(self, kind: Download, sources: Sequence[Source], window: int | None) -> AsyncGenerator[bytes]:
        place = self._directory / uuid.uuid4().hex
        await self._disk.try_run(lambda: make_directories(place), lambda _: _remove(place))
        target = place / f"download{kind.suffix}"
        try:
            command = await self._disk.run(lambda: kind.command(sources, window, target))  # it may write a file
            async with bounded(command, self._bounds) as process:
                async with contextlib.aclosing(_grown(self._disk, target, process, kind.grows, self._bounds)) as chunks:
                    pace = _Pace(self._bounds)
                    async for chunk in chunks:
                        with pace.taking(len(chunk)):
                            yield chunk
        except NoWindowError as error:
            raise ProblemError(404, f"window {window} is not in what is kept of it") from error
        finally:
            await self._disk.run(lambda: _remove(place))


class _Pace:
    """Watches how fast a reader takes its file: a reader that stops would keep the file and the turn for ever."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._sent, self._seconds = 0, 0.0

    @contextlib.contextmanager
    def taking(self, size: int) -> Generator[None]:
        """A context in which the reader takes so many bytes. Raises `RuntimeError` if it is too slow."""
        began = time.monotonic()
        yield
        self._sent += size
        self._seconds += time.monotonic() - began
        if self._seconds > self._bounds.grace + self._sent / self._bounds.least_rate:
            raise RuntimeError(f"a download was given up: its reader took {self._sent} bytes in {self._seconds:.0f} s")


async def _grown(
    disk: BlockingPool, path: Path, process: asyncio.subprocess.Process, grows: bool, bounds: Bounds
) -> AsyncGenerator[bytes]:
    """Yields the bytes that a process writes to a file, until it ends.

    Raises:
        ProblemError: if it fails before it wrote anything.
        NoWindowError: if there is no such window.
        RuntimeError: if it fails later.
    """
    assert process.stderr is not None
    error_output = asyncio.ensure_future(_last(process.stderr))
    sent = 0
    try:
        while True:
            status = process.returncode
            over = status is not None
            if status == NoWindowError.exit_code:
                raise NoWindowError("there is no such window")
            if status is not None and status not in (0, INCOMPLETE):
                why = (await error_output) or ended(status, bounds)
                if await disk.run(lambda: _largest(path.parent)) >= bounds.file_bytes:
                    why += f"; a download may have {bounds.file_bytes:,} bytes at most, `stepscope merge` makes larger files"
                if not sent:
                    raise ProblemError(500, f"the file could not be made: {why}")
                raise RuntimeError(f"a download broke off: {why}")
            enough = over or (grows and (sent or await disk.run(lambda: _size(path)) >= _FIRST_PIECE))
            chunk = await disk.run(partial(_chunk, path, sent)) if enough else b""
            if chunk:
                sent += len(chunk)
                yield chunk
            elif over:
                return
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _LOOK_EVERY)
    finally:
        error_output.cancel()


async def _last(stream: asyncio.StreamReader) -> str:
    """The end of a process's error output."""
    last = b""
    while chunk := await stream.read(CHUNK):
        last = (last + chunk)[-4 * _MAX_ERROR_TEXT :]
    return last.decode(errors="replace").strip()[-_MAX_ERROR_TEXT:]


def _remove(place: Path) -> None:
    try:
        shutil.rmtree(place)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s is left until the next start: %s", place, error)


def _largest(place: Path) -> int:
    """Size of the file that is made in a directory, under whatever name it grows."""
    return max((entry.stat(follow_symlinks=False).st_size for entry in os.scandir(place)), default=0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _chunk(path: Path, at: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(CHUNK)
    except FileNotFoundError:
        return b""


def journal_copy(path: Path) -> Generator[bytes]:
    """Reads the first segment that exists, then the later ones without their file headers.

    Segments that are begun later are not read. If a segment is deleted before it is read, the copy ends there. Each piece blocks on
    the disk, and may be read on another thread.

    Args:
        path: of the stream's first segment, which may have been evicted.

    Raises:
        OSError: if no segment can be opened, or one cannot be read.
    """
    segments = segment_paths(path)
    if not segments:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    for segment in segments:
        at = 0 if segment is segments[0] else fmt.MAX_FILE_HEADER
        try:
            file = os.open(segment, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            if not at:
                raise
            log.warning("a download ends early: %s was deleted before it was sent", segment)
            return
        try:
            end = os.fstat(file).st_size
            while at < end and (piece := os.pread(file, min(READ_BYTES, end - at), at)):
                at += len(piece)
                yield piece
        finally:
            os.close(file)
