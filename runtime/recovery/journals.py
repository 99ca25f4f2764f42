"""The journals of a run's directory."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.format import FILE_HEADER
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.journal.segments import first_file, first_names, segment_paths
from stepscope.runtime.session.note import WINDOWS

_MAX_NAMED = 8
_NAME = re.compile(r"journal(-\d+)?")
"""Names that stepscope gives; another file whose name begins like that may be anybody's."""


class Journals(msgspec.Struct, frozen=True, kw_only=True):
    """The journals of a directory."""

    found: tuple[tuple[Path, RunRecord | None], ...]
    """Newest first, each with its run record; `None` = its first frame is damaged."""
    unusable: tuple[str, ...]
    """Problems of files that have the name of a journal and cannot be used as one."""

    @classmethod
    def of(cls, place: Path) -> Journals:
        """Reads the first frames of `journal`, `journal-2`, ... and their copies in a directory.

        Raises:
            OSError: if a file is removed meanwhile.
        """
        found: list[tuple[int, Path, RunRecord | None]] = []
        unusable: list[str] = []
        for name in first_names(path.name for path in place.glob("journal*")):
            path = place / name
            if path.exists() and not path.is_file():
                continue
            if path.is_symlink():
                unusable.append(f"{path} is a symbolic link, and was not followed; name the file that it leads to")
                continue
            try:
                record = run_record_of(path)
            except OSError as error:
                unusable.append(f"{path} cannot be read: {error.strerror or error}")
                continue
            except FormatError as error:
                if _NAME.fullmatch(name):
                    unusable.append(f"{path}: {error}")
                continue
            # Without its first frame, the time of the last write counts.
            created = record.created_ns if record else first_file(path).stat().st_mtime_ns
            found.append((created, path, record))
        found.sort(key=lambda entry: entry[:2], reverse=True)
        return cls(found=tuple((path, record) for _, path, record in found), unusable=tuple(unusable))

    def newest(self) -> Path | None:
        """The newest journal, if any: one that has a first frame, if there is such a one."""
        begun = [path for path, _ in self.found if not is_empty(path)]
        return next(iter(begun or [path for path, _ in self.found]), None)

    def others(self, chosen: Path | None) -> str:
        """Names of the other journals, newest first; empty if there are none."""
        return ", ".join(path.name for path, _ in self.found if path != chosen)


def is_empty(journal: Path) -> bool:
    """Whether nothing was written into a journal: its process was killed right after it had created the file."""
    paths = segment_paths(journal) or [journal]
    return sum(path.stat().st_size for path in paths) <= FILE_HEADER.size


def run_record_of(journal: Path) -> RunRecord | None:
    """The run record of a journal; `None` = its first frame is damaged.

    Raises:
        FormatError: if the file is no journal.
        OSError: if it cannot be read.
    """
    with JournalReader(journal) as reader:
        return reader.run


def suggest_journals(place: Path) -> str:
    """Text that names directories with journals one or two levels below; empty if there are none."""
    windows = sorted(path.name for path in (place / WINDOWS).glob("*.journal") if path.is_file())
    if windows:
        return f"name one of the {len(windows)} saved windows in {place / WINDOWS}, such as {windows[-1]}"
    paths = (*place.glob("*/journal*"), *place.glob("*/*/journal*"))
    directories = sorted({path.parent for path in paths if path.is_file() and Journals.of(path.parent).found})
    if not directories:
        return ""
    more = f" and {len(directories) - _MAX_NAMED} more" if len(directories) > _MAX_NAMED else ""
    named = ", ".join(map(str, directories[:_MAX_NAMED]))
    return f"name one of the directories in it that have a journal: {named}{more}"
