"""Small files of the output: each is written under another name first, so that readers find it whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepscope.exporters.files.output import whole_file


def write_text(path: Path, text: str) -> Path:
    """Writes a text; every name is legal in it.

    Raises:
        OSError: if it cannot be written; write_json and write_csv, too.
    """
    with whole_file(path) as place:
        place.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def write_json(path: Path, value: Any) -> Path:
    """Writes a value as JSON, over several lines."""
    return write_text(path, json.dumps(value, indent=4, ensure_ascii=False) + "\n")


def write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    """Writes a table."""
    with whole_file(path) as place, place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
    return path
