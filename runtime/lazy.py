"""Public names whose modules are imported when a program first asks for one, as most programs use few; and hints for wrong names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any


def lazy(
    module: str,
    names: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    others: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the `__getattr__` and `__dir__` of a module (PEP 562).

    Args:
        module: its full name.
        names: by the full name of the module that defines them, the names that it has. A module with no names is had itself,
            by the last part of its own name. By default the module imports its names itself.
        others: what to use in place of names that people may look for here.
    """
    where = {name: source for source, defined in names.items() for name in defined}
    modules = {source.rpartition(".")[2]: source for source, defined in names.items() if not defined}

    def get(name: str) -> Any:
        if name in modules:
            return import_module(modules[name])
        if name not in where:
            text = f"module {module!r} has no attribute {name!r}"
            hint = f"; use {others[name]}" if name in others else _hint(name, names_of(), modules)
            # With a name Python adds no guess of its own to a traceback.
            raise AttributeError(text + hint, name=name) if hint else AttributeError(text)
        load_numpy()
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[module], name, value)
        return value

    def names_of() -> list[str]:
        return sorted({*vars(sys.modules[module]).get("__all__", ()), *modules})

    return get, names_of


def load_numpy() -> None:
    """Imports numpy; where the program has not done so itself, the threads that it starts for linear algebra take no signals."""
    if "numpy" not in sys.modules:
        from stepscope.runtime import _core

        _core.without_signals(import_module, "numpy")


def _hint(name: str, names: Collection[str], groups: Mapping[str, str]) -> str:
    """Names the module that has the name, or the most similar name."""
    if name.startswith("_"):
        return ""
    from difflib import get_close_matches

    paths = {paths: paths for paths in names if paths not in groups}
    for group in groups.values():
        paths |= {inside: f"{group}.{inside}" for inside in import_module(group).__all__ if inside not in paths}
    begun = [each for each in paths if each.lower().startswith(name.lower())]
    close = get_close_matches(name, paths, 1) or begun
    return f"; did you mean {paths[close[0]]}?" if close else ""
