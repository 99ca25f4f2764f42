"""Uploads the streams of a collector to an archive, in parts, and goes on where it was interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from stepscope.collector import clock_names
from stepscope.collector.archive.archive import Archive, Manifest, Part
from stepscope.collector.files.borders import BorderNotes
from stepscope.collector.files.lock import UploadLock
from stepscope.collector.files.store import Store
from stepscope.collector.files.whole_frames import fitting, is_border, pieces
from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.frame_reader import FrameReader

PART_BYTES = 64 << 20
PATIENCE = 60.0
"""Seconds that it waits for the end of what is being given up."""


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
    """Copies journals to an archive in parts; the last part of a stream follows when the stream has ended.

    Parts end where frames do, and each frame is copied as it is at one moment, whatever is given up meanwhile, by whom. If
    an upload is interrupted the next one reads the manifest and goes on with the part that is missing; what was written of
    it stays, and is in no manifest. A smaller part takes in those before it that are no larger, so a stream that grows
    slowly has few parts, and each byte is copied a few times. Calls block; nobody waits for the store but the caller.
    """

    def __init__(
        self, store: Store, url: str, *, part_bytes: int = PART_BYTES, alone: bool = False, **options: Any
    ) -> None:
        """
        Args:
            store: whose streams are uploaded.
            url: of a directory, as `Archive` has it.
            part_bytes: most bytes of a part; a frame that is larger is one of its own.
            alone: whether nobody else changes what is there, so that it need not be looked at again.
            options: of the file system.

        Raises:
            OutputError: if nothing is known that handles such a URL.
        """
        if part_bytes < 1:
            raise ValueError(f"part_bytes must be 1 or more, got {part_bytes}")
        self._store, self._part_bytes, self._alone = store, part_bytes, alone
        self.archive = Archive(url, **options)
        self.lock = UploadLock(store.directory, self.archive.place)
        """To be held by those who upload from a process of their own."""
        self._notes = BorderNotes(store.directory, self.archive.place)
        self._manifests: dict[str, Manifest] = {}
        self._extents: dict[str, Extent] = {}
        self._clocks = frozenset[str]()
        """Those that are there."""
        self._tried = ""
        """The last stream that was tried before the store was given up for a while."""
        self.done = Uploaded(0, 0, 0, 0)
        """What the last call did, also if it ended with an error."""
        self.nbytes = 0
        """Uploaded so far."""

    def stop(self) -> None:
        """Makes a call that is under way end soon, with an error; from any thread."""
        self.archive.stop()

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
                if refused > 1 or self.archive.stopped:
                    self._tried = stream
                    break
                continue
            complete += done
            parts += len(sizes)
            nbytes += sum(sizes)
        if refused < 2 and not self.archive.stopped:
            try:
                self._note_clocks()
            except (OSError, FormatError) as error:
                problem = problem or error
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

    def _stream(self, stream: str, path: Path, rest: bool, windows: bool) -> tuple[bool, list[int]]:
        manifest = self._manifests.get(stream) if self._alone else None
        manifest = self._manifests[stream] = manifest or self.archive.manifest(stream)
        if manifest.complete:
            return True, []
        extent = self._extents[stream] = _extent(path, self._extents.get(stream, Extent()))
        whole = extent.at
        end = whole if extent.ended or rest else extent.windows_at if windows else 0
        sizes: list[int] = []
        at = manifest.size
        self._goes_on(stream, path, at)
        while at < whole:
            to, full = fitting(path, at, whole, self._part_bytes)
            if not full:
                to = end
            if to <= at:
                break
            if not self._noted(stream, path, at, to):
                # Frames around it were given up together since it was looked at.
                del self._extents[stream]
                break
            stay, smaller = self._divided(manifest, to - at)
            part = self.archive.write(
                stream,
                at - sum(one.size for one in smaller),
                to,
                # From the archive: here something of them may have been given up since.
                chain((self.archive.read(stream, one) for one in smaller), self._pieces(stream, path, at, to)),
            )
            sizes.append(to - at)
            self.nbytes += to - at
            at = to
            manifest = self._note(Manifest(stream, [*stay, part], extent.ended and at == whole))
            self.archive.remove(stream, smaller)
        if extent.ended and at == whole and not manifest.complete:
            manifest = self._note(Manifest(stream, manifest.parts, True))
        return manifest.complete, sizes

    def _goes_on(self, stream: str, path: Path, at: int) -> None:
        """What follows the parts that are there begins at this byte, and will.

        Raises:
            FormatError: if no frame begins there any more.
        """
        with self._held():
            if at in self._notes.read(stream) or not at:
                return
            if not is_border(path, at):
                raise FormatError(
                    f"what is in the store of stream {stream} does not fit its journal any more, of which something was "
                    "given up since; remove it there to upload the stream again"
                )
            self._notes.put(stream, at)

    def _noted(self, stream: str, path: Path, at: int, to: int) -> bool:
        """Whether a part can end there: it will then, whatever is given up."""
        with self._held():
            if not is_border(path, to):
                return False
            self._notes.put(stream, at, to)
            return True

    def _pieces(self, stream: str, path: Path, at: int, to: int) -> Iterator[bytes]:
        return pieces(path, at, to, self._held, lambda next: self._notes.put(stream, at, next, to))

    def _divided(self, manifest: Manifest, size: int) -> tuple[list[Part], list[Part]]:
        """The parts that stay, and those that one of so many bytes takes in."""
        stay = list(manifest.parts)
        smaller: list[Part] = []
        while stay and stay[-1].size <= size and stay[-1].size + size <= self._part_bytes:
            smaller.insert(0, stay.pop())
            size += smaller[0].size
        return stay, smaller

    def _held(self) -> AbstractContextManager[None]:
        return self._store.frames.held(PATIENCE, self.archive.pause)

    def _note(self, manifest: Manifest) -> Manifest:
        self.archive.note(manifest)
        self._manifests[manifest.stream] = manifest
        with self._held():
            if manifest.complete:
                self._notes.drop(manifest.stream)
            else:
                self._notes.put(manifest.stream, manifest.size)
        return manifest

    def _note_clocks(self) -> None:
        """Without them, what is restored could not tell round trips to a collector's clock from others."""
        names = clock_names.read(self._store.directory) or frozenset()
        if not names <= self._clocks:
            self.archive.add_clocks(names)
            self._clocks = names


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
