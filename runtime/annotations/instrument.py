"""Spans for code that does not name any: the functions of a module, the methods of a class, the layers of a model."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, Self, cast

from stepscope.runtime.annotations.target_scanner import Patterns, Replacement, TargetScanner, immutable, is_layer
from stepscope.runtime.settings.arguments import got

CATEGORY = "function"
"""Category of the spans, unless another is asked for."""

_MISSING = object()


class Instrumentation:
    """What `instrument` has changed. `undo()`, or leaving it as a context manager, takes it back."""

    def __init__(self, survey: TargetScanner) -> None:
        self._survey = survey
        self._changes: list[tuple[Replacement, Any]] = []
        self._names: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the spans that there are now, in the order of the code; not of what was instrumented already."""
        return tuple(self._names)

    @property
    def refused(self) -> Mapping[str, str]:
        """What was asked for and cannot be instrumented: its name and why."""
        return types.MappingProxyType(self._survey.refused)

    def _replace(self, replacement: Replacement) -> None:
        owner, name = replacement.owner, replacement.name
        before = _own(owner, name)
        try:
            setattr(owner, name, replacement.value)
        except (TypeError, AttributeError) as error:
            self._survey.refused[replacement.span] = f"it cannot be replaced: {error}"
            return
        self._changes.append((replacement, before))
        self._names.append(replacement.span)

    def undo(self) -> tuple[str, ...]:
        """Puts everything back. Calls that are under way end as they began; undoing twice changes nothing.

        Returns:
            Names of what somebody else has replaced meanwhile; it is left as it is.
        """
        changes, self._changes = self._changes, []
        left: list[str] = []
        for replacement, before in reversed(changes):
            owner, name = replacement.owner, replacement.name
            if _own(owner, name) is not replacement.value:
                left.append(replacement.span)
            elif before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return tuple(reversed(left))

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

    Instrumented are functions, coroutine functions, generators and async generators, class and static methods that the
    target itself defines: what it imports or inherits is not touched. Names, signatures, docstrings and pickling by name
    stay as they are. References that were taken before, such as by `from module import function`, are not replaced.
    What is instrumented already stays as it is.

    Args:
        target: a module, with the classes that it defines; a class; or a `torch.nn.Module`, whose own `forward` and those
            of the modules in it get spans named by their place, such as `Net.layers.0.forward`.
        include: globs of names within the target, such as `load_*` or `Net.forward`; of a model, of places, such as
            `layers.*`. Default: all, without names like `__this__`; those need a glob that begins with two underscores.
        exclude: globs of what is left out in any case.
        properties: whether properties are instrumented as well.
        category: of the spans.

    Returns:
        What takes it back, and says what could not be instrumented: functions in C, and classes that cannot be changed.

    Raises:
        TypeError: if the target is something else, or a class written in C; if a glob or the category is no str.
    """
    if not isinstance(category, str):
        raise TypeError(f"category must be a str, {got(category)}")
    survey = TargetScanner(Patterns(include, exclude), properties, category)
    if is_layer(target):
        found = survey.layers(target)
    elif isinstance(target, types.ModuleType):
        found = survey.module(target)
    elif isinstance(target, type):
        why = immutable(target)
        if why is not None:
            raise TypeError(f"{target.__module__}.{target.__qualname__} cannot be instrumented: {why}")
        found = survey.cls(target)
    else:
        raise TypeError(_why_not(target))
    made = Instrumentation(survey)
    try:
        for replacement in found:
            made._replace(replacement)  # pyright: ignore[reportPrivateUsage]
    except BaseException:
        made.undo()
        raise
    return made


def _own(owner: Any, name: str) -> Any:
    """What an object has itself under a name; `_MISSING` if it only inherits it."""
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
