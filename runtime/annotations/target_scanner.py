"""Finds the functions of a module, class or model to instrument, and makes their wrappers."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.annotations.decorate import decorate
from stepscope.runtime.settings.arguments import got

_IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


class Replacement(msgspec.Struct, frozen=True):
    """An attribute, and its new value."""

    owner: Any
    name: str
    value: Any
    span: str
    """Name of the span, `module.Class.method`."""


class TargetScanner:
    """Finds the functions to instrument. It changes nothing.

    Args:
        chosen: names within the target.
        properties: whether to include properties.
        category: of the spans.
    """

    def __init__(self, chosen: Patterns, properties: bool, category: str) -> None:
        self.refused: dict[str, str] = {}
        """Chosen names that cannot be instrumented, and why."""
        self._chosen = chosen
        self._properties = properties
        self._category = category
        self._made: dict[types.FunctionType, Any] = {}  # a function of two names stays one

    def module(self, module: types.ModuleType) -> Iterator[Replacement]:
        """The functions that a module defines, and the methods of its classes."""
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if not isinstance(value, type):
                if self._chosen.matches(name):
                    yield from self._attribute(module, name, value, f"{module.__name__}.{name}")
            elif value.__qualname__ == name:  # else it is another name of a class
                why = immutable(value)
                if why is None:
                    yield from self.cls(value, f"{name}.")
                elif self._chosen.matches(name):
                    self.refused[f"{module.__name__}.{name}"] = why

    def cls(self, cls: type, prefix: str = "") -> Iterator[Replacement]:
        """The methods that a class defines, and those of the classes in it.

        Args:
            cls: the class.
            prefix: of its names within the target.
        """
        for name, value in list(vars(cls).items()):
            if isinstance(value, type):
                if value.__module__ == cls.__module__ and value.__qualname__ == f"{cls.__qualname__}.{name}":
                    yield from self.cls(value, f"{prefix}{name}.")
            elif self._chosen.matches(prefix + name):
                yield from self._attribute(cls, name, value, f"{cls.__module__}.{cls.__qualname__}.{name}")

    def layers(self, model: Any) -> Iterator[Replacement]:
        """The `forward` of a `torch.nn.Module` and of the modules in it, except modules with a `forward` of their own."""
        for path, layer in model.named_modules():
            if "forward" not in vars(layer) and self._chosen.matches(path or "forward"):
                span = ".".join(part for part in (type(model).__qualname__, path, "forward") if part)
                yield Replacement(layer, "forward", ForwardWrapper(layer, span, self._category), span)

    def _attribute(self, owner: Any, name: str, value: Any, span: str) -> Iterator[Replacement]:
        if isinstance(value, property):
            if self._properties:
                get, put, remove = (self._wrapped(part, span) for part in (value.fget, value.fset, value.fdel))
                if (get, put, remove) != (value.fget, value.fset, value.fdel):
                    yield Replacement(owner, name, property(get, put, remove, value.__doc__), span)
            return
        bound = isinstance(value, staticmethod | classmethod)
        function: Any = getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            wrapper = self._wrapped(function, span)
            if wrapper is not function:
                kind: Any = type(value)  # pyright: ignore[reportUnknownVariableType]
                yield Replacement(owner, name, kind(wrapper) if bound else wrapper, span)
        elif isinstance(function, _IN_C):
            self.refused[span] = "it is written in C: calls from C would not be seen, and it has no signature to keep"
        elif callable(function) and hasattr(function, "cache_info"):
            self.refused[span] = (
                "it is a cache of functools, whose cache_info and cache_clear a function would not have"
            )

    def _wrapped(self, function: Any, span: str) -> Any:
        if not isinstance(function, types.FunctionType) or is_own(function):
            return function
        if function not in self._made:
            self._made[function] = mark_ours(decorate(_core.span(span, category=self._category), function))
        return self._made[function]


def immutable(cls: type) -> str | None:
    """Returns why the attributes of a class cannot be set; `None` if they can."""
    heap, fixed = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of Include/object.h
    if not cls.__flags__ & heap or cls.__flags__ & fixed:
        return "the class is written in C, and Python keeps such classes from being changed"
    return None


class Patterns:
    """Names that match one of `include` and none of `exclude`; `None` includes all names but those like `__this__`.

    A name such as `Net.__init__` is included only by a glob whose last part begins with two underscores.

    Raises:
        TypeError: if a glob is no str.
    """

    def __init__(self, include: str | Iterable[str] | None, exclude: str | Iterable[str]) -> None:
        self._include = ("*",) if include is None else _globs("include", include)
        self._exclude = _globs("exclude", exclude)

    def matches(self, name: str) -> bool:
        """Whether a dotted name is chosen."""
        last = name.rpartition(".")[2]
        special = last.startswith("__") and last.endswith("__") and len(last) > 4
        return any(
            fnmatchcase(name, glob) and (not special or glob.rpartition(".")[2].startswith("__"))
            for glob in self._include
        ) and not any(fnmatchcase(name, glob) for glob in self._exclude)


def _globs(argument: str, value: str | Iterable[str]) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise TypeError(f"{argument} takes globs such as 'load_*', {got(value)}")
    globs = (value,) if isinstance(value, str) else tuple(value)
    for glob in globs:
        if not isinstance(glob, str):
            raise TypeError(f"{argument} takes globs such as 'load_*', {got(glob)}")
    return globs


F = TypeVar("F", bound=Callable[..., Any])

_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""Wrappers. Not marked by an attribute, as other decorators would copy it."""


def mark_ours(function: F) -> F:
    """Registers a wrapper."""
    _ours.add(function)
    return function


def is_own(function: object) -> bool:
    """Whether a function is a registered wrapper."""
    return function in _ours


def is_layer(target: object) -> bool:
    """Whether an object is a `torch.nn.Module`. Does not import torch."""
    return any(
        f"{cls.__module__}.{cls.__qualname__}" == "torch.nn.modules.module.Module" for cls in type(target).__mro__
    )


class ForwardWrapper:
    """Replaces the `forward` of one layer. A copy or pickle of the model gets wrappers for its own layers. Reading the pickle
    requires stepscope.

    Args:
        layer: the layer, whose class has the original `forward`.
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
        # While a pickle is read, the layer may be incomplete: only its type is used.
        self._layer, self._name, self._category = state
        self._span = _core.span(self._name, category=self._category)
        self._kind: Any = type(self._layer)
        self.__wrapped__ = self._kind.forward.__get__(self._layer)
