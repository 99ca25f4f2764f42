"""In which part of a program or library a sampled stack is."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stepscope.analysis.findings import Place
from stepscope.analysis.tables.rank_summary import Sample, parse_frame, program_functions
from stepscope.analysis.thresholds import DISTINCT, FEWEST_SAMPLES
from stepscope.runtime.display.code_places import in_library

SAME = 0.05
"""Of two functions whose shares differ by less, the inner one is named."""
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


def only_in(slow: list[Sample], usual: list[Sample], distinct: float = DISTINCT) -> Place | None:
    """The innermost function of the program that has many more of some samples than of others.

    Args:
        slow: samples of what is slow.
        usual: samples of the same where it is not.
        distinct: by how much its share must be larger, from 0 to 1.
    """
    if len(slow) < FEWEST_SAMPLES:
        return None
    stacks = [program_functions(sample.stack) for sample in slow]
    here = Counter(function for stack in stacks for function in stack)
    there = Counter(function for sample in usual for function in program_functions(sample.stack))
    best, most = None, 0.0
    for function, count in here.items():  # outer ones first
        share = count / len(slow)
        distance = share - there[function] / max(len(usual), 1)
        if distance >= distinct and distance >= most - SAME:
            best, most = function, max(distance, most)
    if best is None:
        return None
    line, _ = Counter(stack[best] for stack in stacks if best in stack).most_common(1)[0]
    return Place(*best, line, here[best] / len(slow))
