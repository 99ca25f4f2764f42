"""The spans of a window, as torch's profiler would have them: which count, and what encloses what."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.torch.importing import private
from stepscope.backends.torch.kineto.blocks import nest
from stepscope.compat.torch.windows.finished_window import FinishedWindow
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block, Flag, Kind, join_blocks
from stepscope.runtime.files.paths import absolute

_FUNCTION = re.compile(r"(.+)\(\d+\): ")
_PROFILERS = ("torch/profiler/", "torch/autograd/profiler", "<built-in ", "<frozen ")
"""Prefixes of names of functions that stepscope itself calls, besides those of Python's library."""


def own_names(names: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Filters names: functions of stepscope."""
    files = frozenset(_own_files())
    return names[[_file(strings.text(name)) in files for name in names.tolist()]]


def own_frames(spans: Block, functions: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which spans are functions of stepscope, or of torch's profiler or Python's library and were called by those.

    Other functions that they call, such as one that stepscope wraps, are the program's again. The spans are by begin, each with
    1 + the index of its parent; `functions` says which are functions of Python.
    """
    names = np.unique(spans["name"][functions])
    own = set(own_names(names).tolist())
    found = np.zeros(len(spans) + 1, np.bool_)
    if not own:
        return found[1:]
    helping = {name for name in names.tolist() if _helps(strings.text(name))}
    columns = zip(spans["name"].tolist(), spans["parent"].tolist(), functions.tolist(), strict=True)
    for number, (name, parent, function) in enumerate(columns, 1):
        found[number] = function and (name in own or (name in helping and bool(found[parent])))
    return found[1:]


def _own_files() -> Iterator[str]:
    """Files of stepscope's modules, as torch may call them."""
    prefixes = {os.path.join(absolute(entry), "") for entry in sys.path}
    for name, module in list(sys.modules.items()):
        file: str | None = getattr(module, "__file__", None)
        if name.partition(".")[0] == "stepscope" and file is not None:
            yield file
            yield from (file.removeprefix(prefix) for prefix in prefixes if file.startswith(prefix))


def _file(name: str) -> str:
    match = _FUNCTION.match(name)
    return "" if match is None else match[1]


def _helps(name: str) -> bool:
    if name.startswith(_PROFILERS):
        return True
    file = _file(name)
    module = file.partition("/")[0].removesuffix(".py")
    return module in sys.stdlib_module_names and os.path.exists(os.path.join(sysconfig.get_path("stdlib"), file))


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
"""Categories of spans that ran on an accelerator."""
FRAMES = ("python_function",)
"""Category of Python's functions, which torch counts as events if stacks were requested."""
OPERATORS = ("cpu_op", "cuda_runtime", "cuda_driver", *DEVICE[:3], *FRAMES)
"""Categories of spans that are no annotations of the program."""
_ENGINE = "autograd::engine::evaluate_function: "
"""torch's span around each node of autograd; the rest of its name is that of the node's span."""
_INLINE = int(Flag.ARG_INLINE)
_NOT_TORCHS = ("task",)
_HIDDEN = (
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)
"""Operators that torch leaves out of tables and `events()`."""


class WindowSpans:
    """Spans in the order of their begin, longer ones first; `parent` is 1 + the index of what encloses it, 0 for nothing.

    64 bytes for each while it is held. An async pair encloses nothing.
    """

    def __init__(self, finished: FinishedWindow, *, arguments: bool = False) -> None:
        """Reads the window; with `arguments` also what spans and allocations carry, and flows."""
        spans: list[Block] = []
        memory: list[Block] = []
        flows: list[Block] = []
        heap = bytearray()
        steps, stepping = strings.intern("ProfilerStep"), set[int]()
        for batch in finished.batches():
            events = batch.events
            found = events[events["kind"] == Kind.SPAN].copy()
            marks = (found["name"] == steps) & (found["flags"] & Flag.NUMBERED != 0)
            stepping.update(found["track"][marks].tolist())
            if not finished.torch_flags.steps:
                found = found[~marks]
            if arguments:
                allocations = events[events["kind"] == Kind.MEMORY].copy()
                for block in (found, allocations):
                    block["args_at"][block["flags"] & Flag.ARG_INLINE == 0] += len(heap)
                memory.append(allocations)
                flows.append(events[np.isin(events["kind"], (Kind.FLOW_START, Kind.FLOW_END))].copy())
                heap += batch.args
            spans.append(found)
        self._heap = bytes(heap)
        every = join_blocks(spans)
        unwanted = _categories(every, _NOT_TORCHS) | np.isin(every["name"], [strings.intern(name) for name in _HIDDEN])
        if not finished.torch_flags.with_stack:  # of another profiler that shares the recording
            unwanted |= _categories(every, FRAMES)
        elif len(every):
            unwanted |= _of_ours(every, stepping)
        self.block = _ordered(every[~unwanted])
        """The spans that torch counts."""
        if finished.torch_flags.with_stack:
            ours = own_frames(self.block, _categories(self.block, FRAMES))
            self.block = _ordered(self.block[~ours]) if ours.any() else self.block
        self.memory = join_blocks(memory)
        """Allocations and releases, in order of time."""
        self.memory = self.memory[np.argsort(self.memory["ts"], kind="stable")]
        self.flows = join_blocks(flows)
        """Arrows between spans: each end points to the begin of a span of its track."""
        self.device: NDArray[np.bool_] = _categories(self.block, DEVICE)
        """Marks the spans that ran on an accelerator."""
        self.annotations: NDArray[np.bool_] = ~_categories(self.block, OPERATORS)
        """Marks the spans that are annotations of the program."""

    def arguments(self, flags: int, at: int, length: int) -> dict[str, Any]:
        """The arguments of a span or allocation, by its columns `flags`, `args_at` and `args_len`."""
        if flags & _INLINE:
            return {strings.text(at): length}
        return _core.decode_arguments(self._heap, at, length) if length else {}

    def callers(self) -> list[tuple[str, ...]]:
        """The Python functions around each span, the innermost first."""
        frames = _categories(self.block, FRAMES).tolist()
        # Values that a span passes on to those inside of it, by 1 + its index.
        passed: list[tuple[str, ...]] = [()]
        names: dict[int, str] = {}
        found: list[tuple[str, ...]] = []
        columns: tuple[list[int], list[int], list[bool]] = (
            self.block["name"].tolist(),
            self.block["parent"].tolist(),
            frames,
        )
        for name, parent, frame in zip(*columns, strict=True):
            outer = passed[parent]
            found.append(outer)
            if frame:
                text = names.get(name) or names.setdefault(name, strings.text(name))
                outer = (text, *outer)
            passed.append(outer)
        return found

    def nodes(self) -> set[int]:
        """Indices of the nodes of autograd: what has the name of the engine's span around it."""
        names, found = self.block["name"].tolist(), set[int]()
        engines: dict[int, str] = {}
        for number, parent in enumerate(self.block["parent"].tolist()):
            if parent:
                around = names[parent - 1]
                text = engines.get(around)
                if text is None:
                    text = strings.text(around)
                    text = engines[around] = text.removeprefix(_ENGINE) if text.startswith(_ENGINE) else ""
                if text and text == strings.text(names[number]):
                    found.add(number)
        return found

    def repeats(self) -> NDArray[np.bool_]:
        """Which spans torch leaves out: the only one inside of another with the same name, as operators that call
        themselves with other arguments. Their own time is that of the one around them."""
        block = self.block
        parent = block["parent"].astype(np.int64)
        children = np.bincount(parent, minlength=len(block) + 1)
        around = np.maximum(parent - 1, 0)
        distinct, names = np.unique(block["name"], return_inverse=True)
        # Overloads of one operator have one name.
        alike: dict[str, int] = {}
        bases = [alike.setdefault(without_overload(strings.text(name))[0], len(alike)) for name in distinct.tolist()]
        base = np.array(bases, np.int64)[names]
        same: Any = (parent > 0) & (children[parent] == 1) & (base == base[around])
        return same  # type: ignore[no-any-return]


def shown_name(util: Any, text: str, *, grouped: bool) -> str:
    """A name as torch shows it in traces, or with `grouped` as it groups by it: with a `*` in place of a number. Raises
    `BackendError` if torch's `profiler_util` has no such function."""
    return str(private(util, "_rewrite_name")(text, with_wildcard=grouped))


def without_overload(text: str) -> tuple[str, str]:
    """An operator's name and that of its overload, which torch's recording has in one text: `aten::add.Tensor`."""
    namespace, colons, operator = text.partition("::")
    if not colons or not namespace.isidentifier():
        return text, ""
    name, dot, overload = operator.partition(".")
    return (f"{namespace}::{name}", overload) if dot and name.isidentifier() and overload.isidentifier() else (text, "")


def _categories(events: Block, names: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.isin(events["category"], [strings.category(name) for name in names])


def _of_ours(spans: Block, stepping: set[int]) -> NDArray[np.bool_]:
    """Finds events on threads of stepscope's own: they run Python functions of ours and no operators, and are none of `stepping`,
    the tracks that have step marks."""
    frames = _categories(spans, FRAMES)
    ours = own_names(np.unique(spans["name"][frames]))
    tracks = np.unique(spans["track"][frames & np.isin(spans["name"], ours)])
    return np.isin(
        spans["track"], np.setdiff1d(tracks, np.append(spans["track"][~frames], np.array([*stepping], np.uint32)))
    )


def _ordered(spans: Block) -> Block:
    """The spans by begin, nested anew: those of the recorder and of torch come from two sources."""
    spans = spans[np.lexsort((-spans["dur"], spans["ts"]))]
    tracks = spans["track"].copy()
    alone = spans["flags"] & int(Flag.ASYNC) != 0
    spans["track"][alone] = np.arange(1, int(alone.sum()) + 1) + int(tracks.max(initial=0))
    spans["id"] = np.arange(1, len(spans) + 1)
    spans["parent"] = 0
    nest(spans)
    spans["track"] = tracks
    return spans
