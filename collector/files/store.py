"""The directory of a collector: one directory for each stream, named by its id."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import stat
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from pathlib import Path

from stepscope.collector.errors import FullError
from stepscope.collector.files.blocking_pool import BlockingPool, in_own_task, uncancelled
from stepscope.collector.files.disk import DiskQuota
from stepscope.collector.files.stream_file import NewFrames, StreamFile
from stepscope.collector.files.writer import Writer
from stepscope.collector.runs import evicted
from stepscope.collector.settings import CollectorSettings
from stepscope.exporters.stream.protocol import Hello
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.files.private_files import make_directories, replace_private
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.journal.segments import first_file, journal_bytes, segment_paths
from stepscope.runtime.journal.writer import MIN_BYTES

log = logging.getLogger("stepscope.collector")

LEAST_MESSAGE = 64 << 10
STREAM_OVERHEAD = 16 << 10
"""Bytes on disk that a stream takes besides its frames: its directory, where it ended, and the rest of the last block of each."""
THREADS = 8
"""Threads that open and close files of streams."""
LEAVING = 30.0
"""Seconds in which a connection must leave a stream that another one takes over."""

_STREAM = re.compile("[0-9a-f]{32}")


def log_unreadable(path: Path, error: OSError) -> None:
    """Logs that a stream cannot be read. The other streams can."""
    log.warning("%s is passed over: %s", path, error.strerror or error)


def _mode(path: Path) -> int:
    """Kind and rights of a path, without following links; 0 if it does not exist.

    Raises:
        OSError: if it cannot be looked at. `Path.exists` and those like it say no then, from Python 3.14 on.
    """
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


class Store:
    """Opens the files of streams, each for one connection. Nothing from the network becomes part of a path but checked ids.

    Args:
        settings: where, and how much at most.

    Raises:
        OutputError: if the directory cannot be made, is a link, or is another user's.
    """

    def __init__(self, settings: CollectorSettings) -> None:
        self.directory = settings.directory
        self.streams = settings.directory / "streams"
        self._settings = settings
        self._identity = ""
        self._writer = Writer(fsync=settings.fsync)
        self._owners: dict[str, _StreamOwner] = {}
        self._unused: Callable[[], object] = lambda: None
        self._writes: dict[StreamFile, asyncio.Future[None]] = {}
        """The newest write of each file."""
        self._open: set[str] = set()
        self._removing: set[str] = set()
        self._opening = threading.Lock()
        """Guards which files are open, and which are being deleted; never held while the disk is waited for."""
        self.problem = ""
        """Why the last write of a stream failed; empty if it did not."""
        self._waiting = 0
        """Streams that wait to be admitted."""
        self._coming: set[str] = set()
        """Streams that were admitted, and whose files may not exist yet."""
        self._disk = BlockingPool(THREADS)
        self.changed: Callable[[str], object] = lambda _: None
        """Called, on any thread, with each stream of which a segment is begun or deleted, or a connection comes or goes."""
        self.is_lost: Callable[[], bool] = lambda: False
        """Whether the directory is not the one that the collector has locked; asks the disk."""
        self.quota = DiskQuota()
        """Bytes that may be written until the disk is measured again."""
        try:
            make_directories(self.streams)
            _check_own(self.streams)
            self._block = os.statvfs(self.streams).f_frsize
            self._streams = set[str]()
            self.bytes = 0
            for stream, path in self.journals():
                self._streams.add(stream)
                try:
                    self.bytes += journal_bytes(path)
                except OSError as error:
                    log_unreadable(path, error)
        except OSError as error:
            raise OutputError(
                error.errno, f"the collector's directory cannot be used: {error.strerror or error}", str(self.directory)
            ) from error

    def identity(self) -> str:
        """Names the directory, for those who must know what is in it: drawn at random when it is first asked for.
        Raises `OSError` if it can be neither read nor written."""
        if self._identity:
            return self._identity
        path, identity = self.directory / "identity", ""
        with contextlib.suppress(FileNotFoundError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(file) as stream:
                identity = stream.read(33)
        if not identity:  # also where a machine lost power before the disk had it
            identity = uuid.uuid4().hex
            replace_private(path, identity.encode())
        if not _STREAM.fullmatch(identity):
            raise OSError(errno.EINVAL, "it names no collector's directory; remove it", str(path))
        self._identity = identity
        return identity

    @property
    def waits(self) -> float:
        """Seconds for which a write has waited for the disk; 0 if none does."""
        return self._writer.waits

    @property
    def message_bytes(self) -> int:
        """Bytes that a message of a connection should have at most now."""
        share = self._settings.max_intake // max(len(self._owners), 1)
        for limit in (self._settings.disk_bytes, self._settings.max_stream_bytes):
            if limit:
                share = min(share, limit // 8)  # a larger one might never find room
        return min(max(share, LEAST_MESSAGE), self._settings.max_message)

    def segment_bytes(self, run: RunRecord) -> int:
        """Bytes that a segment of a rank should have at most, so that its limit of the disk can be kept; 0: no wish.

        Only closed segments are evicted: those that are written may take a quarter of the limit together.
        """
        ranks = max(len(self._owners), run.world_size or 1)
        return max(self._settings.disk_bytes // (4 * ranks), MIN_BYTES) if self._settings.disk_bytes else 0

    @contextlib.asynccontextmanager
    async def stream(self, hello: Hello, disconnect: Callable[[], object]) -> AsyncGenerator[StreamFile]:
        """The file of a stream, at its end, for one connection: those before it are asked to leave, and waited for.

        Args:
            disconnect: is called when another connection wants the stream.

        Raises:
            FormatError: if the id is none, or the file holds another stream.
            FullError: if there are too many streams, there is no room for another one, or a connection before does not leave,
                or has left and a thread still has the file.
            OSError: if it cannot be opened.
        """
        async with self._owned(hello.stream, disconnect) as owner:
            # It is released when no thread has the file any more: a thread that goes on later would cut confirmed frames.
            async with in_own_task(self._file(hello), lambda: self._release(hello.stream, owner)) as file:
                yield file

    @contextlib.asynccontextmanager
    async def _file(self, hello: Hello) -> AsyncGenerator[StreamFile]:
        with self._writer:
            await self._admit(hello.stream)
            with self._not_removed(hello.stream):
                async with self.quota.writing(0 if hello.stream in self._streams else STREAM_OVERHEAD):
                    file = await self._disk.run(lambda: self._opened(hello), lambda file: file.close())
                try:
                    self._streams.add(hello.stream)
                    yield file
                finally:
                    if (writing := self._writes.get(file)) is not None:
                        await asyncio.wait({writing})
                    await self._disk.run(file.close)

    @contextlib.contextmanager
    def _not_removed(self, stream: str) -> Generator[None]:
        """Prevents the removal of a stream's file inside of the block. Raises `FullError` if it is being removed."""
        with self._opening:
            if stream in self._removing:
                raise FullError("what was there of this stream is being deleted, as another one has it")
            self._open.add(stream)
        self.changed(stream)
        try:
            yield
        finally:
            self._open.discard(stream)
            self.changed(stream)

    @contextlib.asynccontextmanager
    async def _owned(self, stream: str, disconnect: Callable[[], object]) -> AsyncGenerator[_StreamOwner]:
        """Makes a connection the owner of a stream, until `_release`, which may be called after the block."""
        owner = self._owners.setdefault(stream, _StreamOwner())
        for before in owner.users:
            before()
        owner.users.append(disconnect)
        try:
            try:
                async with asyncio.timeout(LEAVING):
                    await owner.lock.acquire()
            except TimeoutError:
                raise FullError(
                    "another connection of this stream does not end, or the disk hangs; try again later"
                ) from None
            yield owner
        finally:
            self._coming.discard(stream)
            owner.users.remove(disconnect)
            self._clear(stream, owner)

    def _release(self, stream: str, owner: _StreamOwner) -> None:
        owner.lock.release()
        self._clear(stream, owner)

    def _clear(self, stream: str, owner: _StreamOwner) -> None:
        if not owner.users and not owner.lock.locked() and self._owners.get(stream) is owner:
            del self._owners[stream]
            if not self._owners:
                unused, self._unused = self._unused, lambda: None
                unused()

    def when_unused(self, unused: Callable[[], object]) -> None:
        """Calls a function as soon as neither a connection nor a thread has a file."""
        self._unused = unused
        if not self._owners:
            unused()

    async def write(
        self, file: StreamFile, new_frames: NewFrames, hello: Hello, written: Callable[[], object] = lambda: None
    ) -> None:
        """Appends to a stream; returns when it is written. It goes on though this is cancelled.

        Args:
            file: of the stream.
            new_frames: what is appended.
            hello: whose stream it is.
            written: is called when it is written, also if nobody waits for that any more.

        Raises:
            FullError: if a limit is met.
            OSError: if it cannot be written.
        """
        if not new_frames.frames:
            written()
            return
        begins = file.begins_segment(new_frames)
        before, size, growth = file.size, len(new_frames.data), file.growth(new_frames, self._block)
        await self.quota.reserve(growth)

        def over(error: OSError | None) -> None:
            self.quota.wrote(growth)
            self._writes.pop(file, None)
            self.problem = "" if error is None else f"streams cannot be written: {error.strerror or error}"
            self.bytes += file.size - before - size
            if begins:
                self.changed(hello.stream)
            if error is None:
                written()

        try:
            for limit, there, what in (
                (self._settings.max_bytes, self.bytes, "of all streams"),
                (self._settings.max_stream_bytes, before, "of a stream"),
            ):
                if limit and there + size > limit:
                    raise FullError(f"the collector's limit of {limit} bytes {what} is met")
            writing = self._writes[file] = self._writer.write(file, new_frames, over)
        except BaseException:
            self.quota.wrote(growth)
            raise
        self.bytes += size
        await uncancelled(writing)

    def remove(self, stream: str) -> bool:
        """Deletes all segments of a stream, from any thread; false if a connection has it. Raises `FormatError` if the
        id is none, and `OSError` if it cannot be deleted."""
        path = self.path(stream)
        with self._opening:
            if stream in self._open:
                return False
            self._removing.add(stream)
        try:
            segments = segment_paths(path) if path.parent.is_dir() else []
            for file in (*segments, path.with_name(evicted.NAME)):
                file.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has put something there, or has deleted it
                path.parent.rmdir()
            self._streams.discard(stream)
        finally:
            self._removing.discard(stream)
            self.changed(stream)
        return True

    def connected(self, stream: str) -> bool:
        """Whether a connection has the file of a stream; from any thread."""
        return stream in self._open

    def path(self, stream: str) -> Path:
        """The journal of a stream. Raises `FormatError` if the id is none."""
        if not _STREAM.fullmatch(stream):
            raise FormatError("the id of a stream is 32 hexadecimal digits")
        return self.streams / stream / "journal"

    def existing(self, stream: str) -> Path | None:
        """The journal of a stream, named by its first segment even if that was deleted; `None` if there is none. Links are not
        followed.

        Raises:
            FormatError: if the id is none.
        """
        path = self.path(stream)
        return path if stat.S_ISDIR(_mode(path.parent)) and stat.S_ISREG(_mode(first_file(path))) else None

    def existing_of(self, streams: Iterable[str]) -> dict[str, Path]:
        """The journals of those of these streams that are there, in their order. Raises `FormatError` if one is no id
        of a stream, and `OSError` if one cannot be looked at."""
        found = ((stream, self.existing(stream)) for stream in streams)
        return {stream: path for stream, path in found if path is not None}

    def journals(self) -> Iterator[tuple[str, Path]]:
        """Ids and journals of all streams. Those that cannot be looked at are in the log."""
        for entry in sorted(os.scandir(self.streams), key=lambda entry: entry.name):
            if not _STREAM.fullmatch(entry.name):
                continue
            path = Path(f"{entry.path}/journal")
            try:
                there = entry.is_dir(follow_symlinks=False) and stat.S_ISREG(_mode(first_file(path)))
            except OSError as error:
                log_unreadable(path, error)
                continue
            if there:
                yield entry.name, path

    def stream_at(self, path: Path) -> str:
        """The id of the stream to which a file or directory belongs; empty if it is of none."""
        parts = path.relative_to(self.streams).parts if path.is_relative_to(self.streams) else ()
        return parts[0] if parts and _STREAM.fullmatch(parts[0]) else ""

    @property
    def surplus_streams(self) -> int:
        """Number of streams that must be deleted before all waiting ones can be admitted."""
        there = len(self._streams) + len(self._coming - self._streams)
        return max(there + self._waiting - self._settings.max_kept_streams, 0) if self._waiting else 0

    async def _admit(self, stream: str) -> None:
        """Admits another stream; if there are too many, one that is over may be deleted for it."""
        if stream in self._streams:
            return
        self._waiting += 1
        try:
            if self.surplus_streams:
                await self.quota.wait_measured()
                # Of those who wait each takes one place, as far as there are any.
                if self.surplus_streams >= self._waiting:
                    raise FullError(
                        f"the collector keeps {self._settings.max_kept_streams} streams, which is its limit"
                    )
            self._coming.add(stream)
        finally:
            self._waiting -= 1

    def check_directory(self) -> None:
        """Raises `OSError` if the directory was removed: what is there now may be another collector's. Asks the disk."""
        if self.is_lost():
            raise FileNotFoundError(
                errno.ENOENT, "the collector's directory was removed; start the collector again", str(self.directory)
            )

    def _opened(self, hello: Hello) -> StreamFile:
        self.check_directory()
        directory = self.path(hello.stream).parent
        directory.mkdir(mode=0o700, exist_ok=True)
        if not stat.S_ISDIR(directory.lstat().st_mode):
            raise FormatError("the directory of this stream is a link")
        return StreamFile(directory, hello.sync, hello.run, durable=self._settings.fsync)


class _StreamOwner:
    """The user of a stream, and the connections that wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users: list[Callable[[], object]] = []


def _check_own(directory: Path) -> None:
    about = directory.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link")
    if about.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user")
