"""Notices that a program imports torch, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from stepscope.runtime.errors import BackendError

COMPILER = "torch._dynamo"
"""The module of torch.compile."""


def private(owner: Any, name: str) -> Any:
    """An attribute that torch calls private: any release may be without it.

    Raises:
        BackendError: if this one is; says which.
    """
    try:
        return getattr(owner, name)
    except AttributeError:
        version = getattr(sys.modules.get("torch"), "__version__", "of this version")
        where = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", type(owner).__name__)
        raise BackendError(
            f"torch {version} has no {where}.{name}, a private name that is needed here; take a version of torch that has it"
        ) from None


class TorchImport:
    """A finder on `sys.meta_path` that finds nothing itself: it calls `then` once torch, or a part of it, has been imported whole.

    It is called on the importing thread, inside the import statement. Its exception stays out of the program, and is kept in
    `problem`.
    """

    def __init__(self, then: Callable[[], None], module: str = "torch") -> None:
        self._module = module
        self.problem: Exception | None = None
        self._then = then

    def watch(self) -> None:
        """Begins to watch; calls at once if torch is there already."""
        if self._module in sys.modules:
            self._call()
        elif self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        """Stops watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Lets the others find torch, and watches its loader."""
        if name != self._module:
            return None
        self.forget()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                load(module)
            except BaseException:
                self.watch()  # the program may try again
                raise
            self._call()

        # Of this one loader object, which importlib made for this import.
        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _call(self) -> None:
        try:
            self._then()
        except Exception as error:
            self.problem = error
