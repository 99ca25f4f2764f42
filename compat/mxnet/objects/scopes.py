"""Scopes: labels of what is allocated inside of them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stepscope.compat.mxnet.objects.labels import Labels
from stepscope.compat.mxnet.objects.names import legal
from stepscope.runtime import _core

NONE = "<unk>:"
"""What the scope is called where there is none, as MXNet calls it."""

CATEGORY = "scope"

_scopes = Labels("stepscope_mxnet_scope")


def current_scope() -> str:
    """The scope of this thread or task; `<unk>:` if there is none."""
    label = _scopes.current()
    return NONE if label is None else label.text


@contextlib.contextmanager
def scope(name: str = NONE, append_mode: bool = True) -> Generator[str]:
    """Labels what is done in the body, also by asyncio tasks that are made in it. Gives the whole label.

    The scope is a span of the trace, and the label of memory that is allocated in it (`set_config` has
    `gpu_memory_profile_filename_prefix`). The former scope is back when the body is left, by an exception or not.

    Args:
        name: ends with a colon; one is added if not.
        append_mode: whether the scope around this one is put in front.

    Raises:
        TypeError: if the name is no str.
    """
    text = legal("scope", name)
    text = text if text.endswith(":") else f"{text}:"
    before = current_scope()
    if append_mode and before != NONE:
        text = legal("scope", before + text)
    label = _scopes.enter(text)
    try:
        with _core.span(text, category=CATEGORY):
            yield text
    finally:
        _scopes.leave(label)
