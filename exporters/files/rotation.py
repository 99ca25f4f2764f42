"""Names of files: placeholders, and numbers for the parts of a file that grew too large."""

from __future__ import annotations

from pathlib import Path

from stepscope.runtime.export.run import Run

SUFFIXES = (".pt.trace.json", ".trace.json", ".json")
"""Kept together at the end of a name, before `.gz`, for viewers choose what to do by them."""

PART = ".part"
"""Ends the name of a file that is not complete yet; no viewer takes it for a trace."""


def fill(path: Path, run: Run, window: int | None) -> Path:
    """Replaces `{rank}`, `{pid}` and, if given, `{window}`; a run without a rank counts as rank 0."""
    text = str(path).replace("{rank}", str(run.rank or 0)).replace("{pid}", str(run.pid))
    return Path(text if window is None else text.replace("{window}", str(window)))


def numbered(path: Path, number: int) -> Path:
    """The name of part `number` of a file: `trace.json.gz` is followed by `trace.1.json.gz`. 0 is the file itself."""
    if number == 0:
        return path
    zipped = ".gz" if path.name.endswith(".gz") else ""
    name = path.name.removesuffix(zipped)
    suffix = next((s for s in SUFFIXES if name.endswith(s)), Path(name).suffix)
    return path.with_name(f"{name.removesuffix(suffix)}.{number}{suffix}{zipped}")


def part(path: Path) -> Path:
    """The name of a file until it is complete."""
    return path.with_name(path.name + PART)
