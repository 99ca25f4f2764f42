"""Adds up operators' allocations from those that torch reports one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.compat.torch.events.window_spans import WindowSpans

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
        """For each span the bytes on the host and on accelerators."""
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
