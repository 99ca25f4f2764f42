"""Spans for code without annotations: the functions of a module, the methods of a class, the layers of a model."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

from stepscope.runtime.annotations.target_scanner import Patterns, Replacement, TargetScanner, immutable, is_layer
from stepscope.runtime.settings.arguments import got

CATEGORY = "function"
"""Default category of the spans."""

_MISSING = object()


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
    if is_layer(target):
        found = scanner.layers(target)
    elif isinstance(target, types.ModuleType):
        found = scanner.module(target)
    elif isinstance(target, type):
        why = immutable(target)
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
