"""Regions in code that torch.compile compiles: the compiler treats them as torch's own `record_function`.

A span is an object of a C extension, which the compiler cannot look into: without this it gives up the function around
it. torch's own region it knows. By torch's default that is left out of what is compiled, which torch says once in its log;
with `torch._dynamo.config.capture_profiler_record_function` it is in the compiled graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from stepscope.backends.torch.importing import COMPILER, TorchImport
from stepscope.runtime import _core

log = logging.getLogger("stepscope")

Substitute = Callable[..., Any]
"""Python code that the compiler looks through in place of a function or class."""

_substitutes: dict[Callable[..., Any], Substitute] = {}
_regions: dict[type, Callable[[Any], tuple[str, str | None]]] = {}
"""Classes of regions, and what makes the arguments of torch's own from an object that was made outside of compiled code."""
_registered: set[object] = set()
_imported = False
"""Whether the compiler was imported."""


def substitute(original: Callable[..., Any], code: Substitute) -> None:
    """Has the compiler look through `code`, with the same parameters, where a program calls a function or class of ours."""
    _substitutes[original] = code
    if _imported:
        _register_all()


def substitute_region(original: type, code: Substitute, arguments: Callable[[Any], tuple[str, str | None]]) -> None:
    """The same for a class of regions, whose objects may have been made before they come into compiled code: `arguments` makes those of
    torch's own `record_function` from an object."""
    _regions[original] = arguments
    substitute(original, code)


def watch() -> None:
    """Registers the substitutes as soon as the compiler is imported."""
    TorchImport(_register_all, COMPILER).watch()


def _register_all() -> None:
    """Registers the substitutes that are not registered yet. A failure is logged; then regions end graphs."""
    global _imported
    _imported = True
    try:
        _register()
    except Exception as error:
        log.debug("regions end the graphs of torch.compile: this torch takes no substitutes for them: %r", error)


def _register() -> None:
    register: Any = import_module(f"{COMPILER}.decorators").substitute_in_graph
    _register_functions()
    for original, code in _substitutes.items():
        if original not in _registered:
            _registered.add(original)
            register(original, skip_signature_check=True, is_embedded_type=isinstance(original, type))(code)
    builder: Any = import_module(f"{COMPILER}.variables.builder")
    variables: Any = import_module(f"{COMPILER}.variables.ctx_manager")
    guards: Any = import_module(f"{COMPILER}.guards")
    make: Any = import_module("torch.profiler").record_function
    for region, arguments in _regions.items():

        def from_object(self: Any, value: Any, arguments: Callable[[Any], tuple[str, str | None]] = arguments) -> Any:
            self.install_guards(guards.GuardBuilder.ID_MATCH)
            return variables.RecordFunctionVariable(make(*arguments(value)))

        builder.VariableBuilder._type_dispatch()[region] = from_object


def _register_functions() -> None:
    """The compiler calls these after the graph that they were in: they are recorded, and break nothing.

    A setting of torch's is one of the `contextvars` context that sets it: other threads and tasks see its default, so the
    default has them too.
    """
    config: Any = import_module(f"{COMPILER}.config")
    setting = "reorderable_logging_functions"
    functions = {_core.instant, _core.counter, _core.flow}
    default: Any = getattr(getattr(config, "_config", {}).get(setting), "default", None)
    if hasattr(default, "update"):
        default.update(functions)
    setattr(config, setting, getattr(config, setting) | functions)


def _span(name: str, /, *, category: object = None, **arguments: object) -> Any:
    import torch

    return torch.profiler.record_function(name)


def _same(span: Any) -> Any:
    return span


substitute_region(_core.span, _span, lambda span: (span.name, None))
substitute(_core.copy_span, _same)
