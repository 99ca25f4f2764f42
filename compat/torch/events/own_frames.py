"""Functions of stepscope itself in torch's recordings: what a profile does is no part of the program.

torch calls a function `<file>(<line>): <name>`, the file without what `sys.path` leads to (`torch.profiler.python_tracer`).
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Block
from stepscope.runtime.files.paths import absolute

_FUNCTION = re.compile(r"(.+)\(\d+\): ")
_PROFILERS = ("torch/profiler/", "torch/autograd/profiler", "<built-in ", "<frozen ")
"""How names of functions begin that are stepscope's doing where it calls them; beside those of Python's library."""


def own_names(names: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Those of some names that are of functions of stepscope."""
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
