"""`EnvProfiler`: records the whole program if the environment says so."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any, cast

from stepscope.compat.mindspore.analysis.analysis import Analysis
from stepscope.compat.mindspore.options.options import checked
from stepscope.compat.mindspore.profiler import Profiler
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.threads.background_call import call_before_threads_end

log = logging.getLogger("stepscope")

VARIABLE = "MS_PROFILER_OPTIONS"


class EnvProfiler:
    """Records if MS_PROFILER_OPTIONS, a JSON object, has `"start": true`; its other keys are options of `Profiler`.

    Where a variable cannot be followed, the log has the reason, and training goes on without a profiler.
    """

    profiler: Profiler | None = None
    """The profiler of the process."""

    @classmethod
    def init_profiler(cls, environment: Mapping[str, str] | None = None) -> Profiler | None:
        """Starts the profiler, unless it runs; `None` if nothing is to be recorded. Importing `stepscope.mindspore` does this,
        and so does `stepscope run`; it ends with the interpreter.

        Where MindSpore is installed and not imported yet, it is imported, so that its operators are recorded from the first.
        It does not see the variable then: it would start a second profiler. Processes that the program starts see it.
        """
        text = (os.environ if environment is None else environment).get(VARIABLE, "")
        if cls.profiler is not None or not text.strip():
            return cls.profiler
        try:
            options = read_variable(text)
            if options is None:
                return None
            _import_mindspore()
            cls.profiler = Profiler(**options)
        except (TypeError, ValueError, OSError, RuntimeError) as error:
            log.error("%s cannot be followed, nothing is recorded: %s", VARIABLE, error)
            return None
        call_before_threads_end(cls._at_exit)
        return cls.profiler

    def analyse(self) -> Analysis | None:
        """Ends recording and makes the products; `None` if nothing was started."""
        return None if self.profiler is None else self.profiler.analyse()

    @classmethod
    def _at_exit(cls) -> None:
        profiler, cls.profiler = cls.profiler, None
        if profiler is not None and profiler.recording:
            profiler.analyse()


# In a forked child the profiler is the parent's.
os.register_at_fork(after_in_child=lambda: setattr(EnvProfiler, "profiler", None))


def _import_mindspore() -> None:
    """Imports MindSpore where it is installed, without the variable."""
    if "mindspore" in sys.modules:
        _end_mindspores_profiler()
        return
    if importlib.util.find_spec("mindspore") is None:
        return
    text = os.environ.pop(VARIABLE, None)
    try:
        importlib.import_module("mindspore")
    except Exception as error:  # the program will see it, if it needs MindSpore
        log.error("%s: MindSpore cannot be imported, so its operators are not recorded: %s", VARIABLE, error)
    finally:
        if text is not None:
            os.environ[VARIABLE] = text


def _end_mindspores_profiler() -> None:
    """Ends MindSpore's own profiler, which follows the variable if MindSpore was imported first: two would record with one
    runtime."""
    theirs: Any = getattr(sys.modules.get("mindspore.profiler.envprofiler"), "EnvProfiler", None)
    profiler = getattr(theirs, "profiler", None)
    if profiler is None:
        return
    log.warning(
        "%s: MindSpore was imported before stepscope.mindspore and had begun to follow it; its profiler is ended. Import "
        "stepscope.mindspore first, or start the program by `stepscope run`, so that operators are recorded from the first",
        VARIABLE,
    )
    theirs.profiler = None
    try:
        profiler.stop()
    except Exception as error:  # ours records all the same
        log.error("%s: MindSpore's own profiler could not be ended: %s", VARIABLE, error)


def read_variable(text: str) -> dict[str, Any] | None:
    """The options of `Profiler` that the variable holds; `None` if it does not say `"start": true`.

    Raises:
        ValueError: if it is no JSON object; says where.
        TypeError: if `start` is no bool.
    """
    try:
        options: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    if not isinstance(options, dict):
        raise ValueError(f"it must be a mapping, {got(options)}")
    options = cast(dict[str, Any], options)
    start = checked("start", options.pop("start", False), bool)
    for name in ("schedule", "on_trace_ready", "start_profile"):
        if name in options:
            log.warning("%s: %r cannot be given here and has no effect", VARIABLE, name)
            del options[name]
    # The guide has other defaults here than the class.
    defaults: dict[str, Any] = {"data_process": True, "parallel_strategy": True}
    return {**defaults, **options} if start else None
