"""Uploads the streams of a collector to any store that fsspec knows, in parts, and goes on where it was interrupted."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector.store import Store
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frames import FrameReader

log = logging.getLogger("stepscope.collector")

_fsspec: Any = importlib.import_module("fsspec.core")
"""It has no annotations."""

PART_BYTES = 64 << 20
CHUNK = 1 << 20
MANIFEST = "manifest.json"


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


class Extent(msgspec.Struct, frozen=True):
    """How far a journal is whole."""

    number: int = 0
    """Of the next frame."""
    at: int = 0
    """Where that begins."""
    windows_at: int = 0
    """Where the last window that has ended ends."""
    ended: bool = False


class Uploaded(msgspec.Struct, frozen=True):
    """What one call of `Uploader.upload` did."""

    streams: int
    complete: int
    parts: int
    nbytes: int


class Uploader:
    """Copies journals to a store in parts; the last part of a stream follows when the stream has ended.

    A part is never changed. If an upload is interrupted the next one reads the manifest and goes on with the part that is
    missing; what was written of it stays, and is in no manifest. A smaller part takes in those before it that are no
    larger, so a stream that grows slowly has few parts, and each byte is copied a few times. Calls block.
    """

    def __init__(
        self, store: Store, url: str, *, part_bytes: int = PART_BYTES, alone: bool = False, **options: Any
    ) -> None:
        """
        Args:
            store: whose streams are uploaded.
            url: of a directory, as fsspec has it: `s3://bucket/job1`, `file:///mnt/x`, `memory://x`.
            part_bytes: most bytes of a part.
            alone: whether nobody else changes what is there, so that it need not be looked at again.
            options: of the file system, such as credentials; better given in its own environment variables.

        Raises:
            OutputError: if nothing is known that handles such a URL.
        """
        if part_bytes < 1:
            raise ValueError(f"part_bytes must be 1 or more, got {part_bytes}")
        self._store, self._part_bytes, self._alone = store, part_bytes, alone
        self._manifests: dict[str, Manifest] = {}
        self._extents: dict[str, Extent] = {}
        self._stopped = threading.Event()
        self._tried = ""
        """The last stream that was tried before the store was given up for a while."""
        self.done = Uploaded(0, 0, 0, 0)
        """What the last call did, also if it ended with an error."""
        self.nbytes = 0
        """Uploaded so far."""
        try:
            files, root = _fsspec.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise OutputError(f"nothing can be uploaded there: {error}") from error
        self.files: Any = files
        """The file system, as fsspec has it."""
        self._root = str(root).rstrip("/")

    def stop(self) -> None:
        """Makes a call that is under way end soon, with an error; from any thread."""
        self._stopped.set()

    def copied(self, stream: str) -> int:
        """Bytes of a stream's journal that are in the store, as far as is known without asking it."""
        known = self._manifests.get(stream)
        return 0 if known is None else known.size

    def upload(self, *, rest: bool = False, windows: bool = False) -> Uploaded:
        """Uploads what is new.

        Args:
            rest: also what there is of streams that have not ended.
            windows: also what there is of them up to the last window that has ended.

        Raises:
            OutputError: if the store refuses; what was uploaded is noted, and the next call goes on from there. One that
                refuses two streams in a row is not asked for the others, which are the first of the next call.
            FormatError: if a journal, or what is in the store, is damaged; all others were uploaded.
            OSError: if a journal cannot be read; all others were uploaded.
        """
        complete = parts = nbytes = refused = 0
        problem: OSError | FormatError | None = None
        journals = list(self._store.journals())
        begin = next((index for index, (stream, _) in enumerate(journals) if stream > self._tried), 0)
        self._tried = ""
        for stream, path in journals[begin:] + journals[:begin]:
            before, refused = refused, 0
            try:
                done, sizes = self._stream(stream, path, rest, windows)
            except (OSError, FormatError) as error:
                if not path.exists():
                    continue  # it was removed meanwhile
                problem = problem or error
                refused = before + isinstance(error, OutputError)
                if refused > 1 or self._stopped.is_set():
                    self._tried = stream
                    break
                continue
            complete += done
            parts += len(sizes)
            nbytes += sum(sizes)
        self.done = Uploaded(len(journals), complete, parts, nbytes)
        if problem is not None:
            raise problem
        return self.done

    def waiting(self) -> int:
        """Bytes of windows and streams that have ended, as far as was seen, that are not in the store."""
        return sum(
            max((extent.at if extent.ended else extent.windows_at) - self.copied(stream), 0)
            for stream, extent in list(self._extents.items())
        )

    def manifest(self, stream: str) -> Manifest:
        """What of a stream is in the store.

        Raises:
            OutputError: if the store cannot be asked.
            FormatError: if the manifest is damaged.
        """
        path = f"{self._root}/{stream}/{MANIFEST}"
        with _asking(f"{path} cannot be read"):
            if not self.files.exists(path):
                return Manifest(stream)
            data: bytes = self.files.cat_file(path)
            try:
                found = msgspec.json.decode(data, type=Manifest)
            except msgspec.MsgspecError as error:
                raise FormatError(f"{path} is no manifest: {error}; remove it to upload the stream again") from error
            sizes = {part.name: self._size(f"{self._root}/{stream}/{part.name}") for part in found.parts}
        whole = [part for part in found.parts if sizes[part.name] == part.size]
        if len(whole) == len(found.parts):
            return found
        # Somebody has removed parts: from the first of them on everything is uploaded again.
        first = next(index for index, part in enumerate(found.parts) if sizes[part.name] != part.size)
        return Manifest(stream, found.parts[:first])

    def restore(self, stream: str, path: Path) -> int:
        """Puts a journal together from its parts.

        Returns:
            Its bytes.

        Raises:
            FormatError: if a part is not what the manifest says, or that is damaged.
            OutputError: if the store or the file system refuses.
        """
        manifest = self.manifest(stream)
        with _asking(f"stream {stream} cannot be restored to {path}"), path.open("xb") as file:
            for part in manifest.parts:
                file.write(self._read(stream, part))
        return manifest.size

    def _stream(self, stream: str, path: Path, rest: bool, windows: bool) -> tuple[bool, list[int]]:
        manifest = self._manifests.get(stream) if self._alone else None
        manifest = manifest or self.manifest(stream)
        self._manifests[stream] = manifest
        if manifest.complete:
            return True, []
        extent = self._extents[stream] = _extent(path, self._extents.get(stream, Extent()))
        whole = extent.at
        end = whole if extent.ended or rest else extent.windows_at if windows else 0
        sizes: list[int] = []
        at = manifest.size
        while (size := min(self._part_bytes, whole - at)) == self._part_bytes or (size := end - at) > 0:
            parts, smaller = self._divided(manifest, size)
            parts.append(self._part(stream, path, smaller, at, size))
            sizes.append(size)
            self.nbytes += size
            at += size
            manifest = self._note(Manifest(stream, parts, extent.ended and at == whole))
            self._remove(stream, smaller)
        if extent.ended and at == whole and not manifest.complete:
            manifest = self._note(Manifest(stream, manifest.parts, True))
        return manifest.complete, sizes

    def _divided(self, manifest: Manifest, size: int) -> tuple[list[Part], list[Part]]:
        """The parts that stay, and those that one of so many bytes takes in."""
        stay = list(manifest.parts)
        smaller: list[Part] = []
        while stay and stay[-1].size <= size and stay[-1].size + size <= self._part_bytes:
            smaller.insert(0, stay.pop())
            size += smaller[0].size
        return stay, smaller

    def _part(self, stream: str, path: Path, smaller: list[Part], at: int, size: int) -> Part:
        """Writes parts that are there and what follows them as one."""
        start, crc = at - sum(part.size for part in smaller), 0
        name = f"journal.{start:015d}-{at + size:015d}"
        target = f"{self._root}/{stream}/{name}"
        with _asking(f"{target} cannot be written"):
            self.files.makedirs(f"{self._root}/{stream}", exist_ok=True)
            with self._store.rewriting, self.files.open(target, "wb") as file:
                # From the store: here something of them may have been given up since.
                for piece in (*(self._read(stream, part) for part in smaller), *_pieces(path, at, size)):
                    if self._stopped.is_set():
                        raise OSError("the upload was stopped")
                    file.write(piece)
                    crc = zlib.crc32(piece, crc)
        return Part(name, at + size - start, crc)

    def _read(self, stream: str, part: Part) -> bytes:
        data: bytes = self.files.cat_file(f"{self._root}/{stream}/{part.name}")
        if len(data) != part.size or zlib.crc32(data) != part.crc:
            raise FormatError(f"{part.name} of stream {stream} is damaged in the store")
        return data

    def _remove(self, stream: str, parts: list[Part]) -> None:
        """Deletes parts that no manifest names any more; one that cannot be deleted is of no harm."""
        for part in parts:
            try:
                self.files.rm_file(f"{self._root}/{stream}/{part.name}")
            except Exception as error:  # whatever such a store raises
                log.warning("%s of stream %s is left in the store: %s", part.name, stream, error)

    def _note(self, manifest: Manifest) -> Manifest:
        path = f"{self._root}/{manifest.stream}/{MANIFEST}"
        with _asking(f"{path} cannot be written"):
            if self._stopped.is_set():
                raise OSError("the upload was stopped")
            data = msgspec.json.format(msgspec.json.encode(manifest))
            if "file" in self.files.protocol:  # which alone may be left with a part of it
                self.files.pipe_file(f"{path}.new", data)
                self.files.mv(f"{path}.new", path)
            else:
                self.files.pipe_file(path, data)
        self._manifests[manifest.stream] = manifest
        return manifest

    def _size(self, path: str) -> int:
        try:
            return int(self.files.size(path))
        except FileNotFoundError:
            return -1


