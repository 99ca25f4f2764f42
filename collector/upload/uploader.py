"""Puts the closed segments of a collector's streams into an object store."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stepscope.collector.clocks import server_clock
from stepscope.collector.files.disk import is_silent
from stepscope.collector.live.views import UploadView
from stepscope.collector.upload.object_store import ENDING_S, ObjectStore
from stepscope.exporters.network.backoff import Backoff
from stepscope.exporters.stream.shipper import has_end
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.files.private_files import refuse_link
from stepscope.runtime.loop_threads.ending_tasks import finish
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor

log = logging.getLogger("stepscope.collector")

CLOCKS = "clocks.json"
EVICTED = "evicted"
"""File beside a stream's segments that counts evicted ones."""
CLOCK = re.compile("[0-9a-f]{32}")
FILE = re.compile(r"(?P<stream>[0-9a-f]{32})/(?:journal(?:\.(?P<number>[1-9][0-9]{0,4}))?|evicted)")
"""Name of an object that is a file of a stream. Its path below `streams` is the same."""
LIST_S = 3600.0
"""Seconds after which the store is listed again: what others deleted there is put again."""
MOST_PAUSE_S = 600.0
SILENCE_S = 30.0
"""Seconds without progress of a call after which the page says so."""

Errors = dict[str, OSError | FormatError]
"""Errors by the name of the object, or of the stream."""


class _File(msgspec.Struct, frozen=True):
    name: str
    path: Path
    size: int
    changed_ns: int
    """Unix time of the last change."""
    final: bool
    """Whether it does not change any more."""
    last: bool
    """Whether it is the last segment of its stream."""


