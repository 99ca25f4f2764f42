"""A merge as a command, for those who want it made by a process of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def merge_command(
    sources: Sequence[Path],
    target: Path,
    *,
    format: str,
    window: int | None = None,
    stream: str | None = None,
    job: str | None = None,
) -> list[str]:
    """Arguments of Python that write a merged file, as `write_merged` does. The sources go into a file beside the target: a
    command line has room for some ten thousand of them.

    Args:
        sources: a collector's directory, or journals of one job.
        target: file to write; with the format `chrome` or `perfetto`, what was written stays as it is while it grows.
        format: name of a format.
        window: index of the only window.
        stream: id of the stream whose index that is; by default the job's.
        job: which job, if there are several.

    Raises:
        OSError: if the list of the sources cannot be written.
    """
    chosen = [] if window is None else ["--window", str(window)]
    chosen += [] if stream is None else ["--of", stream]
    chosen += [] if job is None else [f"--job={job}"]
    listed = target.absolute().with_name(f"{target.name}.sources")
    listed.write_bytes(b"\0".join(os.fsencode(source.absolute()) for source in sources))
    return [
        "-m",
        "stepscope",
        "merge",
        "--sources",
        str(listed),
        "--out",
        str(target.absolute()),
        "--format",
        format,
        *chosen,
    ]
