"""The journals of a run's directory, and which of them is meant when only the directory is named."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.session.note import WINDOWS

_MAX_NAMED = 8


class Journals(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a directory."""

    found: tuple[tuple[Path, RunRecord | None], ...]
    """Newest first, each with what it says of its run; `None` = its first frame is damaged."""
    unusable: tuple[str, ...]
    """What bears the name of a journal and is none, and why."""

    @classmethod
    def of(cls, place: Path) -> Journals:
        """Looks at `journal`, `journal-2`, ... in a directory.

        Raises:
            OSError: if a file vanishes meanwhile.
        """
        found: list[tuple[int, Path, RunRecord | None]] = []
        unusable: list[str] = []
        for path in sorted(place.glob("journal*")):
            if not path.is_file():
                continue
            if path.is_symlink():
                unusable.append(f"{path} is a symbolic link, and was not followed; name the file that it leads to")
                continue
            try:
                record = run_in(path)
            except OSError as error:
                unusable.append(f"{path} cannot be read: {error.strerror or error}")
                continue
            except FormatError as error:
                unusable.append(f"{path}: {error}")
                continue
            # Without its first frame, a journal is as new as its last write.
            created = record.created_ns if record else path.stat().st_mtime_ns
            found.append((created, path, record))
        found.sort(key=lambda entry: entry[:2], reverse=True)
        return cls(found=tuple((path, record) for _, path, record in found), unusable=tuple(unusable))

    def newest(self) -> Path | None:
        """The newest one."""
        return self.found[0][0] if self.found else None

    def others(self, chosen: Path | None) -> str:
        """Names of those that are not this one, newest first; empty if there are none."""
        return ", ".join(path.name for path, _ in self.found if path != chosen)


def run_in(journal: Path) -> RunRecord | None:
    """What a journal says of its run; `None` = its first frame is damaged.

    Raises:
        FormatError: if it is no journal.
        OSError: if it cannot be read.
    """
    with JournalReader(journal) as reader:
        return reader.run


def below(place: Path) -> str:
    """Names the directories in this one, one or two levels down, that have a journal; empty if none has."""
    windows = sorted(path.name for path in (place / WINDOWS).glob("*.journal") if path.is_file())
    if windows:
        return f"name one of the {len(windows)} saved windows in {place / WINDOWS}, such as {windows[-1]}"
    paths = (*place.glob("*/journal*"), *place.glob("*/*/journal*"))
    having = sorted({path.parent for path in paths if path.is_file() and Journals.of(path.parent).found})
    if not having:
        return ""
    more = f" and {len(having) - _MAX_NAMED} more" if len(having) > _MAX_NAMED else ""
    return f"name one of the directories in it that have a journal: {', '.join(map(str, having[:_MAX_NAMED]))}{more}"
