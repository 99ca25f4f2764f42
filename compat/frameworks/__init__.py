"""Callbacks for training frameworks. `loop.py` is the part that all share: it opens, steps and closes a profiler."""

from __future__ import annotations

from typing import NoReturn


def raise_missing(error: ModuleNotFoundError, package: str, framework: str, install: str) -> NoReturn:
    """Raises what the import of a front door ends with: an `ImportError` that says that the framework is not installed, and the arguments of pip; or
    the same error, if something else is missing that the framework needs."""
    if (error.name or "").partition(".")[0] != package:
        raise error
    door = f"stepscope.{framework.lower()}"
    raise ImportError(f"{door} needs {framework}, which is not installed: pip install {install}") from error
