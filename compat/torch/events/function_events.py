"""Events of a window as objects of torch's own classes, which is what programs that read them expect."""

from __future__ import annotations

import ast
import inspect
import json
import logging
from importlib import import_module
from math import inf, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.backends.torch.importing import private
from stepscope.compat.torch.events.window_spans import DEVICE, WindowSpans, shown_name, without_overload
from stepscope.compat.torch.windows.finished_window import FinishedWindow
from stepscope.runtime.events import clock, strings, tracks
from stepscope.runtime.events.record import Flag, Kind
from stepscope.runtime.files.encoding import json_bytes

_HOST = (0, 2, 5)
_ACCELERATORS = (1, 6, 12, 20)
"""torch's numbers (c10::DeviceType): CPU, MKLDNN and IDEEP; CUDA, HIP, XPU and PrivateUse1."""

Amounts = NDArray[np.int64]


class MemoryUsage:
    """Bytes allocated less bytes released, as torch's profiler counts them: all that happens while an operator runs is its
    own, on whatever thread."""

    def __init__(self, spans: WindowSpans) -> None:
        columns = (spans.memory[field].tolist() for field in ("flags", "args_at", "args_len"))
        details = [spans.arguments(*where) for where in zip(*columns, strict=True)]
        devices = np.array([int(args.get("Device Type", 0)) for args in details], np.int64)
        sizes = np.array([int(args.get("Bytes", 0)) for args in details], np.int64)
        self._block = spans.block[~spans.device]
        self._every = spans.block
        self._times: Amounts = spans.memory["ts"].astype(np.int64)
        self._host: Amounts = np.where(np.isin(devices, _HOST), sizes, 0)
        self._device: Amounts = np.where(np.isin(devices, _ACCELERATORS), sizes, 0)

    def of_spans(self) -> tuple[Amounts, Amounts]:
        """Bytes of each span on the host and on accelerators."""
        begin = self._every["ts"].astype(np.int64)
        first = np.searchsorted(self._times, begin, side="left")
        last = np.searchsorted(self._times, begin + self._every["dur"], side="right")
        host, device = (np.concatenate([[0], np.cumsum(sizes)]) for sizes in (self._host, self._device))
        return host[last] - host[first], device[last] - device[first]

    def alone(self) -> list[tuple[int, tuple[int, int]]]:
        """Times and bytes, on the host and on accelerators, of what happened while no operator ran."""
        if not len(self._block):
            between = np.ones(len(self._times), np.bool_)
        else:
            begin = self._block["ts"].astype(np.int64)  # in order
            until = np.maximum.accumulate(begin + self._block["dur"])
            before = np.searchsorted(begin, self._times, side="right") - 1
            between = (before < 0) | (until[np.maximum(before, 0)] < self._times)
        chosen = (column[between].tolist() for column in (self._times, self._host, self._device))
        return [(at, (host, device)) for at, host, device in zip(*chosen, strict=True)]


log = logging.getLogger("torch.autograd.profiler")
"""torch's logger, since programs that wait for this message listen there."""

_NUMBERED, _ASYNC = int(Flag.NUMBERED), int(Flag.ASYNC)
_FUNCTION, _BACKWARD, _USER = 0, 1, 7
"""Scopes (at::RecordScope) that can be distinguished later."""
_FLOW_TYPES = {"fwdbwd": 1, "ac2g": 2}
"""torch's numbers for kinds of flows, by their category in traces (libkineto/include/output_base.h)."""
_NO_FLOW = 0, 0, False


