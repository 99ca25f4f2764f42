"""Output formats by name and file ending, and files that are renamed when they are complete."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import msgspec

from stepscope.runtime.errors import OutputError
from stepscope.runtime.export.exporter import Exporter
from stepscope.runtime.files.paths import absolute

Factory = Callable[[Path], Exporter]
"""Makes an exporter that writes to one file."""


class Format(msgspec.Struct, frozen=True):
    """A registered format."""

    name: str
    suffixes: tuple[str, ...]
    factory: Factory


_formats: dict[str, Format] = {}


def register(name: str, suffixes: Sequence[str], factory: Factory) -> None:
    """Registers a format for `Window.export`, `stepscope convert` and `stepscope recover`.

    Args:
        name: name, such as `chrome`; an existing format of this name is replaced.
        suffixes: endings of file names, such as `.json.gz`; the longest match decides.
        factory: makes an exporter for a path.

    Raises:
        ValueError: for an ending that does not begin with a dot.
    """
    for suffix in suffixes:
        if not suffix.startswith("."):
            raise ValueError(f"a file ending begins with a dot, got {suffix!r}")
    _formats[name] = Format(name, tuple(suffix.lower() for suffix in suffixes), factory)


def known() -> list[Format]:
    """All registered formats, by name."""
    return [_formats[name] for name in sorted(_formats)]


def exporter_for(path: str | os.PathLike[str], format: str | None = None) -> Exporter:
    """Makes an exporter that writes to `path`.

    Args:
        path: the file; its ending names the format unless `format` does.
        format: name of a format.

    Raises:
        ValueError: if no format has that name or ending; lists the known ones.
    """
    target = Path(path)
    if format is not None:
        if format not in _formats:
            raise ValueError(f"unknown format {format!r}; known are {', '.join(sorted(_formats)) or 'none'}")
        return _formats[format].factory(target)
    name = target.name.lower()
    fitting = [(len(end), format_) for format_ in _formats.values() for end in format_.suffixes if name.endswith(end)]
    if not fitting:
        endings = ", ".join(f"{end} ({format_.name})" for format_ in _formats.values() for end in format_.suffixes)
        raise ValueError(f"no format has the ending of {target.name!r}; known are {endings or 'none'}")
    return max(fitting, key=lambda pair: pair[0])[1].factory(target)


being_written: set[str] = set()
"""Files that exporters of this process have open for writing: two exporters on one file would destroy it."""


@contextlib.contextmanager
def staged(target: Path) -> Generator[Path]:
    """Provides a temporary path for a file, which is renamed when it is complete.

    The path is in a new directory next to the target. If the block ends without an exception, the files there are moved to the
    target's directory, and replace files of the same name. Otherwise they are deleted, and existing files stay.

    Raises:
        OutputError: if that fails; or if the target exists and is no regular file, or is being written.
    """
    target = absolute(target)
    try:
        mode = os.lstat(target).st_mode
    except OSError:
        mode = stat.S_IFREG  # it does not exist, or creating it will report the error
    if stat.S_ISLNK(mode):
        raise OutputError(errno.EINVAL, "it is a symbolic link; name the file that it leads to", str(target))
    if not stat.S_ISREG(mode):
        raise OutputError(
            errno.EINVAL, "it is no regular file; name one that is, or one that is not there", str(target)
        )
    if os.path.realpath(target) in being_written:
        raise OutputError(
            errno.EBUSY, "another exporter of this process writes to it; choose another name", str(target)
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{target.name[:100]}."
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as directory:
            yield Path(directory) / target.name
            for name in sorted(os.listdir(directory)):
                os.replace(Path(directory) / name, target.parent / name)
    except OutputError as error:  # it has the temporary path
        error.filename = str(target)
        raise
    except OSError as error:
        raise OutputError(error.errno, f"cannot write: {error.strerror or error}", str(target)) from error


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], format: str | None = None) -> Generator[Exporter]:
    """Provides an exporter for the replay of a recording. Its file gets its name when the block ends without an exception.

    A journal is written in place, with the next free name if the file exists: the exporter's `path` has it.

    Args:
        path: see `exporter_for`.
        format: see `exporter_for`.

    Raises:
        ValueError: if no format has that name or ending.
        OutputError: see `staged`.
    """
    exporter = exporter_for(path, format)
    if getattr(exporter, "is_journal", False):
        yield exporter
        return
    with staged(Path(path)) as place:
        yield exporter_for(place, format)
