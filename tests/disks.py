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
    path.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing("the right to mount a tmpfs", "Run the tests as root.")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
