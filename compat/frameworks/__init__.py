"""Callbacks for training frameworks. `loop.py` is the part that all share: it opens, steps and closes a profiler."""

from __future__ import annotations

from typing import NoReturn


def raise_missing(error: ModuleNotFoundError, package: str, framework: str, install: str) -> NoReturn:
    """Raises the error of importing the module for a framework.

    Args:
        error: of the import; raised again if something else is missing that the framework needs.
        package: the framework's, as Python imports it.
        framework: its name, as its makers write it.
        install: arguments of pip.

    Raises:
        ImportError: if the framework is not installed; has the arguments of pip.
    """
    if (error.name or "").partition(".")[0] != package:
        raise error
    module = f"stepscope.{framework.lower()}"
    raise ImportError(f"{module} needs {framework}, which is not installed: pip install {install}") from error