_FUNCTION_ID, _COLLECTIVE = "Record function id", "Collective name"
_OWN_ENTRIES = {
    _FUNCTION_ID,
    "External id",
    "Ev Idx",
    "Sequence number",
    "Fwd thread id",
    "Concrete Inputs",
    "Input type",
    "Input Strides",
    "Input Dims",
    "Overload name",
    "FLOPs",
    "Module Hierarchy",
    "Call stack",
    "Python id",
    "Python parent id",
    "Python module id",
    "Python thread",
}
"""Entries that torch's recording has of each function, besides the keyword arguments (torch/csrc/autograd/profiler_kineto.cpp)."""
_TEXT_INPUT: dict[str, Any] = {
    "Input Dims": [[]],
    "Input Strides": [[]],
    "Input type": [""],
    "Concrete Inputs": [""],
}
"""The input that torch records for `record_function(name, args)`: no tensor, and without its text."""
_CONSTANTS: dict[str, Any] = {
    "": None,
    "None": None,
    "True": True,
    "False": False,
    "inf": inf,
    "-inf": -inf,
    "nan": nan,
}


class FunctionEvents:
    """Makes the `FunctionEvent`s of one window."""

    def __init__(self, finished: FinishedWindow, deadline: int | None) -> None:
        """Args: the window; when to stop (ns, monotonic), with what there is by then."""
        self._util: Any = import_module("torch.autograd.profiler_util")
        self._types: Any = import_module("torch.autograd").DeviceType
        self._accepted = set(inspect.signature(self._util.FunctionEvent.__init__).parameters)
        self._window = finished
        self._deadline = deadline
        self._spans = WindowSpans(finished, arguments=True)
        self._usage = MemoryUsage(self._spans) if finished.torch_flags.profile_memory else None
        self._threads: dict[int, tuple[int, int]] = {}
        self._names: dict[tuple[int, int | None], tuple[str, str, str]] = {}

    def build(self) -> Any:
        """torch's `EventList`, in the order in which they began, with parents, children and stacks."""
        torch_flags = self._window.torch_flags
        events = self._of_spans()
        self._launch(events)
        if self._usage is not None:
            last = max((event.id for event in events), default=0)
            events += [self._of_memory(last + 1 + n, at, size) for n, (at, size) in enumerate(self._usage.alone())]
            events.sort(key=lambda event: (event.time_range.start, -event.time_range.end))
        built = self._util.EventList(
            events,
            use_device=torch_flags.use_device,
            profile_memory=torch_flags.profile_memory,
            with_flops=torch_flags.with_flops,
        )
        if torch_flags.with_stack:
            private(built, "_populate_cpu_children")()
            _set_stacks(built)
            for event in built:
                event.cpu_parent, event.cpu_children = None, []
        every, scopes = list(built), [event.scope for event in built]
        for event in every:  # torch would look for stacks of forward operators by thread numbers of its own
            event.scope = _FUNCTION
        build_tree(built)
        for event, scope in zip(every, scopes, strict=True):
            event.scope = scope
        return built

    def _of_spans(self) -> list[Any]:
        spans = self._spans
        block = spans.block
        callers = spans.callers() if self._window.torch_flags.with_stack else None
        cpu, device = self._usage.of_spans() if self._usage is not None else (None, None)
        is_shown, nodes, flows = private(self._util, "_filter_stack_entry"), spans.nodes(), self._flows()
        found: list[Any] = []
        fields = ("ts", "dur", "name", "step", "track", "flags", "args_at", "args_len")
        columns = zip(*(block[field].tolist() for field in fields), strict=True)
        categories = block["category"].tolist()
        others = zip(spans.device.tolist(), spans.annotations.tolist(), strict=True)
        for number, (columns_of_one, (on_device, annotation)) in enumerate(zip(columns, others, strict=True)):
            if self._deadline is not None and clock.now() > self._deadline:
                log.warning(
                    "events() timed out after post_processing_timeout_s, with partial results: %d of %d events",
                    number,
                    len(block),
                )
                break
            details = {
                "stack": callers[number] if callers else (),
                "cpu_memory_usage": 0 if cpu is None or on_device else int(cpu[number]),
                "device_memory_usage": 0 if device is None or on_device else int(device[number]),
                "is_user_annotation": annotation,
                "activity_type": _activity_type(categories[number], annotation),
                **dict(zip(("flow_id", "flow_type", "flow_start"), flows.get(number, _NO_FLOW), strict=True)),
                "scope": _USER if annotation else _BACKWARD if number in nodes else _FUNCTION,
            }
            event = self._of_span(number + 1, columns_of_one, on_device, details)
            event.stack = [entry for entry in event.stack if is_shown(entry)]
            found.append(event)
        return found

    def _of_span(self, number: int, columns: tuple[int, ...], on_device: bool, details: dict[str, Any]) -> Any:
        ts, dur, name, step, track, flags, at, length = columns
        args = self._spans.arguments(flags, at, length)
        if details["is_user_annotation"] and "args" in args and self._window.torch_flags.record_shapes:
            args = {**_TEXT_INPUT, **args}
        details["stack"] = _script_stack(args, details["stack"]) or details["stack"]
        shown, traced, overload = self._texts(name, step if flags & _NUMBERED else None)
        begin = (ts - self._window.window.start_ns) / 1000
        index, thread = self._thread(track)
        shapes = args.get("Input Dims", [])
        return self._make(
            **details,
            id=int(args.get("External id", number)),
            name=shown,
            trace_name=traced,
            overload_name=overload,
            thread=thread,
            start_us=begin,
            end_us=begin + dur / 1000,
            fwd_thread=args.get("Fwd thread id", 0),
            input_shapes=[[] if _is_list(shape) else shape for shape in shapes],
            structured_input_shapes=shapes,
            structured_input_strides=args.get("Input Strides", []),
            input_dtypes=args.get("Input type", []),
            concrete_inputs=[_concrete(text) for text in args.get("Concrete Inputs", [])],
            kwinputs={} if on_device else _keyword_inputs(args),
            extra_meta=self._metadata(args) if on_device or _COLLECTIVE in args else None,
            use_device=self._window.torch_flags.use_device,
            is_async=bool(flags & _ASYNC),
            sequence_nr=int(args.get("Sequence number", -1)),
            device_type=self._device_type() if on_device else self._types.CPU,
            device_index=index,
            device_resource_id=thread,
            flops=args.get("FLOPs", 0),
            metadata_json=json_bytes(args).decode()[1:-1],
            is_python_function="Python id" in args,
            python_id=_number(args.get("Python id")),
            python_parent_id=_number(args.get("Python parent id")),
            python_module_id=_number(args.get("Python module id")),
            external_id=int(args.get("External id", 0)),
        )

    def _flows(self) -> dict[int, tuple[int, int, bool]]:
        """For spans that a flow begins or ends at: its number, torch's number of its kind, and whether it begins there."""
        flows = self._spans.flows
        ends: dict[tuple[int, int], tuple[int, int, bool]] = {}
        for track, ts, number, category, kind in flows[["track", "ts", "id", "category", "kind"]].tolist():
            flow = number, _FLOW_TYPES.get(strings.text(category), 0), kind == Kind.FLOW_START
            ends[track, ts] = flow
        if not ends:
            return {}
        block = self._spans.block
        places = zip(block["track"].tolist(), block["ts"].tolist(), strict=True)
        # The innermost of those that begin at once, which comes last.
        innermost = {place: number for number, place in enumerate(places) if place in ends}
        return {number: ends[place] for place, number in innermost.items()}

    def _metadata(self, args: dict[str, Any]) -> dict[str, str] | None:
        """The arguments of which torch makes an event's `event_metadata`, as texts."""
        metadata = getattr(self._util, "_EVENT_METADATA_KEYS", ())
        found = {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in args.items()
            if key in metadata
        }
        return found or None

    def _texts(self, name: int, step: int | None) -> tuple[str, str, str]:
        """The name that torch groups by, the one in traces, and that of the overload."""
        found = self._names.get((name, step))
        if found is None:
            text, overload = without_overload(strings.text(name))
            text = text if step is None else f"{text}#{step}"
            shown, traced = (shown_name(self._util, text, grouped=grouped) for grouped in (True, False))
            found = self._names[name, step] = shown, traced, overload
        return found

    def _of_memory(self, number: int, at: int, size: tuple[int, int]) -> Any:
        """Makes an event of each allocation outside of all operators."""
        when = (at - self._window.window.start_ns) / 1000
        return self._make(
            id=number,
            name="[memory]",
            overload_name="",
            thread=0,
            start_us=when,
            end_us=when,
            fwd_thread=0,
            input_shapes=[],
            stack=[],
            use_device=self._window.torch_flags.use_device,
            cpu_memory_usage=size[0],
            device_memory_usage=size[1],
            flops=0,
        )

    def _make(self, **values: Any) -> Any:
        if not values.keys() <= self._accepted:  # an older torch
            values = {key: value for key, value in values.items() if key in self._accepted}
        return self._util.FunctionEvent(**values)

    def _launch(self, events: list[Any]) -> None:
        """Gives operators the kernels that they launched."""
        launchers: dict[int, Any] = {}
        for event in events:
            if event.device_type == self._types.CPU and not event.is_user_annotation:
                launchers.setdefault(event.id, event)  # a call of the device's runtime has its operator's number
        for event in events:
            launcher = launchers.get(event.id) if event.device_type != self._types.CPU else None
            if launcher is not None and not event.is_user_annotation:
                launcher.append_kernel(event.name, event.device_index, event.time_range.elapsed_us())

    def _thread(self, track: int) -> tuple[int, int]:
        """Numbers of process or device, and of thread or stream."""
        found = self._threads.get(track)
        if found is None:
            entry = tracks.get(track)
            found = self._threads[track] = (0, 0) if entry is None else (entry.pid, entry.tid)
        return found

    def _device_type(self) -> Any:
        names = {"cuda": "CUDA", "xpu": "XPU", "mtia": "MTIA", "hpu": "HPU"}
        return getattr(self._types, names.get(self._window.torch_flags.use_device or "cuda", "PrivateUse1"))


