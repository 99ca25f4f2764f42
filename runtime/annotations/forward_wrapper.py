"""What `instrument` puts in the place of functions and of the `forward` of layers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from stepscope.runtime import _core

F = TypeVar("F", bound=Callable[..., Any])

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that we have made; an attribute of theirs would be copied by who wraps them."""


def mark_ours(function: F) -> F:
    """Remembers a function that stands for another."""
    _ours.add(function)
    return function


def is_ours(function: object) -> bool:
    """Whether it is one of those."""
    return function in _ours


def is_layer(target: object) -> bool:
    """Whether it is a `torch.nn.Module`; torch is not imported for that."""
    return any(
        f"{cls.__module__}.{cls.__qualname__}" == "torch.nn.modules.module.Module" for cls in type(target).__mro__
    )


class ForwardWrapper:
    """Stands for the `forward` of one layer, in the layer itself. A copy or pickle of the model has one of its own, for
    its own layers; to read the pickle, stepscope must be installed.

    Args:
        layer: whose class has the `forward` that is called.
        name: of the span.
        category: of the span.
    """

    __wrapped__: Any
    """For `inspect.signature`."""

    def __init__(self, layer: Any, name: str, category: str) -> None:
        self.__setstate__((layer, name, category))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _core.copy_span(self._span):
            return self._kind.forward(self._layer, *args, **kwargs)

    def __getstate__(self) -> tuple[Any, str, str]:
        return self._layer, self._name, self._category

    def __setstate__(self, state: tuple[Any, str, str]) -> None:
        # A layer that is read from a pickle holds this, and may not be whole yet: only its type is looked at.
        self._layer, self._name, self._category = state
        self._span = _core.span(self._name, category=self._category)
        self._kind: Any = type(self._layer)
        self.__wrapped__ = self._kind.forward.__get__(self._layer)
