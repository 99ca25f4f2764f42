"""Memory that the C library's allocator has handed out, as it counts itself. Source: mallinfo(3), glibc 2.33 and later."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import ClassVar

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo2(ctypes.Structure):
    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in _FIELDS]


def heap_in_use() -> Callable[[], int] | None:
    """The function that returns the bytes in use of all its arenas, blocks that are mapped one by one included; `None` if there is none."""
    look = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if look is None:
        return None
    look.restype = _Mallinfo2

    def in_use() -> int:
        seen: _Mallinfo2 = look()
        return int(seen.uordblks) + int(seen.hblkhd)

    return in_use