@contextlib.contextmanager
def _asking(failure: str) -> Generator[None]:
    """Around calls of a file system: many raise what the libraries raise that they use, which is no OSError."""
    try:
        yield
    except (FormatError, OutputError):
        raise
    except OSError as error:
        raise OutputError(f"{failure}: {error}") from error
    except Exception as error:
        raise OutputError(f"{failure}: {type(error).__name__}: {error}") from error


def _pieces(path: Path, at: int, size: int) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        end = at + size
        while at < end:
            piece = os.pread(fd, min(CHUNK, end - at), at)
            if not piece:
                raise OSError(f"{path} was cut while it was uploaded")
            yield piece
            at += len(piece)
    finally:
        os.close(fd)


def _extent(path: Path, known: Extent) -> Extent:
    """How far a journal is whole; what was seen before is not read again."""
    if known.ended:
        return known
    reader = FrameReader(path, follow=False)
    windows_at, ended = known.windows_at, False
    try:
        if known.at:
            reader.resume(known.number, known.at)
        while (frame := reader.next(lambda _: True)) is not None:
            ended = frame[0] == fmt.FrameType.END
            if frame[0] == fmt.FrameType.WINDOW_CLOSED:
                windows_at = reader.position[1]
        number, at = reader.position
        return Extent(number, at, windows_at, ended)
    finally:
        reader.close()
