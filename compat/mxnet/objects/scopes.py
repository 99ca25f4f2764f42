"""Scopes, which label allocations inside of them, and custom operators, which name their parts as MXNet does."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from stepscope.compat.mxnet.objects.names import legal
from stepscope.runtime import _core

NONE = "<unk>:"
"""MXNet's name for "no scope"."""

CATEGORY = "scope"
OPERATOR_CATEGORY = "Custom Operator"


class _Label:
    """A label that was entered, and the one around it."""

    def __init__(self, text: str, outer: _Label | None) -> None:
        self.text = text
        self.outer = outer
        self.ended = False
        """Whether it ended in another context than the one that it applies to."""


# They follow asyncio tasks: a task that begins under a label has it, also when the label has ended.
_scopes: ContextVar[_Label | None] = ContextVar("stepscope_mxnet_scope", default=None)
_operators: ContextVar[_Label | None] = ContextVar("stepscope_mxnet_operator", default=None)


def _current(labels: ContextVar[_Label | None]) -> _Label | None:
    """The label of the current context."""
    label = labels.get()
    while label is not None and label.ended:
        label = label.outer
    return label


@contextlib.contextmanager
def _labelled(labels: ContextVar[_Label | None], text: str) -> Generator[None]:
    """A label applies in the body, which may end in any context: a generator that entered it may be closed by another thread."""
    label = _Label(text, _current(labels))
    labels.set(label)
    try:
        yield
    finally:
        if labels.get() is label:
            labels.set(label.outer)
        else:
            label.ended = True


def current_scope() -> str:
    """The scope of this thread or task; `<unk>:` if there is none."""
    label = _current(_scopes)
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
    with _labelled(_scopes, text), _core.span(text, category=CATEGORY):
        yield text


@contextlib.contextmanager
def custom_operator(name: str) -> Generator[None]:
    """An operator written in Python: a span `<name>::pure_python`. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    text = legal("operator", name)
    span = _core.span(legal("operator", f"{name}::pure_python"), category=OPERATOR_CATEGORY)
    with _labelled(_operators, text), span:
        yield


@contextlib.contextmanager
def sub_operator(name: str) -> Generator[None]:
    """A scope that a custom operator enters: a span `<custom operator>::<name>`, or `<name>` outside of one. Also a decorator.

    Raises:
        TypeError: if the name is no str.
    """
    outer = _current(_operators)
    text = legal("operator", name)
    with _core.span(text if outer is None else legal("operator", f"{outer.text}::{text}"), category=OPERATOR_CATEGORY):
        yield