def build_tree(events: Any) -> None:
    """Does to an `EventList` what torch does before one is shown. Raises `BackendError` if this version of torch has no such thing."""
    private(events, "_build_tree")()


def _script_stack(args: dict[str, Any], callers: tuple[str, ...]) -> tuple[str, ...]:
    """The callers in TorchScript, which torch has in place of those in Python; none outside of TorchScript."""
    text: str = args.get("Call stack", "") if callers else ""
    entries = tuple(entry for entry in text.split(";") if entry)
    return () if set(entries) & set(callers) else entries


def _activity_type(category: int, annotation: bool) -> str:
    """torch's name of an event's kind, which traces have as its category; spans of stepscope are annotations."""
    text = strings.text(category)
    return "user_annotation" if annotation and text not in DEVICE else text


def _number(value: Any) -> int:
    """A number of a Python function; -1 for none."""
    return -1 if value is None else int(value)


def _concrete(text: str) -> Any:
    """The value of an input that torch's recording has as text; `None` for a tensor, which has none."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return ast.literal_eval(text) if text[0] in "[-.0123456789" else text
    except (ValueError, SyntaxError):
        return text


def _keyword_inputs(args: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a function that was recorded with some. torch's recording has them among its own entries."""
    if _FUNCTION_ID not in args or _COLLECTIVE in args:
        return {}
    return {key: value for key, value in args.items() if key not in _OWN_ENTRIES}


def _set_stacks(events: Any) -> None:
    """Gives operators of the backward pass the stack of the forward operator that made their node, as torch does: the
    first of the node's sequence number."""
    forward: dict[int, list[str]] = {}
    for event in events:
        if event.sequence_nr >= 0 and _node(event) is None and event.stack is not None:
            forward.setdefault(event.sequence_nr, event.stack)
    for event in events:
        node = _node(event)
        if node is not None:
            event.stack = forward.get(node.sequence_nr, [])


def _node(event: Any) -> Any:
    while event is not None and event.scope != _BACKWARD:
        event = event.cpu_parent
    return event


def _is_list(shape: Any) -> bool:
    """True if a shape is that of a list of tensors."""
    return bool(shape) and isinstance(shape[0], list)
