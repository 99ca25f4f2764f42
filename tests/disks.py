"""Small file systems, to be filled."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.support import missing


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Generator[Path]:
    """A file system of `size` bytes at `path`, which is made.

    Raises:
        pytest.skip.Exception: without the right to mount one.
    """
    with _mounted(path, "tmpfs", "-o", f"size={size}"):
        yield path


@contextlib.contextmanager
def disk_without_holes(path: Path) -> Generator[Path]:
    """A file system at `path`, which is made, that frees no parts of files: Linux's ramfs.

    Raises:
        pytest.skip.Exception: without the right to mount one.
    """
    with _mounted(path, "ramfs"):
        yield path


@contextlib.contextmanager
def _mounted(path: Path, kind: str, *options: str) -> Generator[None]:
    path.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", kind, *options, kind, str(path)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing(f"the right to mount a {kind}", "Run the tests as root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
