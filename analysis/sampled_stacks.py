"""In which part of a program or library a sampled stack is."""

from __future__ import annotations

from typing import Any

from stepscope.analysis.rank_summary import Sample, parse_frame, program_functions
from stepscope.runtime.places import in_library

LOADER_FILES = ("torch/utils/data/",)


def in_loader(sample: Sample) -> bool:
    """Whether the thread was in a DataLoader."""
    return any(file in sample.stack for file in LOADER_FILES)


def in_collate(sample: Sample, facts: dict[str, Any]) -> bool:
    """Whether a loader's own `collate_fn` is on the stack.

    Args:
        facts: those of the loader, as recorded where its iteration begins.
    """
    file, _, _ = str(facts.get("collate_place", "")).rpartition(":")
    name = str(facts.get("collate", ""))
    return not in_library(file) and any(
        where == file and name.endswith((f".{function}", f".{function.removesuffix('.__call__')}"))
        for function, where in program_functions(sample.stack)
    )


def in_backward(sample: Sample) -> bool:
    """Whether autograd runs, on this thread, below the sampled function."""
    return "_engine_run_backward" in sample.stack


def in_backward_hook(sample: Sample) -> bool:
    """Whether autograd has called a function of the program."""
    after = sample.stack.partition("_engine_run_backward")[2].split(";")[1:]
    return any((frame := parse_frame(each)) is not None and not in_library(frame.file) for each in after)


def in_program_code(sample: Sample) -> bool:
    """Whether the innermost function is the program's own, or of Python's library called by it; not torch's."""
    frame = parse_frame(sample.stack.rpartition(";")[2])
    return frame is not None and (
        not in_library(frame.file) or "/lib/python3" in frame.file and "site-packages" not in frame.file
    )
