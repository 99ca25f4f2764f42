"""Custom operators and the operators inside of them, named after their parts as MXNet names them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from stepscope.compat.mxnet.names import legal
from stepscope.runtime import _core

CATEGORY = "Custom Operator"

_inside: ContextVar[str] = ContextVar("stepscope_mxnet_operator", default="")


@contextlib.contextmanager
def custom_operator(name: str) -> Iterator[None]:
    """An operator written in Python: a span `<name>::pure_python`. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    before = _inside.get()
    _inside.set(legal("operator", name))
    try:
        with _core.span(legal("operator", f"{name}::pure_python"), category=CATEGORY):
            yield
    finally:
        _inside.set(before)


@contextlib.contextmanager
def sub_operator(name: str) -> Iterator[None]:
    """What a custom operator calls: a span `<custom operator>::<name>`, or `<name>` outside of one. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    outer = _inside.get()
    label = legal("operator", f"{outer}::{legal('operator', name)}" if outer else name)
    with _core.span(label, category=CATEGORY):
        yield
