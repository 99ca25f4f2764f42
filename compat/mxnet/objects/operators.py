"""Custom operators and the operators inside of them, named after their parts as MXNet names them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from stepscope.compat.mxnet.objects.labels import Labels
from stepscope.compat.mxnet.objects.names import legal
from stepscope.runtime import _core

CATEGORY = "Custom Operator"

_operators = Labels("stepscope_mxnet_operator")


@contextlib.contextmanager
def custom_operator(name: str) -> Generator[None]:
    """An operator written in Python: a span `<name>::pure_python`. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    label = _operators.enter(legal("operator", name))
    try:
        with _core.span(legal("operator", f"{name}::pure_python"), category=CATEGORY):
            yield
    finally:
        _operators.leave(label)


@contextlib.contextmanager
def sub_operator(name: str) -> Generator[None]:
    """What a custom operator calls: a span `<custom operator>::<name>`, or `<name>` outside of one. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    outer = _operators.current()
    known = legal("operator", name)
    with _core.span(known if outer is None else legal("operator", f"{outer.text}::{known}"), category=CATEGORY):
        yield
