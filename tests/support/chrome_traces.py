"""Reads Chrome traces of any form."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a trace in array or object form, plain or gzip, which must be whole."""
    data = path.read_bytes()
    found: Any = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    events: list[dict[str, Any]] = found["traceEvents"] if "traceEvents" in found else found
    return events


def names_of(path: Path) -> set[str]:
    """The names of its events."""
    return {event["name"] for event in events_of(path)}
