"""Averages over operators, without an object for each event."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np

from stepscope.compat.torch.events.window_spans import WindowSpans, shown_name, without_overload
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Flag


def averages(windows: Iterable[WindowSpans]) -> Any:
    """torch's `EventList` of `FunctionEventAvg` for what ran on the host, without shapes and memory, by the first begin of each name.

    Counts and times are added up by arrays: some 0.1 µs for an event, where objects take ten."""
    util: Any = import_module("torch.autograd.profiler_util")
    found: dict[tuple[str, bool], Any] = {}
    for window in windows:
        _add(window, found, util)
    return util.EventList(found.values(), use_device=None, profile_memory=False, with_flops=False)


def _add(window: WindowSpans, found: dict[tuple[str, bool], Any], util: Any) -> None:
    block = window.block
    if not len(block):
        return
    repeated = window.repeats()
    keys = block["name"].astype(np.int64) * 4 + 2 * window.annotations + (block["flags"] & int(Flag.ASYNC) != 0)
    distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
    own = np.bincount(group, block["self_dur"])
    total = np.bincount(group, np.where(repeated, 0, block["dur"]))
    count = np.bincount(group, ~repeated).astype(np.int64)
    # A name's first span is no repeat of another: that one would have begun before.
    for number in np.argsort(first, kind="stable").tolist():
        span = block[first[number]]
        text = _name(span, util)
        is_async = bool(distinct[number] & 1)
        key = text, bool(distinct[number] & 2)
        average = found.get(key)
        if average is None:
            average = found[key] = _empty(util, *key, is_async)
            average.cpu_parent = _parent(window, int(span["parent"]), util)
        average.count += int(count[number])
        average.cpu_time_total += total[number].item() / 1000
        average.self_cpu_time_total += 0 if is_async else own[number].item() / 1000


def _name(span: Any, util: Any) -> str:
    """The name that torch groups by: all steps have one."""
    text = strings.text(int(span["name"]))
    if span["flags"] & int(Flag.NUMBERED):
        return f"{text}*"
    return shown_name(util, without_overload(text)[0], grouped=True)


def _empty(util: Any, key: str, annotation: bool, is_async: bool) -> Any:
    average = util.FunctionEventAvg()
    average.key, average.node_id, average.is_async = key, -1, is_async
    average.is_user_annotation = annotation
    average.input_shapes = average.overload_name = ""
    average.stack, average.cpu_children = [], []
    average.scope = 7 if annotation else 0
    return average


def _parent(window: WindowSpans, parent: int, util: Any) -> Any:
    """Tables of top-level operators ask only whether there is one."""
    if not parent:
        return None
    span = window.block[parent - 1]
    begin = int(span["ts"]) / 1000
    return util.FunctionEvent(parent, _name(span, util), 0, begin, begin + int(span["dur"]) / 1000)
