"""Sampled stacks as a tree whose widths are numbers of samples."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec

from stepscope.analysis.findings import Place
from stepscope.analysis.tables.rank_summary import Sample, parse_frame
from stepscope.runtime.display.code_places import COMMAND, in_library
from stepscope.runtime.display.text_table import printable

MOST_TEXT = 160
"""Characters of a function's name, and of a file's."""
NOT_RUNNING = frozenset("SDI")
"""States in which a thread waits, as the kernel names them."""
LAUNCHERS = ("<frozen runpy>", *COMMAND)
"""Ends of the files whose functions start a program."""


class Icicle(msgspec.Struct, frozen=True, kw_only=True):
    """A tree in preorder: lists of one length, one place in each for a node. The first node is the root."""

    names: tuple[str, ...]
    """Functions."""
    places: tuple[str, ...]
    """File and line of each name."""
    kinds: tuple[int, ...]
    """Origin of each name: 0 the program, 1 an installed package, 2 Python itself."""
    name: tuple[int, ...]
    """Name of each node, an index of `names`."""
    depth: tuple[int, ...]
    samples: tuple[int, ...]
    waiting: tuple[int, ...]
    """Samples of each node in which the thread was neither on a processor nor ready for one."""
    left_out: int = 0
    """Nodes that are too narrow to be seen."""


class _Node:
    __slots__ = ("below", "lines", "samples", "waiting")

    def __init__(self) -> None:
        self.samples = 0
        self.waiting = 0
        self.lines: Counter[int] = Counter()
        self.below: dict[tuple[str, str], _Node] = {}


def icicle_of(samples: Sequence[Sample], most_nodes: int) -> Icicle | None:
    """The tree of stacks, outermost function first, or `None` if there are no samples.

    The first frames are left out as long as they are of how the program was started.

    Args:
        samples: stacks.
        most_nodes: the widest that many are kept.
    """
    stacks: Counter[tuple[str, bool]] = Counter((one.stack, one.state in NOT_RUNNING) for one in samples if one.stack)
    if not stacks:
        return None
    texts = {text for stack, _ in stacks for text in stack.split(";")}
    frames = {text: parse_frame(text) or Place(text, "", 0) for text in texts if text}
    root = _Node()
    for (stack, waits), count in stacks.items():
        path = [frames[text] for text in stack.split(";") if text]
        node = root
        _count(node, count, waits, 0)
        for frame in itertools.dropwhile(lambda frame: frame.file.endswith(LAUNCHERS), path):
            node = node.below.setdefault((frame.function, frame.file), _Node())
            _count(node, count, waits, frame.line)
    return _flat(root, most_nodes)


def _count(node: _Node, count: int, waits: bool, line: int) -> None:
    node.samples += count
    node.waiting += count if waits else 0
    node.lines[line] += count


def _flat(root: _Node, most_nodes: int) -> Icicle:
    widths: list[int] = []
    pending = [root]
    while pending:
        node = pending.pop()
        widths.append(node.samples)
        pending.extend(node.below.values())
    least = max(1, sorted(widths, reverse=True)[most_nodes]) + 1 if len(widths) > most_nodes else 1
    numbers: dict[tuple[str, str], int] = {}
    lines: list[Counter[int]] = []
    name: list[int] = []
    depths: list[int] = []
    counts: list[int] = []
    waiting: list[int] = []
    stack: list[tuple[tuple[str, str], _Node, int]] = [(("all samples", ""), root, 0)]
    while stack:
        key, node, depth = stack.pop()
        number = numbers.setdefault(key, len(numbers))
        if number == len(lines):
            lines.append(Counter())
        lines[number].update(node.lines)
        name.append(number)
        depths.append(depth)
        counts.append(node.samples)
        waiting.append(node.waiting)
        wide = [(inner, one, depth + 1) for inner, one in node.below.items() if one.samples >= least]
        stack.extend(sorted(wide, key=lambda each: (each[1].samples, each[0])))
    keys = list(numbers)
    return Icicle(
        names=tuple(printable(function)[:MOST_TEXT] for function, _ in keys),
        places=tuple(
            f"{printable(file)[-MOST_TEXT:]}:{of.most_common(1)[0][0]}" if file else ""
            for (_, file), of in zip(keys, lines, strict=True)
        ),
        kinds=tuple(kind_of(file) for _, file in keys),
        name=tuple(name),
        depth=tuple(depths),
        samples=tuple(counts),
        waiting=tuple(waiting),
        left_out=len(widths) - len(name),
    )


def kind_of(file: str) -> int:
    """0 the program's own, 1 of an installed package, 2 of Python itself."""
    if not in_library(file):
        return 0
    return 1 if "-packages" in file else 2