class Uploader:
    """Uploads the files that the store does not have with the same size.

    Closed segments never change, so an upload can be interrupted at any time, and several processes can upload the same
    directory to the same URL. Not for several threads at once, except for `uploaded` and `note_change`.

    Args:
        url: see `ObjectStore`.
        connected: whether a connection writes to a stream, as far as is known.
        every: seconds between two calls of `upload`.

    Raises:
        OutputError: see `ObjectStore`.
    """

    streams = complete = 0
    """Number of streams in the directory, and of those that are over and whose last segment is in the store, as of the last look."""
    objects = nbytes = 0
    """Objects and bytes that were put so far."""
    waiting = 0
    """Bytes of closed segments that are not in the store."""

    def __init__(
        self, directory: Path, url: str, connected: Callable[[str], bool] = lambda _: False, every: float = 30.0
    ) -> None:
        self._streams, self._connected = directory / "streams", connected
        self._every, self._backoff = every, Backoff(every, max(every, MOST_PAUSE_S))
        self.pause = every
        """Seconds until the next call: more, up to ten minutes, while the store refuses everything."""
        self.store = ObjectStore(url)
        self._found: dict[str, list[_File]] | None = None
        """Files of each stream, as of the last look at its directory; `None` before the first."""
        self._changed: deque[str] = deque()
        """Streams whose directories are looked at the next time."""
        self._sizes: dict[str, int] = {}
        """Sizes of the objects whose files are in the directory."""
        self._listed: float | None = None
        self._final: set[str] = set()
        """Files in the store that do not change any more."""
        self._ends: dict[str, tuple[int, bool]] = {}
        """For each last segment, its size at the last look, and whether it had an END frame."""
        self._over: list[str] = []
        """Last segments of streams that are over, as of the last look."""
        self._clocks: frozenset[str] | None = None
        """Clocks in the store, if known."""
        self._failed = frozenset[str]()
        """Objects that could not be put the last time. They come last."""
        self._lock = threading.Lock()

    def uploaded(self, path: Path) -> bool:
        """Whether a segment is closed and in the store, as far as this knows. From any thread; does no I/O."""
        return f"{path.parent.name}/{path.name}" in self._final

    def note_change(self, stream: str) -> None:
        """Notes that a segment of a stream was begun or deleted, or that a connection came or went. From any thread."""
        self._changed.append(stream)

    def upload(self, *, rest: bool = False, walk: bool = True) -> None:
        """Puts all closed segments that are missing in the store, and the last segments of streams that are over.

        Args:
            rest: also put the last segments of other streams.
            walk: look at the directories of all streams. Without it, the first call does; later ones look at those of
                `note_change`, and of streams that are over meanwhile.

        Raises:
            OutputError: if the store refuses something. Everything else was put, unless it refuses all.
            FormatError: if a segment is damaged. Everything else was put.
            OSError: if a file cannot be read. Everything else was put.
        """
        before, refuses = self.objects, False
        errors: Errors = {}
        try:
            if self._listed is None or time.monotonic() - self._listed > LIST_S:
                self._sizes, self._clocks = self.store.sizes(), None
                self._listed = time.monotonic()
            # With the rest a second time: a segment may have been closed while a shorter one was put.
            for with_rest in (True, False) if rest else (False,):
                errors |= self._put_missing(with_rest, walk)
            if errors:
                raise min(errors.items(), key=lambda each: (not isinstance(each[1], OutputError), each[0]))[1]
        except OutputError:
            refuses = self.objects == before
            raise
        finally:
            if not refuses:
                self._backoff.reset()
            self.pause = max(self._backoff.delay(), self._every) if refuses else self._every

    def _put_missing(self, rest: bool, walk: bool) -> Errors:
        errors: Errors = {}
        files = self._files(errors, walk)
        seen = {file.name for file in files}
        self.streams = len({name[:32] for name in seen})
        self._sizes = {
            name: size for name, size in self._sizes.items() if name in seen or name == CLOCKS or name[:32] in errors
        }
        self._ends = {name: end for name, end in self._ends.items() if name in seen}
        missing = [file for file in files if self._sizes.get(file.name) != file.size]
        self._final = {file.name for file in files if file.final} - {file.name for file in missing}
        self.waiting = sum(file.size for file in missing if file.final)
        missing.sort(key=lambda file: (file.name in self._failed, file.changed_ns))
        calls: dict[str, Callable[[], None]] = {CLOCKS: self._put_clocks}
        calls |= {file.name: partial(self._put, file) for file in missing if file.final or rest}
        failed = self.store.in_parallel(calls)
        self._failed = frozenset(failed)
        self.complete = sum(name in self._final for name in self._over)
        return errors | failed

    def _files(self, errors: Errors, walk: bool) -> list[_File]:
        """Returns all files of streams, by what is known of those that have not changed. Files that cannot be read are added to `errors`."""
        refuse_link(self._streams)
        streams: Iterable[str]
        if walk or self._found is None:
            self._changed.clear()
            streams = os.listdir(self._streams)
            self._found = {}
        else:
            silent = (name for name, its in self._found.items() if any(map(self._is_over_now, its)))
            streams = {*(self._changed.popleft() for _ in range(len(self._changed))), *silent}
        before = len(errors)
        for stream in streams:
            self._found.pop(stream, None)
            files = self._files_of(stream, errors)
            if files:
                self._found[stream] = files
            if len(errors) > before:  # it is looked at again
                self._changed.append(stream)
                before = len(errors)
        files = [file for its in self._found.values() for file in its]
        self._over = [file.name for file in files if file.last and file.final]
        return files

    def _files_of(self, stream: str, errors: Errors) -> list[_File]:
        files: list[_File] = []
        directory = self._streams / stream
        try:
            found = [] if directory.is_symlink() else list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):  # evicted meanwhile, or none of ours
            return []
        except OSError as error:
            errors[stream] = error
            return []
        regular = {f"{stream}/{entry.name}": entry for entry in found if entry.is_file(follow_symlinks=False)}
        numbers = {name: int(match["number"] or 0) for name in regular if (match := FILE.fullmatch(name))}
        most = max(numbers.values(), default=0)
        for name, number in numbers.items():
            entry = regular[name]
            try:
                last = number == most and entry.name != EVICTED
                over = not last or self._is_over(stream, name, Path(entry.path))
                about = entry.stat(follow_symlinks=False)  # after the look at its end
                files.append(_File(name, Path(entry.path), about.st_size, about.st_mtime_ns, over, last))
            except FileNotFoundError:  # evicted meanwhile
                continue
            except (OSError, FormatError) as error:
                errors[name] = error
        return files

    def _is_over(self, stream: str, name: str, path: Path) -> bool:
        """Whether nothing more is expected of a stream with this last segment, which is only read if its size has changed."""
        if self._connected(stream):
            return False
        about = path.lstat()
        if name not in self._ends or self._ends[name][0] != about.st_size:
            self._ends[name] = about.st_size, has_end(path)
        return self._ends[name][1] or is_silent(about.st_mtime_ns)

    def _is_over_now(self, file: _File) -> bool:
        """Whether a stream was not over when its last segment was looked at, and is so now for its silence."""
        return not file.final and is_silent(file.changed_ns) and not self._connected(file.name[:32])

    def _put(self, file: _File) -> None:
        try:
            descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:  # evicted meanwhile
            self.note_change(file.name[:32])
            return
        with open(descriptor, "rb", buffering=0) as content:
            self.store.put(file.name, content, file.size)
        with self._lock:
            self._sizes[file.name] = file.size
            self.objects += 1
            self.nbytes += file.size
            if file.final:
                self._final.add(file.name)
                self.waiting -= file.size

    def _put_clocks(self) -> None:
        """Adds the names of this collector's clocks to those in the store: a merge needs all."""
        if self._clocks is None:
            self._clocks = read_clocks(self.store, self._sizes.get(CLOCKS, 0))
        names = self._clocks | (server_clock.read_clock_names(self._streams.parent) or frozenset())
        if names != self._clocks:
            data = msgspec.json.format(msgspec.json.encode(sorted(names)))
            self.store.put(CLOCKS, io.BytesIO(data), len(data))
            self._clocks = names


