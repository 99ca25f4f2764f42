"""Scopes: labels of what is allocated inside of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from stepscope.compat.mxnet.names import legal
from stepscope.runtime import _core

NONE = "<unk>:"
"""What the scope is called where there is none, as MXNet calls it."""

CATEGORY = "scope"

_current: ContextVar[str] = ContextVar("stepscope_mxnet_scope", default=NONE)


def current_scope() -> str:
    """The scope of this thread or task; `<unk>:` if there is none."""
    return _current.get()


@contextlib.contextmanager
def scope(name: str = NONE, append_mode: bool = True) -> Iterator[str]:
    """Labels what is done in the body, also by asyncio tasks that are made in it. Gives the whole label.

    The scope is a span of the trace, and the label of memory that is allocated in it (`set_config` has
    `gpu_memory_profile_filename_prefix`). The former scope is back when the body is left, by an exception or not.

    Args:
        name: ends with a colon; one is added if not.
        append_mode: whether the scope around this one is put in front.

    Raises:
        TypeError: if the name is no str.
    """
    label = legal("scope", name)
    label = label if label.endswith(":") else f"{label}:"
    before = _current.get()
    if append_mode and before != NONE:
        label = legal("scope", before + label)
    _current.set(label)
    try:
        with _core.span(label, category=CATEGORY):
            yield label
    finally:
        _current.set(before)  # not by a token: that could only be used in the context that it is of
