"""Temporary files of backends, such as a recording that passes from torch to us: none is left when the process ends, unless it is
killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from stepscope.runtime.lifecycle.shutdown_hooks import after_exit, after_signal
from stepscope.runtime.recording.recorder import scratch_directory

_paths: set[Path] = set()
_exiting = False


def make_scratch(prefix: str, suffix: str | None = None) -> Path:
    """Makes a private directory, or an empty private file if there is a suffix, to be removed by `remove_scratch`.
    Raises `OSError` if that is not possible, as at the end of the process."""
    if _exiting:
        raise OSError("the process ends: no temporary file is made any more")
    if suffix is None:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch_directory()))
    else:
        descriptor, name = tempfile.mkstemp(suffix, prefix, scratch_directory())
        os.close(descriptor)
        path = Path(name)
    _paths.add(path)
    return path


def remove_scratch(path: Path) -> None:
    """Removes what `make_scratch` made, with the draft `<path>.tmp` that kineto writes first."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        for file in (path, Path(f"{path}.tmp")):
            file.unlink(missing_ok=True)
    _paths.discard(path)


def _remove_all(*_: str) -> None:
    """Removes files at the exit or at a signal. Daemon threads that would have removed theirs are stopped by the exit."""
    global _exiting
    _exiting = True
    for path in list(_paths):
        remove_scratch(path)


after_exit.add(_remove_all)
after_signal.add(_remove_all)
# They are the parent's.
os.register_at_fork(after_in_child=_paths.clear)
