"""A directory in any store that fsspec knows: a file is an object, and the listing says what is there."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import wait
from typing import Any, BinaryIO

from stepscope.runtime.errors import FormatError, OutputError
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor

log = logging.getLogger("stepscope.collector")

# They have no annotations.
_fsspec: Any = importlib.import_module("fsspec.core")
_BufferedFile: Any = importlib.import_module("fsspec.spec").AbstractBufferedFile
_LocalFiles: Any = importlib.import_module("fsspec.implementations.local").LocalFileSystem

CALLS = 16
"""Objects that are put, or read, at the same time."""
PART_BYTES = 5 << 20
"""Objects are put and read in parts of this size, the smallest that S3 takes."""
PIECE_BYTES = 1 << 20
REFUSALS = 2 * CALLS
"""After so many refused calls in a row, calls pause for a while."""
ENDING_S = 2.0
"""Seconds to wait for the end of calls that were stopped."""


class ObjectStore:
    """Objects below one URL. Calls block, and may come from several threads.

    Args:
        url: directory in a store, as fsspec has it: `s3://bucket/job1`, `file:///mnt/x`. Credentials are in the environment.

    Raises:
        OutputError: if fsspec knows no such store, or lacks the package for it.
    """

    def __init__(self, url: str) -> None:
        try:
            self.files, root = _fsspec.url_to_fs(url)
        except (ValueError, ImportError) as error:
            raise OutputError(f"the object store cannot be used: {error}") from error
        self.root = str(root).rstrip("/")
        self._local = isinstance(self.files, _LocalFiles)
        self._stopped = threading.Event()
        self._last_progress: dict[int, float] = {}
        """Time of the last progress of each thread's current call."""

    def stop(self) -> None:
        """Makes all calls end soon with an error; from any thread."""
        self._stopped.set()

    @property
    def silence(self) -> float:
        """Longest time, in seconds, for which a current call has made no progress."""
        return max((time.monotonic() - at for at in list(self._last_progress.values())), default=0.0)

    def sizes(self) -> dict[str, int]:
        """Lists all objects: their names below the URL, and their sizes in bytes. Raises `OutputError` if the store
        refuses."""
        with self._call(f"{self.root} cannot be listed"):
            self.files.invalidate_cache()
            found: dict[str, Any] = {}
            with contextlib.suppress(FileNotFoundError):  # nothing was put there yet
                found = self.files.find(self.root, detail=True)
            sizes = {path.removeprefix(self.root).lstrip("/"): about.get("size") for path, about in found.items()}
        return {name: int(size) for name, size in sizes.items() if name and size is not None}

    def put(self, name: str, content: BinaryIO, nbytes: int) -> None:
        """Puts an object of so many bytes, all of it or nothing. It replaces one of this name. Raises `OutputError` if
        the store refuses, or `content` ends early."""
        target = f"{self.root}/{name}"
        # Object stores show an object when it is complete. A directory would show a file while it is written.
        path = f"{target}.{os.urandom(8).hex()}.part" if self._local else target
        with self._call(f"{target} cannot be put"):
            try:
                file = self.files.open(path, "wb", block_size=PART_BYTES)
            except FileNotFoundError:
                self.files.makedirs(target.rpartition("/")[0], exist_ok=True)
                file = self.files.open(path, "wb", block_size=PART_BYTES)
            try:
                for begin in range(0, nbytes, PIECE_BYTES):
                    piece = content.read(min(nbytes - begin, PIECE_BYTES))
                    self._progress(len(piece), min(nbytes - begin, PIECE_BYTES))
                    file.write(piece)
                if self._local:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
                if self._local:
                    self.files.mv(path, target)
            except BaseException:
                self._discard(file, path)
                raise

    def get(self, name: str, content: BinaryIO, nbytes: int) -> None:
        """Reads an object of so many bytes. Raises `OutputError` if the store refuses, the object is shorter, or
        `content` cannot be written."""
        path = f"{self.root}/{name}"
        with self._call(f"{path} cannot be read"):
            for begin in range(0, nbytes, PART_BYTES):
                end = min(begin + PART_BYTES, nbytes)
                part: bytes = self.files.cat_file(path, start=begin, end=end)
                self._progress(len(part), end - begin)
                content.write(part)

    def in_parallel(self, calls: Mapping[str, Callable[[], object]]) -> dict[str, OSError | FormatError]:
        """Runs calls on several threads, and returns the errors of those that failed, by name.

        If the store refuses many in a row, the remaining ones are not run.
        """
        errors: dict[str, OSError | FormatError] = {}
        refusals = 0

        def run(name: str, call: Callable[[], object]) -> None:
            nonlocal refusals
            if refusals < REFUSALS and not self._stopped.is_set():
                try:
                    call()
                    refusals = 0
                except (OSError, FormatError) as error:
                    errors[name] = error
                    refusals += isinstance(error, OutputError)

        pool = DaemonExecutor(CALLS)
        futures = [pool.submit(run, name, call) for name, call in calls.items()]
        pool.shutdown()
        try:
            wait(futures)
        except BaseException:  # such as Ctrl-C
            self.stop()
            wait(futures, ENDING_S)
            raise
        for future in futures:
            future.result()
        return errors

    def _discard(self, file: Any, path: str) -> None:
        try:
            if isinstance(file, _BufferedFile):
                file.closed = True  # else its finalizer would complete the object
                file.discard()
            else:
                file.close()
                if self._local:
                    self.files.rm_file(path)
        except Exception as error:  # stores have errors of their own; that of the put is raised
            log.warning("a part of %s is left in the store: %s", path, error)

    def _progress(self, nbytes: int, wanted: int) -> None:
        if self._stopped.is_set():
            raise OSError("it was stopped")
        if nbytes != wanted:
            raise OSError("it became shorter meanwhile")
        self._last_progress[threading.get_ident()] = time.monotonic()

    @contextlib.contextmanager
    def _call(self, failure: str) -> Generator[None]:
        self._last_progress[threading.get_ident()] = time.monotonic()
        try:
            yield
        except OSError as error:
            raise OutputError(f"{failure}: {error.strerror or error}") from error
        except Exception as error:  # stores have errors of their own
            raise OutputError(f"{failure}: {type(error).__name__}: {error}") from error
        finally:
            del self._last_progress[threading.get_ident()]
