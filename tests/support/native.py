"""Recording from native code, as torch does it: by threads that do not hold the GIL."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.basics import missing

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = os.environ.get("CC", "cc")


def require_compiler() -> None:
    """Skips a test where no C compiler is."""
    if shutil.which(COMPILER) is None:
        missing("a C compiler", "Install one (on Debian: apt-get install gcc), or name it in CC.")


class Native:
    """Makes the core this process's collector of ITT, and calls it from a library that is compiled here."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            library = Path(directory) / "native.so"
            command = [COMPILER, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-pthread"]
            subprocess.run(command, check=True)
            self._library = ctypes.CDLL(str(library))
        core = importlib.util.find_spec("stepscope.runtime._core")
        assert core is not None and core.origin is not None
        self._library.start(getattr(ctypes.CDLL(core.origin), "__itt_api_init"))

    def run(self, threads: int, count: int) -> None:
        """Records `count` operators on each of that many new threads, or on this one."""
        if self._library.run(threads, ctypes.c_long(count)):
            raise OSError("no thread could be started")