def read_clocks(store: ObjectStore, nbytes: int) -> frozenset[str]:
    """Reads the names of the clocks of all collectors that uploaded to this URL.

    Args:
        nbytes: size of the object; 0 if there is none.

    Raises:
        OutputError: if the store refuses.
        FormatError: if the object is damaged.
    """
    data = io.BytesIO()
    store.get(CLOCKS, data, nbytes)
    try:
        return frozenset(filter(CLOCK.fullmatch, msgspec.json.decode(data.getvalue() or b"[]", type=list[str])))
    except msgspec.MsgspecError as error:
        text = f"{store.root}/{CLOCKS} is not a list of clocks: {error}; delete it, and upload again"
        raise FormatError(text) from error


class Uploading:
    """The collector's own upload: uploads closed segments every few seconds. Nothing else waits for the store.

    Args:
        url: see `ObjectStore`.
        every: seconds between two looks, see `Uploader.pause`.
        connected: whether a connection writes to a stream.

    Raises:
        OutputError: see `ObjectStore`; or if the URL contains a password, which the page would show.
    """

    def __init__(
        self, directory: Path, url: str, *, every: float, connected: Callable[[str], bool] = lambda _: False
    ) -> None:
        parts = urlsplit(url)
        if parts.password is not None:
            raise OutputError("the URL of an upload must not contain a password; set it in the driver's own variables")
        self._url = urlunsplit(parts._replace(query="", fragment=""))
        self._uploader = Uploader(directory, url, connected, every)
        self.note_change = self._uploader.note_change
        self._at: int | None = None
        self._problem = ""

    def uploaded(self, path: Path) -> bool:
        """See `Uploader.uploaded`."""
        return self._uploader.uploaded(path)

    async def run(self) -> None:
        """Runs until it is cancelled. Segments that are not in the store by then are put after the next start."""
        loop = asyncio.get_running_loop()
        executor = DaemonExecutor()  # a store that hangs keeps no collector from ending
        work: asyncio.Future[None] | None = None
        try:
            while True:
                problem = ""
                try:
                    work = loop.run_in_executor(executor, partial(self._uploader.upload, walk=False))
                    await asyncio.shield(work)
                except Exception as error:  # whatever it is, it may be over the next time
                    problem = str(error)[:500]
                    if problem != self._problem:
                        log.error("not everything could be uploaded, and is tried again: %s", problem)
                self._problem = problem
                self._at = time.time_ns()
                await asyncio.sleep(self._uploader.pause)
        finally:
            self._uploader.store.stop()
            try:
                if work is not None:
                    with contextlib.suppress(Exception):  # that it was stopped
                        await finish(work, ENDING_S)
            finally:
                executor.shutdown()

    def view(self) -> UploadView:
        """State of the upload for the page and `/v1/job`."""
        made, silence = self._uploader, self._uploader.store.silence
        return UploadView(
            url=self._url,
            streams=made.streams,
            complete=made.complete,
            bytes=made.nbytes,
            waiting_bytes=made.waiting,
            at_ns=self._at,
            problem=f"nothing was heard of the store for {silence:.0f} s" if silence > SILENCE_S else self._problem,
        )
