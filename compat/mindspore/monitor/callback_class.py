"""Classes that are callbacks of MindSpore as well, where it is imported."""

from __future__ import annotations

import sys
from typing import Any

_classes: dict[type, type] = {}


def is_callback(kind: type[Any]) -> bool:
    """True if it is a callback of MindSpore's own class."""
    base = _callback()
    return base is not None and issubclass(kind, base)


def as_callback(kind: type[Any]) -> type[Any]:
    """The class, which is also a callback of MindSpore if that is imported: it calls nothing else."""
    base = _callback()
    if base is None or issubclass(kind, base):
        return kind
    if kind not in _classes:
        body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__qualname__": kind.__qualname__}
        _classes[kind] = type(kind.__name__, (kind, base), body)
    return _classes[kind]


def _callback() -> Any:
    return getattr(sys.modules.get("mindspore.train"), "Callback", None)
