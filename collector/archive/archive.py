"""An archive of streams in any store that fsspec knows: of each its parts, and a manifest that names them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import threading
import time
import zlib
from collections.abc import Generator, Iterable
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import msgspec

from stepscope.runtime.errors import FormatError, OutputError

log = logging.getLogger("stepscope.collector")

_fsspec: Any = importlib.import_module("fsspec.core")
"""It has no annotations."""

MANIFEST = "manifest.json"
CLOCKS = "clocks.json"
_ID = re.compile("[0-9a-f]{32}")


class Part(msgspec.Struct, frozen=True):
    """One object in the store: so many bytes of a stream's journal, after those of the parts before it."""

    name: str
    size: int
    crc: int


class Manifest(msgspec.Struct, frozen=True):
    """What of a stream is in the store. Written after each part, so what it names is there."""

    stream: str
    parts: list[Part] = []
    complete: bool = False
    """Whether the stream has its end, and all of it is there."""

    @property
    def size(self) -> int:
        """Bytes of the journal that are there."""
        return sum(part.size for part in self.parts)


class Archive:
    """What is in the store. A part is never changed. Calls block, and raise `OutputError` if the store refuses."""

    def __init__(self, url: str, **options: Any) -> None:
        """
        Args:
            url: of a directory, as fsspec has it: `s3://bucket/job1`, `file:///mnt/x`, `memory://x`.
            options: of the file system, such as credentials; better given in its own environment variables.

        Raises:
            OutputError: if nothing is known that handles such a URL.
        """
        try:
            files, root = _fsspec.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise OutputError(f"nothing can be uploaded there, or come from there: {error}") from error
        self.files: Any = files
        """The file system, as fsspec has it."""
        self.root = str(root).rstrip("/")
        host = urlsplit(url).hostname or ""
        place = str(files.unstrip_protocol(self.root))
        self.place = place if host in place else f"{place} at {host}"
        """Which directory of which store, without what lets one in."""
        self._stopped = threading.Event()
        self._sign: float | None = None
        """When something came of what it is asked now."""

    def stop(self) -> None:
        """Makes a call that writes, now or later, end soon with an error; from any thread."""
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        """Whether it was."""
        return self._stopped.is_set()

    def pause(self, seconds: float) -> None:
        """Waits.

        Raises:
            OSError: if it was stopped.
        """
        if self._stopped.wait(seconds):
            raise OSError("the upload was stopped")
        self._sign = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds for which nothing has come of what it is asked now."""
        sign = self._sign
        return 0.0 if sign is None else time.monotonic() - sign

    def streams(self) -> list[str]:
        """Ids of the streams that are there."""
        with self._asking(f"{self.root} cannot be read"):
            if not self.files.exists(self.root):
                return []
            names = (str(found).rstrip("/").rpartition("/")[2] for found in self.files.ls(self.root, detail=False))
            return sorted(name for name in names if _ID.fullmatch(name))

    def manifest(self, stream: str) -> Manifest:
        """What of a stream is there; from the first part on that somebody has removed, it is not.

        Raises:
            OutputError: if the store cannot be asked.
            FormatError: if the manifest is damaged.
        """
        path = f"{self.root}/{stream}/{MANIFEST}"
        with self._asking(f"{path} cannot be read"):
            if not self.files.exists(path):
                return Manifest(stream)
            data: bytes = self.files.cat_file(path)
            try:
                found = msgspec.json.decode(data, type=Manifest)
            except msgspec.MsgspecError as error:
                raise FormatError(f"{path} is no manifest: {error}; remove it to upload the stream again") from error
            sizes = {part.name: self._size(f"{self.root}/{stream}/{part.name}") for part in found.parts}
        whole = [part for part in found.parts if sizes[part.name] == part.size]
        if len(whole) == len(found.parts):
            return found
        first = next(index for index, part in enumerate(found.parts) if sizes[part.name] != part.size)
        return Manifest(stream, found.parts[:first])

    def write(self, stream: str, start: int, end: int, pieces: Iterable[bytes]) -> Part:
        """A new part, of these bytes of a journal. If it is interrupted, what was written is in no manifest."""
        name = f"journal.{start:015d}-{end:015d}"
        target = f"{self.root}/{stream}/{name}"
        crc = 0
        with self._asking(f"{target} cannot be written"):
            self.files.makedirs(f"{self.root}/{stream}", exist_ok=True)
            with self.files.open(target, "wb") as file:
                for piece in pieces:
                    self.pause(0)
                    file.write(piece)
                    crc = zlib.crc32(piece, crc)
        return Part(name, end - start, crc)

    def note(self, manifest: Manifest) -> None:
        """Writes a manifest."""
        self._put(f"{manifest.stream}/{MANIFEST}", manifest)

    def read(self, stream: str, part: Part) -> bytes:
        """The bytes of a part.

        Raises:
            FormatError: if they are not those that the manifest names.
            OutputError: if the store cannot be asked.
        """
        path = f"{self.root}/{stream}/{part.name}"
        with self._asking(f"{path} cannot be read"):
            data: bytes = self.files.cat_file(path)
        if len(data) != part.size or zlib.crc32(data) != part.crc:
            raise FormatError(f"{part.name} of stream {stream} is damaged in the store")
        return data

    def restore(self, manifest: Manifest, file: BinaryIO) -> None:
        """Writes the journal of a stream, put together from its parts.

        Raises:
            FormatError: if a part is not what the manifest says.
            OutputError: if the store cannot be asked.
            OSError: if the file cannot be written.
        """
        for part in manifest.parts:
            file.write(self.read(manifest.stream, part))

    def remove(self, stream: str, parts: Iterable[Part]) -> None:
        """Deletes parts that no manifest names any more; one that cannot be deleted is of no harm."""
        for part in parts:
            try:
                self.files.rm_file(f"{self.root}/{stream}/{part.name}")
            except Exception as error:  # whatever such a store raises
                log.warning("%s of stream %s is left in the store: %s", part.name, stream, error)

    def clocks(self) -> frozenset[str]:
        """The clocks of the collectors whose streams are there.

        Raises:
            FormatError: if what says so is damaged.
        """
        path = f"{self.root}/{CLOCKS}"
        with self._asking(f"{path} cannot be read"):
            if not self.files.exists(path):
                return frozenset()
            data: bytes = self.files.cat_file(path)
        try:
            return frozenset(filter(_ID.fullmatch, msgspec.json.decode(data, type=list[str])))
        except msgspec.MsgspecError as error:
            raise FormatError(f"{path} is no list of clocks: {error}; remove it to upload it again") from error

    def add_clocks(self, names: frozenset[str]) -> None:
        """Notes clocks beside those that are there.

        Raises:
            FormatError: as `clocks`.
        """
        there = self.clocks()
        if not names <= there:
            with self._asking(f"{self.root} cannot be made"):
                self.files.makedirs(self.root, exist_ok=True)
            self._put(CLOCKS, sorted(names | there))

    def _put(self, name: str, content: Manifest | list[str]) -> None:
        """Writes a small object, all of it or nothing."""
        path = f"{self.root}/{name}"
        with self._asking(f"{path} cannot be written"):
            self.pause(0)
            data = msgspec.json.format(msgspec.json.encode(content))
            if "file" in self.files.protocol:  # which alone may be left with a part of it
                self.files.pipe_file(f"{path}.new", data)
                self.files.mv(f"{path}.new", path)
            else:
                self.files.pipe_file(path, data)

    def _size(self, path: str) -> int:
        try:
            return int(self.files.size(path))
        except FileNotFoundError:
            return -1

    @contextlib.contextmanager
    def _asking(self, failure: str) -> Generator[None]:
        """Around calls of a file system: many raise what the libraries raise that they use, which is no OSError."""
        within = self._sign is not None
        self._sign = time.monotonic()
        try:
            yield
        except (FormatError, OutputError):
            raise
        except OSError as error:
            raise OutputError(f"{failure}: {error}") from error
        except Exception as error:
            raise OutputError(f"{failure}: {type(error).__name__}: {error}") from error
        finally:
            self._sign = time.monotonic() if within else None
