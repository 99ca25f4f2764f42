"""Spans for code without annotations: the functions of a module, the methods of a class, the layers of a model."""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Self, cast

import msgspec

from stepscope.runtime import _core
from stepscope.runtime.annotations.decorate import decorate
from stepscope.runtime.settings.arguments import got

CATEGORY = "function"
"""Default category of the spans."""

_MISSING = object()

_IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


_ours: weakref.WeakSet[Any] = weakref.WeakSet()
"""Wrappers. Not marked by an attribute, as other decorators would copy it."""


class Replacement(msgspec.Struct, frozen=True):
    """An attribute, and its new value."""

    owner: Any
    name: str
    value: Any
    span: str
    """Name of the span, `module.Class.method`."""


class TargetScanner:
    """Finds the functions to instrument. It changes nothing."""

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
                why = _immutable(value)
                if why is None:
                    yield from self.cls(value, f"{name}.")
                elif self._chosen.matches(name):
                    self.refused[f"{module.__name__}.{name}"] = why

    def cls(self, cls: type, prefix: str = "") -> Iterator[Replacement]:
        """The methods that a class defines, and those of the classes in it. `prefix` is that of its names within the target."""
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
        if not isinstance(function, types.FunctionType) or function in _ours:
            return function
        if function not in self._made:
            self._made[function] = decorate(_core.span(span, category=self._category), function)
            _ours.add(self._made[function])
        return self._made[function]


def _immutable(cls: type) -> str | None:
    """Returns why the attributes of a class cannot be set; `None` if they can."""
    heap, fixed = 1 << 9, 1 << 8  # Py_TPFLAGS_HEAPTYPE and Py_TPFLAGS_IMMUTABLETYPE of Include/object.h
    if not cls.__flags__ & heap or cls.__flags__ & fixed:
        return "the class is written in C, and Python keeps such classes from being changed"
    return None


class Patterns:
    """Names that match one of `include` and none of `exclude`; `None` includes all names but those like `__this__`. A name such
    as `Net.__init__` is included only by a glob whose last part begins with two underscores."""

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


def _is_layer(target: object) -> bool:
    """Whether an object is a `torch.nn.Module`. Does not import torch."""
    return any(
        f"{cls.__module__}.{cls.__qualname__}" == "torch.nn.modules.module.Module" for cls in type(target).__mro__
    )


class ForwardWrapper:
    """Replaces the `forward` of one layer, whose class has the original. A copy or pickle of the model gets wrappers for its own
    layers. Reading the pickle requires stepscope."""

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


class Instrumentation:
    """The changes of `instrument`. `undo()`, or the end of a `with` block, reverts them."""

    def __init__(self, scanner: TargetScanner) -> None:
        self._scanner = scanner
        self._changes: list[tuple[Replacement, Any]] = []
        self._names: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the new spans, in the order of the code."""
        return tuple(self._names)

    @property
    def refused(self) -> Mapping[str, str]:
        """Selected functions and classes that cannot be instrumented: name and reason."""
        return types.MappingProxyType(self._scanner.refused)

    def _replace(self, replacement: Replacement) -> None:
        owner, name = replacement.owner, replacement.name
        before = _own(owner, name)
        try:
            setattr(owner, name, replacement.value)
        except (TypeError, AttributeError) as error:
            self._scanner.refused[replacement.span] = f"it cannot be replaced: {error}"
            return
        self._changes.append((replacement, before))
        self._names.append(replacement.span)

    def undo(self) -> tuple[str, ...]:
        """Reverts all changes. Calls in progress end as they began. A second call has no effect.

        Returns:
            Names that other code has replaced since; they are not reverted.
        """
        changes, self._changes = self._changes, []
        skipped: list[str] = []
        for replacement, before in reversed(changes):
            owner, name = replacement.owner, replacement.name
            if _own(owner, name) is not replacement.value:
                skipped.append(replacement.span)
            elif before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return tuple(reversed(skipped))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        return f"<Instrumentation of {len(self._changes)} functions, {len(self.refused)} refused>"


def instrument(
    target: object,
    *,
    include: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] = (),
    properties: bool = False,
    category: str = CATEGORY,
) -> Instrumentation:
    """Makes each call of a module's functions, a class's methods or a model's layers a span named `module.Class.method`.

    It wraps functions, async functions, generators, async generators, class methods and static methods that the target itself
    defines, not imported or inherited ones. Names, signatures, docstrings and pickling by name do not change. Existing
    references, such as by `from module import function`, are not replaced. Instrumented functions are not wrapped again.

    Args:
        target: a module, with the classes that it defines; a class; or a `torch.nn.Module`, whose own `forward` and those
            of the modules in it get spans named by their place, such as `Net.layers.0.forward`.
        include: globs of names within the target, such as `load_*` or `Net.forward`; of a model, of places, such as
            `layers.*`. Default: all, without names like `__this__`; those need a glob that begins with two underscores.
        exclude: globs of names to skip in any case.
        properties: whether to instrument properties, too.
        category: of the spans.

    Returns:
        An object that reverts the changes, and lists what could not be instrumented: functions in C, and immutable classes.

    Raises:
        TypeError: if the target is something else, or a class written in C; if a glob or the category is no str.
    """
    if not isinstance(category, str):
        raise TypeError(f"category must be a str, {got(category)}")
    scanner = TargetScanner(Patterns(include, exclude), properties, category)
    if _is_layer(target):
        found = scanner.layers(target)
    elif isinstance(target, types.ModuleType):
        found = scanner.module(target)
    elif isinstance(target, type):
        why = _immutable(target)
        if why is not None:
            raise TypeError(f"{target.__module__}.{target.__qualname__} cannot be instrumented: {why}")
        found = scanner.cls(target)
    else:
        raise TypeError(_why_not(target))
    made = Instrumentation(scanner)
    try:
        for replacement in found:
            made._replace(replacement)  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        made.undo()
        raise
    return made


def _own(owner: Any, name: str) -> Any:
    """An object's own attribute; `_MISSING` if it only inherits one."""
    return cast(dict[str, Any], vars(owner)).get(name, _MISSING)


def _why_not(target: object) -> str:
    kind = type(target)
    if isinstance(target, types.BuiltinFunctionType):
        name = target.__qualname__
        return f"{name} is written in C and cannot be instrumented; put a span around its calls: with span({name!r})"
    if isinstance(target, types.FunctionType | types.MethodType):
        return f"instrument() takes a module, a class or a torch.nn.Module; for one function write @span({target.__name__!r})"
    if isinstance(target, str):
        return f"instrument() takes the module itself, not its name: import {target}, then instrument({target})"
    return (
        f"instrument() takes a module, a class or a torch.nn.Module, got an object of {kind.__qualname__}; "
        f"instrument its class: instrument({kind.__qualname__})"
    )
