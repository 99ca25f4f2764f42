"""Makes settings.md of what the settings say of themselves in `help()`. `python -m docs.settings`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, Literal, cast, get_args, get_origin

import msgspec

import stepscope as sc
from stepscope.collector.settings import CollectorSettings
from stepscope.compat.mxnet.settings import MXNetSettings
from stepscope.runtime.settings.documented import Field, fields_of

PAGE = Path(__file__).with_name("settings.md")
CHAPTERS: dict[str, tuple[Callable[..., Any], ...]] = {
    "A profiler": (sc.trace, sc.schedule),
    "Sizes of buffers, deadlines, and what is dropped first": (sc.Options,),
    "Windows that are asked for while the program runs": (
        sc.Control,
        sc.control.WindowRequest,
        sc.control.WindowDetail,
    ),
    "Keeping the last steps": (
        sc.FlightRecorder,
        sc.triggers.SlowStep,
        sc.triggers.Raised,
        sc.triggers.NotFinite,
        sc.triggers.MemoryHigh,
        sc.triggers.Stalled,
        sc.triggers.Terminated,
    ),
    "A budget for what recording costs": (sc.control.OverheadBudget,),
    "Exporters": (
        sc.ChromeTraceExporter,
        sc.PerfettoExporter,
        sc.tensorboard_trace_handler,
        sc.exporters.StepScalarExporter,
        sc.exporters.ConsoleExporter,
        sc.exporters.JournalExporter,
        sc.exporters.MemoryExporter,
        sc.exporters.OtlpExporter,
        sc.exporters.OtlpOptions,
        sc.CollectorExporter,
        sc.exporters.LinkSettings,
        sc.exporters.NatsExporter,
        sc.exporters.NatsAccess,
        sc.exporters.NatsLimits,
        sc.exporters.ParquetExporter,
    ),
    "Backends": (
        sc.TorchBackend,
        sc.backends.HostBackend,
        sc.backends.PerfBackend,
        sc.backends.NvmlBackend,
        sc.backends.ReplayBackend,
        sc.backends.SimulatedDevice,
        sc.backends.ScriptedBackend,
    ),
    "Code without annotations": (sc.instrument,),
    "For users of mxnet.profiler": (MXNetSettings,),
    "A collector": (CollectorSettings,),
    "Processes": (sc.join,),
}
BEGINNING = """\
# Settings

Everything that can be set, with its default, its range and what it means. `help(stepscope.Options)` and the like say the
same, and so does an editor that shows docstrings. This page is made of those texts: `make docs` writes it, and a test
compares them.

Settings are values: they are checked when they are made, cannot be changed, and refuse names that they do not know. An
error names the field, the value and what it should be, and for an unknown name the one that is like it; the same in a program
and in JSON. Commands list theirs with `stepscope <command> --help`.

| variable of the environment | |
| --- | --- |
| `STEPSCOPE_JOIN=1` | a process that imports stepscope takes part in the session of the one that it descends from |
| `RANK`, `WORLD_SIZE`, and as SLURM and MPI name them | of the run, where `trace(rank=...)` says nothing; a rank that is not below 1,048,576, and a size that is not from 1 to that, are ignored with a warning |
| `STEPSCOPE_OPTIONS` | a JSON object that takes the place of what the program gives to `trace()`: docs/control.md |
| `STEPSCOPE_SIGNALS` | which signals profilers record, whatever `Options.signals` says: `none`, `all`, or names with commas |
| `STEPSCOPE_JOB` | names the job that ranks are part of, where no launcher does |
| `STEPSCOPE_SESSION`, `INTEL_LIBITTNOTIFY64` | set by stepscope, for joined processes and for torch |
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([BEGINNING, *_contents(), *_chapters()]).rstrip() + "\n"


def settings_of(subject: Callable[..., Any]) -> tuple[Field, ...]:
    """The parameters of a settings struct, a class or a function.

    Raises:
        LookupError: for a parameter that its docstring does not speak of.
    """
    if isinstance(subject, type) and issubclass(subject, msgspec.Struct):
        return fields_of(subject)
    subject = cast(Any, subject)
    documented = "\n".join(filter(None, (inspect.getdoc(subject), inspect.getdoc(getattr(subject, "__init__", None)))))
    fields: list[Field] = []
    for parameter in inspect.signature(subject).parameters.values():
        found = re.search(rf"^    {parameter.name}: (.*(?:\n {{6,}}.*)*)", documented, re.MULTILINE)
        if found is None:
            raise LookupError(f"the docstring of {subject.__name__} says nothing of {parameter.name!r}")
        default = None if parameter.default is parameter.empty else _value(parameter.default)
        fields.append(Field(parameter.name, _choices(subject, str(parameter.annotation)), default, "", found[1]))
    return tuple(fields)


def _value(value: object) -> str:
    """A default as it could be written."""
    if isinstance(value, int) and value >= 1 << 20 and not value % (1 << 20):
        return f"{value >> 20} << 20"
    return f"{value.__module__}.{value.__name__}" if isinstance(value, BuiltinFunctionType) else repr(value)


def _choices(subject: Callable[..., Any], annotation: str) -> str:
    """An annotation; where it names a `Literal`, the values."""
    meant: Any = getattr(sys.modules[subject.__module__], annotation, None)
    return f"Literal[{', '.join(map(repr, get_args(meant)))}]" if get_origin(meant) is Literal else annotation


def _contents() -> Iterator[str]:
    for chapter, subjects in CHAPTERS.items():
        yield f"- {chapter}: " + ", ".join(f"[`{subject.__name__}`](#{_anchor(subject)})" for subject in subjects)
    yield ""


def _chapters() -> Iterator[str]:
    for chapter, subjects in CHAPTERS.items():
        yield f"## {chapter}\n"
        for subject in subjects:
            yield f"### {subject.__name__}\n\n`{_full_name(subject)}`: {_about(subject)}\n"
            fields = settings_of(subject)
            if fields:
                ranges = any(field.range for field in fields)
                yield "| setting | default | range | |" if ranges else "| setting | default | |"
                yield "| --- | --- | --- | --- |" if ranges else "| --- | --- | --- |"
                yield from (_row(field, ranges) for field in fields)
                yield ""


def _anchor(subject: Callable[..., Any]) -> str:
    return subject.__name__.lower()


def _full_name(subject: Callable[..., Any]) -> str:
    """The name with the module from which programs import it."""
    name = subject.__name__
    for module in (sc, sc.exporters, sc.backends, sc.control, sc.triggers):
        if getattr(module, name, None) is subject:
            return f"{module.__name__}.{name}"
    return f"{subject.__module__}.{name}"


def _about(subject: Callable[..., Any]) -> str:
    """The docstring before any section."""
    return re.split(r"\n+(?:Args|Attributes|Raises|Returns):\n", inspect.getdoc(subject) or "")[0]


def _row(field: Field, ranges: bool) -> str:
    default = "must be given" if field.default is None else f"`{field.default}`"
    cells = [f"`{field.name}`<br>`{field.type}`", default, *([field.range] if ranges else []), field.text]
    return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", r"\|").strip() for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
