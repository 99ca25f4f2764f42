"""File systems of tests: small ones, to be filled, and one that hangs."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.support.basics import missing


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Generator[Path]:
    """A file system of `size` bytes at `path`, which is made.

    Raises:
        pytest.skip.Exception: without the right to mount one.
    """
    with _mounted(path, "tmpfs", "-o", f"size={size}"):
        yield path


class HangingDisk:
    """A file system whose writes wait for as long as it is frozen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frozen = False

    def freeze(self) -> None:
        """From now on whoever changes anything waits.

        Raises:
            pytest.skip.Exception: without the right to do so.
        """
        if subprocess.run(["fsfreeze", "--freeze", self.path], capture_output=True, check=False).returncode:
            missing("the right to freeze a file system", "Run the tests as root.")
        self.frozen = True

    def thaw(self) -> None:
        """All go on. Idempotent."""
        if self.frozen:
            subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)
            self.frozen = False


@contextlib.contextmanager
def hanging_disk(path: Path) -> Generator[HangingDisk]:
    """An ext4 of its own at `path`, which is made, to be frozen; thawed at the end.

    Raises:
        pytest.skip.Exception: without the right to mount one.
    """
    image = path.with_name(f"{path.name}.image")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    for program in ("mkfs.ext4", "fsfreeze"):
        if shutil.which(program) is None:
            missing(program, "Install it (on Debian: apt-get install e2fsprogs util-linux).")
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True, capture_output=True)
    with _mounted(path, "ext4", "-o", "loop", source=str(image)):
        disk = HangingDisk(path)
        try:
            yield disk
        finally:
            disk.thaw()


@contextlib.contextmanager
def _mounted(path: Path, kind: str, *options: str, source: str = "none") -> Generator[None]:
    path.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", kind, *options, source, str(path)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        missing(f"the right to mount a {kind}", "Run the tests as root.")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
