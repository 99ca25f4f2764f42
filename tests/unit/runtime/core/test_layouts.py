"""Records that C writes and Python reads lie as both say."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

from stepscope.runtime import _core
from stepscope.runtime.events.record import EVENT_DTYPE
from stepscope.runtime.recovery import ring_file, session_files
from stepscope.runtime.session import directory

LAYOUTS = _core.layouts()


def offsets(layout: struct.Struct) -> list[int]:
    """Where the values lie that a format has."""
    found: list[int] = []
    at = 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        if code == "x":
            at += int(count)
        elif code == "s":
            found.append(at)
            at += int(count)
        else:
            size = struct.calcsize(f"={code}")
            for _ in range(int(count or 1)):
                found.append(at)
                at += size
    assert at == layout.size
    return found


@pytest.mark.parametrize(
    ("layout", "record", "fields"),
    [
        (
            ring_file._FIELDS,  # pyright: ignore[reportPrivateUsage]
            "Header",
            "version slots track alive tid head reserve produced tail serial",
        ),
        (session_files._CONTROL, "Control", "at_risk"),  # pyright: ignore[reportPrivateUsage]
        (session_files._TRACK, "Track", "tid kind parent name id"),  # pyright: ignore[reportPrivateUsage]
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_structures(layout: struct.Struct, record: str, fields: str) -> None:
    """Each begins with its magic, or with what is compared by its type."""
    first, *others = offsets(layout)
    assert first == 0
    assert others == [LAYOUTS[record, field] for field in fields.split()]


@pytest.mark.parametrize(
    ("dtype", "record"),
    [
        (session_files._FRAME_DTYPE, "Frame"),  # pyright: ignore[reportPrivateUsage]
        (session_files._STACK_DTYPE, "Stack"),  # pyright: ignore[reportPrivateUsage]
        (EVENT_DTYPE, "Event"),
    ],
    ids=["Frame", "Stack", "Event"],
)
def test_record_types(dtype: np.dtype[Any], record: str) -> None:
    """Sizes, and every field that C names."""
    assert dtype.itemsize == LAYOUTS[record, ""]
    named = {field: at for (of, field), at in LAYOUTS.items() if of == record and field}
    assert named.items() <= {name: place[1] for name, place in (dtype.fields or {}).items()}.items()


def test_the_control_page_that_is_closed() -> None:
    """Its fields lie where those of a dead process are overwritten."""
    assert directory._OVER_AT == LAYOUTS["Control", "recording"]  # pyright: ignore[reportPrivateUsage]
    assert LAYOUTS["Control", "closed"] == directory._OVER_AT + 4  # pyright: ignore[reportPrivateUsage]
    assert ring_file._HEADER == LAYOUTS["Header", ""]  # pyright: ignore[reportPrivateUsage]
