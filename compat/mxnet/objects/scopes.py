"""Scopes, which label what is allocated inside of them, and custom operators, which name their parts as MXNet does."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar

from stepscope.compat.mxnet.objects.names import legal
from stepscope.runtime import _core

NONE = "<unk>:"
"""MXNet's name of the scope where there is none."""

CATEGORY = "scope"
OPERATOR_CATEGORY = "Custom Operator"


# They follow asyncio tasks: a task that begins under a label has it.
_scopes: ContextVar[str | None] = ContextVar("stepscope_mxnet_scope", default=None)
_operators: ContextVar[str | None] = ContextVar("stepscope_mxnet_operator", default=None)


@contextlib.contextmanager
def _labelled(labels: ContextVar[str | None], text: str) -> Generator[None]:
    """A label applies in the body."""
    token = labels.set(text)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # another context, as of a generator that another thread closes
            labels.reset(token)


def current_scope() -> str:
    """The scope of this thread or task; `<unk>:` if there is none."""
    return _scopes.get() or NONE


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
    outer = _operators.get()
    text = legal("operator", name)
    with _core.span(text if outer is None else legal("operator", f"{outer}::{text}"), category=OPERATOR_CATEGORY):
        yield
