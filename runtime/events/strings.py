"""The process-wide table of names: each text has one id, for ever.

Ids below `FIRST_NAME` are categories, so that they fit 16 bits. The others are names and argument keys. The table grows up to a
limit. `_core.counts()` counts cut and refused texts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.runtime import _core
from stepscope.runtime.events.record import RESERVED, Flag

FIRST_NAME = _core.FIRST_NAME

intern = _core.intern
"""`intern(text) -> id`. Text beyond 1024 bytes of UTF-8 is cut. Lone surrogates become the text `\\udXXX`."""

category = _core.category
"""`category(text) -> id` below `FIRST_NAME`; 0, the empty category, if the table of categories is full."""

for _name in RESERVED:
    category(_name)

text = _core.text
"""`text(id) -> str`; `""` for unknown ids."""


def texts(ids: Any) -> list[str]:
    """The texts of an array of ids, such as `events()["name"]` or `["category"]`."""
    unique, inverse = np.unique(np.asarray(ids), return_inverse=True)
    found = [text(int(each)) for each in unique]
    return [found[each] for each in inverse]


def name_of(event: Any) -> str:
    """The name of an event (a row of a block), for viewers."""
    name = text(int(event["name"]))
    return f"{name}#{int(event['step'])}" if event["flags"] & int(Flag.NUMBERED) else name
