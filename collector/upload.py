"""Uploads the streams of a collector to any store that fsspec knows, in parts, and goes on where it was interrupted."""

from __future__ import annotations

import importlib
import os
import zlib
from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector.store import Store
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frames import FrameReader

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


class Uploaded(msgspec.Struct, frozen=True):
    """What one call of `Uploader.upload` did."""

    streams: int
    complete: int
    parts: int
    nbytes: int


class Uploader:
    """Copies journals to a store in parts of equal size; the last part of a stream follows when the stream has ended.

    A part is written once. If an upload is interrupted the next one reads the manifest and goes on with the part that
    is missing. Calls block.
    """

    def __init__(self, store: Store, url: str, *, part_bytes: int = PART_BYTES, **options: Any) -> None:
        """
        Args:
            store: whose streams are uploaded.
            url: of a directory, as fsspec has it: `s3://bucket/job1`, `file:///mnt/x`, `memory://x`.
            part_bytes: size of a part.
            options: of the file system, such as credentials; better given in its own environment variables.

        Raises:
            OutputError: if nothing is known that handles such a URL.
        """
        if part_bytes < 1:
            raise ValueError(f"part_bytes must be 1 or more, got {part_bytes}")
        self._store, self._part_bytes = store, part_bytes
        try:
            files, root = _fsspec.url_to_fs(url, **options)
        except (ValueError, ImportError) as error:
            raise OutputError(f"nothing can be uploaded there: {error}") from error
        self.files: Any = files
        """The file system, as fsspec has it."""
        self._root = str(root).rstrip("/")

    def upload(self, *, rest: bool = False) -> Uploaded:
        """Uploads what is new.

        Args:
            rest: also the last part of streams that have not ended; it is replaced when they go on.

        Raises:
            OutputError: if the store refuses; what was uploaded is noted, and the next call goes on from there.
        """
        streams = complete = parts = nbytes = 0
        for stream, path in self._store.journals():
            done, sizes = self._stream(stream, path, rest)
            streams += 1
            complete += done
            parts += len(sizes)
            nbytes += sum(sizes)
        return Uploaded(streams, complete, parts, nbytes)

    def manifest(self, stream: str) -> Manifest:
        """What of a stream is in the store.

        Raises:
            OutputError: if the store cannot be asked, or the manifest is damaged.
        """
        path = f"{self._root}/{stream}/{MANIFEST}"
        try:
            if not self.files.exists(path):
                return Manifest(stream)
            found = msgspec.json.decode(self.files.cat_file(path), type=Manifest)
            sizes = {part.name: self._size(f"{self._root}/{stream}/{part.name}") for part in found.parts}
        except msgspec.MsgspecError as error:
            raise OutputError(f"{path} is no manifest: {error}; remove it to upload the stream again") from error
        except OSError as error:
            raise OutputError(f"{path} cannot be read: {error}") from error
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
            FormatError: if a part is not what the manifest says.
            OutputError: if the store or the file system refuses.
        """
        manifest = self.manifest(stream)
        try:
            with path.open("xb") as file:
                for part in manifest.parts:
                    data: bytes = self.files.cat_file(f"{self._root}/{stream}/{part.name}")
                    if len(data) != part.size or zlib.crc32(data) != part.crc:
                        raise FormatError(f"{part.name} of stream {stream} is damaged in the store")
                    file.write(data)
        except OSError as error:
            raise OutputError(f"stream {stream} cannot be restored to {path}: {error}") from error
        return manifest.size

    def _stream(self, stream: str, path: Path, rest: bool) -> tuple[bool, list[int]]:
        manifest = self.manifest(stream)
        if manifest.complete:
            return True, []
        whole, ended = _whole(path)
        parts = [part for part in manifest.parts if part.size == self._part_bytes]
        sizes: list[int] = []
        at = sum(part.size for part in parts)
        while at < whole:
            size = min(self._part_bytes, whole - at)
            if size < self._part_bytes and not (ended or rest):
                break
            parts.append(self._part(stream, path, len(parts), at, size))
            sizes.append(size)
            at += size
            self._note(Manifest(stream, parts, ended and at == whole))
        if ended and at == whole and not sizes:
            self._note(Manifest(stream, parts, True))
        return ended and at == whole, sizes

    def _part(self, stream: str, path: Path, number: int, at: int, size: int) -> Part:
        name = f"journal.{number:06d}"
        target = f"{self._root}/{stream}/{name}"
        crc = 0
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            self.files.makedirs(f"{self._root}/{stream}", exist_ok=True)
            with self.files.open(target, "wb") as file:
                left = size
                while left:
                    piece = os.pread(fd, min(CHUNK, left), at + size - left)
                    if not piece:
                        raise OSError(f"{path} was cut while it was uploaded")
                    file.write(piece)
                    crc = zlib.crc32(piece, crc)
                    left -= len(piece)
        except OSError as error:
            raise OutputError(f"{target} cannot be written: {error}") from error
        finally:
            os.close(fd)
        return Part(name, size, crc)

    def _note(self, manifest: Manifest) -> None:
        path = f"{self._root}/{manifest.stream}/{MANIFEST}"
        try:
            self.files.pipe_file(path, msgspec.json.format(msgspec.json.encode(manifest)))
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error}") from error

    def _size(self, path: str) -> int:
        try:
            return int(self.files.size(path))
        except FileNotFoundError:
            return -1


def _whole(path: Path) -> tuple[int, bool]:
    """(bytes of whole frames, whether the last of them ends the journal)."""
    reader = FrameReader(path, follow=False)
    ended = False
    try:
        while (frame := reader.next(lambda _: True)) is not None:
            ended = frame[0] == fmt.FrameType.END
        return reader.position[1], ended
    finally:
        reader.close()
